"""The provisioner as the runtime runs it: what each cluster calls for next, and what each node should be doing."""

from dataclasses import replace
from functools import partial

from volt.contracts.ids import JobId
from volt.contracts.messages import Event, encode
from volt.contracts.nodes import (
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportFrozen,
    ReportPrepared,
    ReportStarted,
)
from volt.contracts.streams import DESIRED
from volt.contracts.subjects import (
    ALL_BIDS,
    ALL_CLUSTERS,
    ALL_JOBS,
    ALL_NODES,
    LOG_LEDGER,
    LOG_MARKET,
    desired,
    log_cluster,
)
from volt.contracts.timing import Timing
from volt.runtime.engine import Broken, Definition, Publication, guarded
from volt_provisioner.domain import State, Watch, decide, desired_of, evolve
from volt_provisioner.states import Absent, Cleared, Cluster, job_of
from volt_provisioner.steps import next_steps

EVENTS_PER_ROUND_MAX = 512
PAUSE_MS_MIN = 5_000


def definition(timing: Timing) -> Definition[State]:
    """The provisioner under these periods."""
    return Definition(
        name="provisioner",
        reads=(ALL_JOBS, ALL_BIDS, LOG_MARKET, ALL_CLUSTERS, ALL_NODES, LOG_LEDGER),
        initial=partial(State, timing),
        evolve=evolve,
        effects=effects,
        commands=(
            ReportPrepared,
            ReportStarted,
            ReportFailed,
            ReportFrozen,
            ReportEnded,
            ReportCleared,
            ReportCheckpoint,
        ),
        decide=decide,
        publications=publications,
    )


def effects(state: State, at_ms: int) -> list[Event | Broken]:
    """The events that are due, one of each cluster, the longest due first."""
    began_ms = _listening_since(state, at_ms)
    due: list[Event | Broken] = []
    for due_ms, job in state.agenda:
        if due_ms >= at_ms or len(due) == EVENTS_PER_ROUND_MAX:
            break
        event = guarded(_subject(state.clusters[job]), partial(_next_event, state, job, at_ms, began_ms))
        if event is not None:
            due.append(event)
    return due


def _subject(cluster: Cluster) -> str:
    assert not isinstance(cluster, Absent | Cleared), "it calls for nothing"
    job = job_of(cluster)
    return log_cluster(job.account, job.id)


def _next_event(state: State, job: JobId, at_ms: int, began_ms: int) -> Event | None:
    steps = next_steps(state.clusters[job], state.timing)
    step = next((one for one in steps if one.is_due(at_ms, began_ms)), None)
    return step.make(at_ms) if step is not None else None


def _listening_since(state: State, at_ms: int) -> int:
    """Since when answers can have been heard. After a pause, as at the start, what came in it is yet to be read.

    It may take the first message after a start to learn how late it is, so a leap of time is a pause.
    """
    watch = state.watch
    if watch is None or at_ms - watch.looked_ms > PAUSE_MS_MIN:
        watch = Watch(at_ms, at_ms)
    state.watch = replace(watch, looked_ms=at_ms)
    return watch.began_ms


def publications(state: State) -> list[Publication]:
    """What nodes should be doing that they were not told yet; at the start of a run, all nodes."""
    changed = [Publication(DESIRED.name, desired(*key), encode(desired_of(state, key))) for key in state.untold]
    state.untold.clear()
    return changed
