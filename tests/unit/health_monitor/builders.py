"""Small makers of what the health-monitor reads, and the monitor's own loop without a bus or a clock."""

from collections.abc import Sequence

from tests.support.effects import sound
from volt.contracts.clusters import ClusterReleased
from volt.contracts.ledger import JobClosed
from volt.contracts.log import Entry
from volt.contracts.market import Gang, Grant, MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import (
    BeatsCovered,
    CoverSpan,
    Heartbeat,
    LeaseBeat,
    LeaseState,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeUnknown,
)
from volt.contracts.telemetry import GpuReading, Xid
from volt.contracts.timing import EMBEDDED, Timing
from volt_health_monitor.domain import (
    State,
    confirm,
    evolve,
    lose_sight,
    observe_beat,
    observe_probe,
    observe_time,
    read_from_ms,
    unconfirmed,
)
from volt_health_monitor.effects import effects

BEAT_MS, LOST_MS = EMBEDDED.beat_ms, EMBEDDED.lost_after_ms
GAP_MS, FLUSH_MS = EMBEDDED.cover_gap_ms, EMBEDDED.cover_flush_ms

PROVIDER = "acme"
BUYER = "lab"
EPOCH_MS = 1_700_000_000_000
LEASE = ("j1-1", 1)
"""The lease of the job that `leasing` opens."""

SMALL = Timing(
    beat_ms=5,
    fence_after_ms=20,
    lost_after_ms=26,
    frozen_ms_max=1_000,
    tick_ms=1,
    prepare_ms_max=100,
    start_ms_max=100,
    stop_grace_ms=10,
    replace_ms_max=100,
    cover_flush_ms=10,
)
"""The embedded periods a hundredth as long, so that every millisecond can be looked at."""


def beat(
    sequence: int,
    *,
    node: str = "n1",
    incarnation: str = "i1",
    running: Sequence[tuple[str, int]] = (),
    state: LeaseState = "running",
    leaving: bool = False,
    gpus: Sequence[GpuReading] = (),
    xids: Sequence[Xid] = (),
) -> Heartbeat:
    leases = tuple(LeaseBeat(lease=lease, generation=generation, state=state) for lease, generation in running)
    return Heartbeat(
        account=PROVIDER,
        node=node,
        incarnation=incarnation,
        sequence=sequence,
        leases=leases,
        leaving=leaving,
        gpus=tuple(gpus),
        xids=tuple(xids),
    )


def alive(node: str = "n1", incarnation: str = "i1", at_ms: int = 0) -> NodeAlive:
    return NodeAlive(account=PROVIDER, node=node, incarnation=incarnation, at_ms=at_ms)


def unknown(node: str = "n1", incarnation: str = "i1", at_ms: int = 0) -> NodeUnknown:
    return NodeUnknown(account=PROVIDER, node=node, incarnation=incarnation, at_ms=at_ms)


def lost(node: str = "n1", incarnation: str = "i1", at_ms: int = 0) -> NodeLost:
    return NodeLost(account=PROVIDER, node=node, incarnation=incarnation, at_ms=at_ms, cause="silent")


def granted(job: str, *leases: tuple[str, str], generation: int = 1) -> MarketCleared:
    """A pass that grants the job these leases, each with its node."""
    grants = tuple(
        Grant(lease=lease, rank=rank, node=node, provider=PROVIDER, gpus=(f"gpu-{lease}",))
        for rank, (lease, node) in enumerate(leases)
    )
    gang = Gang(
        job=job,
        account=BUYER,
        generation=generation,
        attempt=0,
        grants=grants,
        price_microusd_per_gpu_hour=1_000_000,
        domain="",
    )
    return MarketCleared(through_seq=0, at_ms=0, gangs=(gang,))


def released(job: str, at_ms: int) -> ClusterReleased:
    return ClusterReleased(account=BUYER, job=job, generation=1, at_ms=at_ms, reason="released")


def closed(job: str) -> JobClosed:
    return JobClosed(account=BUYER, job=job, at_ms=0, lines=())


def span(lease: str, from_ms: int, to_ms: int, generation: int = 1) -> CoverSpan:
    return CoverSpan(lease=lease, generation=generation, from_ms=from_ms, to_ms=to_ms)


class Monitor:
    """The monitor as the engine runs it, stepped by hand: a log, a stream of beats, and a state that can be lost."""

    def __init__(self, timing: Timing = EMBEDDED) -> None:
        self.log: list[Event] = []
        self.stream: list[tuple[int, Heartbeat | None]] = []
        self.state = State(timing)
        self.is_leader_there = True
        self.now_ms = 0
        """Since `EPOCH_MS`, on the stream's clock and on the monotonic one alike."""

    def append(self, *events: Event) -> None:
        for event in events:
            self.log.append(event)
            evolve(self.state, Entry(len(self.log), EPOCH_MS + self.now_ms, event))

    def hear(self, *beats: Heartbeat) -> None:
        """The stream stores the beats now and the monitor reads them."""
        self.hear_at(self.now_ms, *beats)

    def hear_at(self, at_ms: int, *beats: Heartbeat) -> None:
        """The monitor reads now what the stream stored at `at_ms`."""
        for one in beats:
            self.stream.append((EPOCH_MS + at_ms, one))
            observe_beat(self.state, one, EPOCH_MS + at_ms, self.now_ms)

    def probe(self) -> None:
        """A probe is sent now and read back at once."""
        self.probe_sent(self.now_ms)

    def probe_sent(self, sent_ms: int) -> None:
        """A probe that was sent at `sent_ms` is stored and read now."""
        self.stream.append((EPOCH_MS + self.now_ms, None))
        observe_probe(self.state, sent_ms, EPOCH_MS + self.now_ms, self.now_ms)
        if self.is_leader_there:
            self.ask_the_leader()

    def ask_the_leader(self) -> None:
        """It has nothing newer of anybody than what was read."""
        for key, seen in unconfirmed(self.state):
            confirm(self.state, key, seen)

    def act_once(self) -> bool:
        """Appends the first event of each aggregate that is called for. False if there is none."""
        first: dict[str, Event] = {}
        for event in sound(effects(self.state, EPOCH_MS + self.now_ms)):
            first.setdefault(event.subject(), event)
        self.append(*first.values())
        return bool(first)

    def act(self) -> list[Event]:
        """Appends until nothing is called for, and returns what that was."""
        known = len(self.log)
        while self.act_once():
            assert len(self.log) - known < 10_000
        return self.log[known:]

    def restart(self) -> None:
        """Loses everything but the log and the stream, and recovers from them."""
        self.state = State(self.state.timing)
        for seq, event in enumerate(self.log, start=1):
            evolve(self.state, Entry(seq, EPOCH_MS, event))
        self.read_again(read_from_ms(self.state))

    def reconnect(self) -> None:
        """The bus was away and came back: what was read last is read once more."""
        lose_sight(self.state)
        self.read_again(read_from_ms(self.state))

    def read_again(self, from_ms: int) -> None:
        for at_ms, one in self.stream:
            if at_ms >= from_ms and one is not None:
                observe_beat(self.state, one, at_ms, self.now_ms)
            elif at_ms >= from_ms:
                observe_time(self.state, at_ms)

    def covered(self) -> list[CoverSpan]:
        """All that is recorded, with the instants counted from `EPOCH_MS`."""
        spans = [one for event in self.log if isinstance(event, BeatsCovered) for one in event.spans]
        return [span(one.lease, one.from_ms - EPOCH_MS, one.to_ms - EPOCH_MS, one.generation) for one in spans]

    def complete_to_ms(self) -> int:
        """The recorded watermark, counted from `EPOCH_MS`."""
        return self.state.cover.complete_to_ms - EPOCH_MS


def watching(*nodes: str) -> Monitor:
    """A monitor in sight of these nodes, each alive by its first beat at 0."""
    monitor = Monitor()
    monitor.probe()
    monitor.hear(*(beat(1, node=node) for node in nodes))
    monitor.act()
    return monitor


def wait(monitor: Monitor, ms: int, *beating: str, first: int = 2) -> list[NodeEvent]:
    """Time passes, with the probes and these nodes' beats in it; returns what the monitor said of nodes."""
    known, sequence = len(monitor.log), first
    for _ in range(ms // 100):
        monitor.now_ms += 100
        if monitor.now_ms % BEAT_MS == 0:
            monitor.hear(*(beat(sequence, node=node) for node in beating))
            sequence += 1
        monitor.probe()
        monitor.act()
    return [event for event in monitor.log[known:] if isinstance(event, NodeEvent)]


def kinds(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(type(event).__name__, event.node) for event in events if isinstance(event, NodeEvent)]


def leasing(*leases: tuple[str, str]) -> Monitor:
    monitor = Monitor()
    monitor.append(granted("j1", *(leases or (("j1-1", "n1"),))))
    return monitor


def beats(monitor: Monitor, *at_ms: int, first: int = 1, node: str = "n1", incarnation: str = "i1") -> None:
    """Running beats at these instants."""
    for sequence, instant_ms in enumerate(at_ms, start=first):
        monitor.now_ms = instant_ms
        monitor.hear(beat(sequence, node=node, incarnation=incarnation, running=[LEASE]))


def recorded_by(monitor: Monitor, at_ms: int) -> list[CoverSpan]:
    """Probes move the time read to `at_ms`; returns all that is recorded by then."""
    monitor.now_ms = at_ms
    monitor.probe()
    monitor.act()
    return monitor.covered()
