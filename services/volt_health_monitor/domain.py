"""What the health-monitor knows, from the log and from the beats, and how it learns it.

The log says what each node is (`nodes.py`), what is recorded of cover (`cover.py`) and of GPUs' faults (`faults.py`),
and how far each node can be relied on (`reliability.py`). Beats are read beside it. How long a node has been silent is
counted on the monitor's own monotonic clock, from the reading of its last beat; and it is judged only when one of the
monitor's own probes is read back, since then everything stored before the probe has been read too. A bus that is away,
a reader that lags or a monitor that stood still bring no probe back in time, so that nobody is judged by them: the
counting begins afresh. A node that has been silent for its L is lost when the leader of the beat stream has no newer
beat of it either (`unconfirmed`, `confirm`), and the brake does not hold (`brake.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from volt.contracts.bids import BidAccepted, BidEvent, BidWithdrawn
from volt.contracts.clusters import ClusterEvent, ClusterReleased
from volt.contracts.fleet import FleetEvent, PaceSet
from volt.contracts.ledger import JobClosed, LedgerEvent
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.nodes import BeatsCovered, Heartbeat, NodeEvent, NodeLost
from volt.contracts.telemetry import READINGS_PER_BEAT_MAX, XIDS_PER_BEAT_MAX
from volt.contracts.timing import Timing
from volt_health_monitor.brake import Brake, Fall, evolve_brake, lose_steadiness, observe_silence
from volt_health_monitor.cover import Cover, Finding, running_since
from volt_health_monitor.faults import Diagnosis, Signs, Ward, diagnosis, heard, settled, warded, without_recorded
from volt_health_monitor.nodes import (
    UNSEEN,
    Alive,
    NodeKey,
    NodeState,
    Sight,
    Silence,
    Unknown,
    Verdict,
    after,
    is_stale,
    verdict,
    with_start,
)
from volt_health_monitor.pace import fence_problem, stated_fence_ms
from volt_health_monitor.reliability import Records

LEASES_PER_BEAT_MAX = 64
GENERATION_MAX = 1_000_000_000


@dataclass
class Beats:
    """What was seen beside the log since this process began. A `receipt` is an instant of the monotonic clock."""

    sights: dict[NodeKey, Sight] = field(default_factory=dict)
    receipts: dict[NodeKey, int] = field(default_factory=dict)
    """When each node that may be alive was last heard of, the longest silent first."""
    awaited: dict[NodeKey, int | None] = field(default_factory=dict)
    """Nodes that are on offer and have never beaten, and since when that is known; None until the next probe."""
    silences: dict[NodeKey, Silence] = field(default_factory=dict)
    called_for: dict[NodeKey, None] = field(default_factory=dict)
    """Nodes of which the log should say something else than it does."""
    signs: dict[NodeKey, Signs] = field(default_factory=dict)
    """What beats have shown of the nodes' GPUs, of those nodes that tell of them."""
    suspects: dict[NodeKey, None] = field(default_factory=dict)
    """Nodes with a fault that counts only if nothing explains it."""
    read_ms: int = 0
    """The stream's time up to which beats have been read."""
    probe_receipt_ms: int | None = None
    """When the last probe was read back; None while there is no sight of the stream's end."""


@dataclass
class State:
    """Nodes and cover as the log has them, and the beats."""

    timing: Timing
    nodes: dict[NodeKey, NodeState] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    wards: dict[NodeKey, Ward] = field(default_factory=dict)
    """What the log says of the nodes' GPUs, of those nodes whose GPUs ever had a fault."""
    cover: Cover = field(default_factory=Cover)
    brake: Brake = field(default_factory=Brake)
    level: int = 0
    """The pace that agents are told."""
    level_max: int = 0
    """The slowest that they ever were told."""
    beats: Beats = field(default_factory=Beats)

    @property
    def unknown_after_ms(self) -> int:
        """How long nobody is judged, whatever their pace."""
        return self.timing.lost_after_ms // 2

    @property
    def pace(self) -> Timing:
        """The periods that agents are told."""
        return self.timing.at_level(self.level)


def evolve(state: State, entry: Entry) -> None:
    """Folds one event of the log. Raises AssertionError for one that cannot follow what is known."""
    match entry.event:
        case NodeEvent() as event:
            _evolve_node(state, event)
        case BeatsCovered() as event:
            state.cover.record(event)
        case FleetEvent() as event:
            _evolve_fleet(state, event)
        case BidEvent() as event:
            _evolve_bid(state, event)
        case MarketCleared(gangs=gangs):
            for gang in gangs:
                state.cover.grant(gang)
        case ClusterReleased(job=job, at_ms=end_ms):
            state.cover.release(job, end_ms)
        case JobClosed(job=job):
            state.cover.close(job)
        case ClusterEvent() | LedgerEvent():
            pass  # Cover ends with the beats, and is wanted until the cluster's end: nothing between matters here.
        case _:
            raise AssertionError(f"the health-monitor does not read {type(entry.event).__name__}")


def observe_beat(state: State, beat: Heartbeat, at_ms: int, receipt_ms: int) -> None:
    """Learns of a beat that the stream stored at `at_ms` and that was read at `receipt_ms`."""
    beats, key = state.beats, NodeKey(beat.account, beat.node)
    observe_time(state, at_ms)
    before = beats.sights.get(key)
    if is_stale(beat, beats.read_ms, before, state.nodes.get(key, UNSEEN)):
        return
    running = running_since(beat, beats.read_ms, before)
    if before is not None:
        state.cover.break_chains(key, before, running)
    _examine(state, key, beat, ended=before is not None and not before.running.keys() <= running.keys())
    started = with_start(before.started if before is not None else (), beat.incarnation)
    fence_ms = stated_fence_ms(state.timing, beat)
    beats.sights[key] = Sight(beat.incarnation, beat.sequence, beats.read_ms, beat.leaving, started, running, fence_ms)
    beats.receipts.pop(key, None)
    beats.receipts[key] = receipt_ms
    beats.silences.pop(key, None)
    beats.awaited.pop(key, None)
    _judge(state, key)


def observe_probe(state: State, sent_ms: int, at_ms: int, receipt_ms: int) -> None:
    """Learns that its own probe, sent at `sent_ms` of the monotonic clock, was stored at `at_ms` and read back.

    Everything that was stored before it has been read. A node from which nothing came for L up to `sent_ms` is silent.
    """
    beats = state.beats
    observe_time(state, at_ms)
    last_ms, beats.probe_receipt_ms = beats.probe_receipt_ms, receipt_ms
    if last_ms is None or receipt_ms - last_ms > state.unknown_after_ms:
        _count_afresh(state, receipt_ms)
        return
    falls = tuple(_fall_silent(state, sent_ms))
    _await_first_beats(state, sent_ms, receipt_ms)
    observe_silence(state.brake, falls, len(beats.receipts), sent_ms, receipt_ms)
    _judge_silent(state)
    for key in tuple(beats.suspects):
        _settle(state, key, beats.signs[key])
        _judge(state, key)


def observe_time(state: State, at_ms: int) -> None:
    """Learns that the stream was read up to `at_ms` of its time, which never goes back."""
    state.beats.read_ms = max(state.beats.read_ms, at_ms)


def lose_sight(state: State) -> None:
    """The bus was away: nobody is judged until a probe has been read back, and then silence counts afresh."""
    state.beats.probe_receipt_ms = None
    lose_steadiness(state.brake)


def unconfirmed(state: State) -> tuple[tuple[NodeKey, Sight | None], ...]:
    """The nodes that would be lost if the leader of the beat stream had no newer beat of them than the one seen."""
    if state.brake.holds or state.beats.probe_receipt_ms is None:
        return ()
    silent = (key for key, silence in state.beats.silences.items() if silence == "silent")
    return tuple((key, state.beats.sights.get(key)) for key in silent)


def confirm(state: State, key: NodeKey, seen: Sight | None) -> None:
    """Learns that the leader of the beat stream had nothing newer of the node than this sight."""
    if state.beats.silences.get(key) == "silent" and state.beats.sights.get(key) == seen:
        state.beats.silences[key] = "certain"
        _judge(state, key)


def cancel(state: State, key: NodeKey, receipt_ms: int) -> None:
    """Learns that the leader has a newer beat of the node, which is still to be read: its silence begins afresh."""
    if state.beats.silences.pop(key, None) is None:
        return
    if key in state.beats.awaited:
        state.beats.awaited[key] = receipt_ms
    if state.beats.receipts.pop(key, None) is not None:
        state.beats.receipts[key] = receipt_ms
    _judge(state, key)


def read_from_ms(state: State) -> int:
    """The stream's time from which beats have to be read: where they were left, or what cover still needs of them.

    That is twice the longest gap before the watermark: once for the beats from which cover goes on across it, and once
    more for those by which a repeated one of them is known.
    """
    if state.beats.read_ms:
        return state.beats.read_ms
    return max(0, state.cover.complete_to_ms - 2 * state.timing.at_level(state.level_max).cover_gap_ms)


def probe_after_ms(state: State, now_ms: int) -> int:
    """How long to wait with the next probe: a beat's period, or less if somebody is about to be silent too long."""
    heard_ms = next(iter(state.beats.receipts.values()), now_ms)
    lost_after_ms = state.pace.lost_after_ms
    dues = (heard_ms + lost_after_ms // 2, heard_ms + lost_after_ms)
    soonest_ms = min((due_ms - now_ms for due_ms in dues if due_ms > now_ms), default=state.timing.beat_ms)
    return min(max(soonest_ms, state.timing.tick_ms), state.timing.beat_ms)


def verdict_on(state: State, key: NodeKey) -> Verdict | None:
    """What the log should say of the node and does not. While the brake holds, no silence is certain."""
    silence = state.beats.silences.get(key)
    if silence == "certain" and state.brake.holds:
        silence = "silent"
    return verdict(state.nodes.get(key, UNSEEN), state.beats.sights.get(key), silence)


def diagnosis_of(state: State, key: NodeKey) -> Diagnosis | None:
    """What the log should say next of the GPUs of a node that is alive, and does not."""
    node, signs = state.nodes.get(key, UNSEEN), state.beats.signs.get(key)
    if signs is None or not isinstance(node, Alive) or node.incarnation != signs.incarnation:
        return None
    return diagnosis(state.wards.get(key, Ward()), signs)


def is_outrated(state: State, key: NodeKey) -> bool:
    """Whether the log should tell anew how far a node that is alive can be relied on."""
    return isinstance(state.nodes.get(key), Alive) and state.records.has_moved(key, state.beats.read_ms)


def finding(state: State) -> Finding | None:
    """The cover to record now. Beats complete it up to the longest gap before the last that was read."""
    period_ms = state.timing.cover_flush_ms
    sights = (state.beats.sights.get(key) for key in state.cover.holders.values())
    gap_ms = max((sight.fence_ms for sight in sights if sight is not None), default=0)
    complete_ms = state.beats.read_ms - max(gap_ms, state.timing.cover_gap_ms)
    return state.cover.finding(complete_ms // period_ms * period_ms, state.beats.sights)


def beat_problem(timing: Timing, beat: Heartbeat) -> str | None:
    """What is wrong with a beat that is well formed: it comes from a stranger."""
    if len(beat.leases) > LEASES_PER_BEAT_MAX:
        return f"{len(beat.leases)} leases; at most {LEASES_PER_BEAT_MAX}"
    if len(beat.gpus) > READINGS_PER_BEAT_MAX or len(beat.xids) > XIDS_PER_BEAT_MAX:
        return (
            f"{len(beat.gpus)} GPUs and {len(beat.xids)} XIDs; at most {READINGS_PER_BEAT_MAX} and {XIDS_PER_BEAT_MAX}"
        )
    if any(not 0 < lease.generation <= GENERATION_MAX for lease in beat.leases):
        return f"a generation is not between 1 and {GENERATION_MAX}"
    return fence_problem(timing, beat.fence_after_ms)


def _evolve_node(state: State, event: NodeEvent) -> None:
    key = NodeKey(event.account, event.node)
    node = state.nodes[key] = after(state.nodes.get(key, UNSEEN), event)
    state.records.learn(key, event)
    state.wards[key] = warded(state.wards.get(key, Ward()), event)
    if key in state.beats.signs:
        state.beats.signs[key] = without_recorded(state.beats.signs[key], state.wards[key])
    state.beats.awaited.pop(key, None)
    if not isinstance(node, Alive | Unknown):
        heard_ms = state.beats.receipts.pop(key, None)
        if heard_ms is not None and isinstance(event, NodeLost) and event.cause == "silent":
            state.brake.fallen[key] = Fall(heard_ms, _lost_after_ms(state, key))
        state.beats.silences.pop(key, None)
    else:
        state.brake.fallen.pop(key, None)
    _judge(state, key)


def _evolve_fleet(state: State, event: FleetEvent) -> None:
    evolve_brake(state.brake, event)
    if isinstance(event, PaceSet):
        state.level, state.level_max = event.level, max(state.level_max, event.level)
    if state.brake.holds:
        # What was certain before is looked at again when the brake has ended.
        certain = [key for key, silence in state.beats.silences.items() if silence == "certain"]
        state.beats.silences.update(dict.fromkeys(certain, "silent"))
    _judge_silent(state)


def _evolve_bid(state: State, event: BidEvent) -> None:
    key = NodeKey(event.account, event.node)
    match event:
        case BidAccepted() if key not in state.nodes and key not in state.beats.sights:
            state.beats.awaited.setdefault(key)
        case BidWithdrawn():
            state.beats.awaited.pop(key, None)
        case _:
            pass


def _lost_after_ms(state: State, key: NodeKey) -> int:
    """The node's L. One of which no beat was seen since the monitor's start may have the slowest pace ever told."""
    sight = state.beats.sights.get(key)
    fence_ms = state.timing.at_level(state.level_max).fence_after_ms if sight is None else sight.fence_ms
    return state.timing.lost_after_fence(fence_ms)


def _fall_silent(state: State, sent_ms: int) -> Iterator[Fall]:
    """Counts silence up to `sent_ms`, and yields when each silent node was last heard of."""
    for key, heard_ms in state.beats.receipts.items():
        silent_ms = sent_ms - heard_ms
        if silent_ms < state.unknown_after_ms:
            return
        lost_after_ms = _lost_after_ms(state, key)
        if silent_ms < lost_after_ms // 2:
            continue
        if state.beats.silences.get(key) != "certain":
            state.beats.silences[key] = "silent" if silent_ms >= lost_after_ms else "unknown"
        yield Fall(heard_ms, lost_after_ms)


def _await_first_beats(state: State, sent_ms: int, receipt_ms: int) -> None:
    for key, since_ms in state.beats.awaited.items():
        if since_ms is None:
            state.beats.awaited[key] = receipt_ms
        elif sent_ms - since_ms >= state.timing.first_beat_ms_max:
            state.beats.silences.setdefault(key, "silent")


def _judge_silent(state: State) -> None:
    for key in state.beats.silences:
        _judge(state, key)


def _judge(state: State, key: NodeKey) -> None:
    if verdict_on(state, key) is None and diagnosis_of(state, key) is None and not is_outrated(state, key):
        state.beats.called_for.pop(key, None)
    else:
        state.beats.called_for[key] = None


def _examine(state: State, key: NodeKey, beat: Heartbeat, *, ended: bool) -> None:
    """Looks at what the beat tells of GPUs. A node that never told of any has no signs."""
    known = state.beats.signs.get(key)
    if beat.gpus or beat.xids or known is not None:
        _settle(state, key, heard(known, beat, state.beats.read_ms, ended=ended))


def _settle(state: State, key: NodeKey, signs: Signs) -> None:
    state.beats.signs[key] = signs = settled(signs, state.beats.read_ms)
    if signs.suspected:
        state.beats.suspects[key] = None
    else:
        state.beats.suspects.pop(key, None)


def _count_afresh(state: State, receipt_ms: int) -> None:
    living = (key for key, node in state.nodes.items() if isinstance(node, Alive | Unknown))
    state.beats.receipts = dict.fromkeys((*living, *state.beats.receipts), receipt_ms)
    state.beats.awaited = dict.fromkeys(state.beats.awaited, receipt_ms)
    lose_steadiness(state.brake)
    state.brake.steady_since_ms = receipt_ms
    silent, state.beats.silences = state.beats.silences, {}
    for key in silent:
        _judge(state, key)
