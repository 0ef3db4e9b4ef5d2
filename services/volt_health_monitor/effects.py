"""The health-monitor as the runtime runs it: it takes no commands, and says what beats and silence call for."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import assert_never

from msgspec import structs

from volt.contracts.fleet import FleetEvent, LossesHeld, LossesReleased, Pace, PaceSet
from volt.contracts.messages import Event, encode
from volt.contracts.nodes import (
    NO_INCARNATION,
    BeatsCovered,
    GpuFaulted,
    GpuQuarantined,
    LostCause,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    NodeRated,
    NodeUnknown,
    QuarantineEnded,
)
from volt.contracts.streams import DESIRED
from volt.contracts.subjects import (
    ALL_BIDS,
    ALL_CLUSTERS,
    ALL_NODES,
    DESIRED_FLEET,
    LOG_COVER,
    LOG_FLEET,
    LOG_LEDGER,
    LOG_MARKET,
    log_node,
)
from volt.contracts.timing import Timing
from volt.runtime.engine import Broken, Definition, Publication, guarded
from volt_health_monitor.brake import Free, Held, steady_ms
from volt_health_monitor.domain import State, diagnosis_of, evolve, finding, is_outrated, verdict_on
from volt_health_monitor.nodes import UNSEEN, NodeKey, Sight, Unseen
from volt_health_monitor.pace import wanted_level

NODE_EVENTS_PER_ROUND_MAX = 512


def definition(timing: Timing) -> Definition[State]:
    """The health-monitor with these periods."""
    return Definition(
        name="health-monitor",
        reads=(ALL_BIDS, ALL_NODES, LOG_COVER, LOG_FLEET, LOG_MARKET, ALL_CLUSTERS, LOG_LEDGER),
        initial=lambda: State(timing),
        evolve=evolve,
        effects=effects,
        publications=publications,
    )


def effects(state: State, at_ms: int) -> tuple[Event | Broken, ...]:
    """What is to be said of the fleet, the cover that is due, then what the nodes' beats and silence call for."""
    found = finding(state)
    covered = (
        () if found is None else (BeatsCovered(spans=found.spans, complete_to_ms=found.complete_to_ms, at_ms=at_ms),)
    )
    of_fleet = _fleet_event(state, at_ms)
    said = () if of_fleet is None else (of_fleet,)
    return (*said, *covered, *islice(_node_events(state, at_ms), NODE_EVENTS_PER_ROUND_MAX))


def publications(state: State) -> tuple[Publication, ...]:
    """The pace, for every agent, once it ever was another than that of the profile."""
    if not state.level_max:
        return ()
    pace = Pace(beat_ms=state.pace.beat_ms, fence_after_ms=state.pace.fence_after_ms)
    return (Publication(DESIRED.name, DESIRED_FLEET, encode(pace)),)


def _fleet_event(state: State, at_ms: int) -> FleetEvent | None:
    """Nothing while there is no sight of the stream's end."""
    if state.beats.probe_receipt_ms is None:
        return None
    surge, steady = state.brake.surge, steady_ms(state.brake, state.beats.probe_receipt_ms)
    match state.brake.phase:
        case Free() if not surge.is_believed:
            return LossesHeld(silent=surge.silent, watched=surge.watched, silent_max=surge.silent_max, at_ms=at_ms)
        case Held() if steady >= max(state.timing.brake_ms_min, 2 * state.pace.lost_after_ms):
            silent = sum(silence != "unknown" for silence in state.beats.silences.values())
            return LossesReleased(silent=silent, watched=len(state.beats.receipts), steady_ms=steady, at_ms=at_ms)
        case Held():
            return None
        case Free():
            level = wanted_level(state.timing, state.level, len(state.beats.receipts))
            nodes = len(state.beats.receipts)
            return None if level == state.level else PaceSet(level=level, nodes=nodes, at_ms=at_ms)


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
            return _lost(key, seen, sight, at_ms, "left")
        case "silent":
            return _lost(key, known, sight, at_ms, "silent")
        case "never_beat":
            return _lost(key, NO_INCARNATION, None, at_ms, "never_beat")
        case "unknown":
            return NodeUnknown(account=key.account, node=key.node, incarnation=known, at_ms=at_ms)
        case None:
            return _of_gpus(state, key, known, at_ms) or _rated(state, key, known, at_ms)
        case _:
            assert_never(said)


def _lost(key: NodeKey, incarnation: str, sight: Sight | None, at_ms: int, cause: LostCause) -> NodeLost:
    sequence = sight.sequence if sight is not None and sight.incarnation == incarnation else None
    return NodeLost(
        account=key.account, node=key.node, incarnation=incarnation, at_ms=at_ms, cause=cause, sequence=sequence
    )


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
