"""The health-monitor as the runtime runs it: it takes no commands, and says what beats and silence call for."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import assert_never

from msgspec import structs

from volt.contracts.messages import Event
from volt.contracts.nodes import (
    BeatsCovered,
    GpuFaulted,
    GpuQuarantined,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    NodeRated,
    NodeUnknown,
    QuarantineEnded,
)
from volt.contracts.subjects import ALL_CLUSTERS, ALL_NODES, LOG_COVER, LOG_LEDGER, LOG_MARKET, log_node
from volt.contracts.timing import Timing
from volt.runtime.engine import Broken, Definition, guarded
from volt_health_monitor.domain import State, diagnosis_of, evolve, finding, is_outrated, verdict_on
from volt_health_monitor.nodes import UNSEEN, NodeKey, Unseen

NODE_EVENTS_PER_ROUND_MAX = 512


def definition(timing: Timing) -> Definition[State]:
    """The health-monitor with these periods."""
    return Definition(
        name="health-monitor",
        reads=(ALL_NODES, LOG_COVER, LOG_MARKET, ALL_CLUSTERS, LOG_LEDGER),
        initial=lambda: State(timing),
        evolve=evolve,
        effects=effects,
    )


def effects(state: State, at_ms: int) -> tuple[Event | Broken, ...]:
    """The cover that is due, then what the nodes' beats and silence call for."""
    found = finding(state)
    covered = (
        () if found is None else (BeatsCovered(spans=found.spans, complete_to_ms=found.complete_to_ms, at_ms=at_ms),)
    )
    return (*covered, *islice(_node_events(state, at_ms), NODE_EVENTS_PER_ROUND_MAX))


def _node_events(state: State, at_ms: int) -> Iterator[Event | Broken]:
    """Nothing while there is no sight of the stream's end: what was read so far may be old."""
    if state.beats.probe_receipt_ms is not None:
        for key in state.beats.called_for:
            event = guarded(log_node(key.account, key.node), partial(_node_event, state, key, at_ms))
            if event is not None:
                yield event


def _node_event(state: State, key: NodeKey, at_ms: int) -> NodeEvent | None:
    said, sight, node = verdict_on(state, key), state.beats.sights.get(key), state.nodes.get(key, UNSEEN)
    seen = sight.incarnation if sight is not None else ""
    known = "" if isinstance(node, Unseen) else node.incarnation
    match said:
        case "alive":
            reliability = state.records.permille(key, at_ms)
            return NodeAlive(
                account=key.account, node=key.node, incarnation=seen, at_ms=at_ms, reliability_permille=reliability
            )
        case "left":
            return NodeLost(account=key.account, node=key.node, incarnation=seen, at_ms=at_ms, cause="left")
        case "silent":
            return NodeLost(account=key.account, node=key.node, incarnation=known, at_ms=at_ms, cause="silent")
        case "unknown":
            return NodeUnknown(account=key.account, node=key.node, incarnation=known, at_ms=at_ms)
        case None:
            return _of_gpus(state, key, known, at_ms) or _rated(state, key, known, at_ms)
        case _:
            assert_never(said)


_FAULTS = {"restart_workload": GpuFaulted, "quarantine_gpu": GpuQuarantined, "quarantine_node": NodeQuarantined}


def _of_gpus(state: State, key: NodeKey, incarnation: str, at_ms: int) -> NodeEvent | None:
    """What is wrong with the GPUs of a node, or no longer."""
    found = diagnosis_of(state, key)
    if found is None:
        return None
    if found.fault is None:
        return QuarantineEnded(
            account=key.account, node=key.node, incarnation=incarnation, at_ms=at_ms, gpus=found.gpus
        )
    event = _FAULTS[found.fault_class](
        account=key.account,
        node=key.node,
        incarnation=incarnation,
        at_ms=at_ms,
        gpus=found.gpus,
        fault=found.fault,
        reliability_permille=0,
    )
    return structs.replace(event, reliability_permille=state.records.permille_after(key, event))


def _rated(state: State, key: NodeKey, incarnation: str, at_ms: int) -> NodeRated | None:
    if not is_outrated(state, key):
        return None
    permille = state.records.permille(key, at_ms)
    return NodeRated(
        account=key.account, node=key.node, incarnation=incarnation, at_ms=at_ms, reliability_permille=permille
    )
