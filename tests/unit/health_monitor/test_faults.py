"""What the log says of a GPU's fault, by its class, and when it says that the GPU is well again."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.health_monitor.builders import LEASE, Monitor, beat, watching
from volt.contracts.faults import ALONE_MS, BY_CODE, ECC_UNCORRECTED_MIN, FaultClass, is_aftermath, is_hardware
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt.contracts.nodes import (
    GpuFaulted,
    GpuQuarantined,
    Heartbeat,
    LeaseBeat,
    NodeAlive,
    NodeEvent,
    NodeQuarantined,
    QuarantineEnded,
)
from volt.contracts.telemetry import AGE_MS_MAX, COUNT_MAX, READINGS_PER_BEAT_MAX, XIDS_PER_BEAT_MAX, GpuReading, Xid
from volt.contracts.timing import EMBEDDED
from volt.contracts.units import MS_PER_HOUR
from volt_health_monitor.domain import LEASES_PER_BEAT_MAX, beat_problem
from volt_health_monitor.faults import EVENTS_PER_HOUR_MAX, QUARANTINES_MAX, QUARANTINES_WINDOW_MS, RECORD_MS_MIN

GPU, OTHER = "GPU-3", "GPU-4"
CLASSES: dict[FaultClass, type[NodeEvent] | None] = {
    "ignore": None,
    "restart_workload": GpuFaulted,
    "quarantine_gpu": GpuQuarantined,
    "quarantine_node": NodeQuarantined,
}


class Node:
    """A node under a monitor, that beats when it is told to. `xids` number themselves."""

    def __init__(self) -> None:
        self.monitor: Monitor = watching("n1")
        self.incarnation, self._sequence, self._number = "i1", 1, 0

    def tells(
        self,
        *codes: int,
        gpu: str = GPU,
        readings: Sequence[GpuReading] = (),
        running: bool = False,
        age_ms: int = 0,
    ) -> list[NodeEvent]:
        """One beat, and what the log says of it."""
        xids = [
            Xid(number=self._number + place, gpu=gpu, code=code, age_ms=age_ms) for place, code in enumerate(codes, 1)
        ]
        self._number += len(codes)
        self._sequence += 1
        self.last = beat(
            self._sequence,
            incarnation=self.incarnation,
            running=[LEASE] if running else [],
            gpus=readings,
            xids=xids,
        )
        self.monitor.hear(self.last)
        return said(self.monitor)

    def passes(self, ms: int) -> list[NodeEvent]:
        """Time, with a beat at the end of it."""
        self.monitor.now_ms += ms
        events = self.tells()
        self.monitor.probe()
        return events + said(self.monitor)

    def begins_again(self, *readings: GpuReading) -> list[NodeEvent]:
        """Its agent starts afresh and reads its GPUs."""
        self.incarnation += "x"
        self._sequence, self._number = 0, 0
        return self.tells(readings=readings)


def said(monitor: Monitor) -> list[NodeEvent]:
    return [event for event in monitor.act() if isinstance(event, NodeEvent)]


def quarantined(monitor: Monitor) -> set[str]:
    gpus: set[str] = set()
    for event in monitor.log:
        if isinstance(event, GpuQuarantined | NodeQuarantined):
            gpus |= set(event.gpus)
        elif isinstance(event, QuarantineEnded):
            gpus -= set(event.gpus)
    return gpus


@pytest.mark.parametrize("code", [code for code in BY_CODE if not is_aftermath(code)])
def test_an_xid_is_answered_by_its_class(code: int) -> None:
    events = Node().tells(code)
    expected = CLASSES[BY_CODE[code].fault_class]
    assert [type(event) for event in events] == ([expected] if expected else [])
    for event in events:
        assert isinstance(event, GpuFaulted | GpuQuarantined | NodeQuarantined)
        assert (event.gpus, event.fault.xid, event.fault.name) == ((GPU,), code, BY_CODE[code].name)
        assert event.reliability_permille < 1_000


@pytest.mark.parametrize("code", [1, 13, 31, 32, 63, 68, 69, 999])
def test_what_is_the_buyers_doing_or_unknown_counts_against_nobody(code: int) -> None:
    node = Node()
    assert node.tells(code, running=True) == []
    assert node.passes(2 * ALONE_MS) == []
    assert node.monitor.state.records.permille(next(iter(node.monitor.state.nodes)), 10**13) == 1_000
    assert not is_hardware(code)


@pytest.mark.parametrize("code", [45, 43])
def test_an_xid_of_a_teardown_says_nothing(code: int) -> None:
    """Reported as NVSentinel PR#1629: 77 healthy nodes were quarantined for XID 45."""
    node = Node()
    node.tells(running=True)
    node.monitor.now_ms += 500
    assert node.tells(code, running=True) == [], "the lease's end may be in the next beat"
    node.monitor.now_ms += 500
    assert node.tells() == []
    assert node.passes(2 * ALONE_MS) == []
    assert not quarantined(node.monitor)


@pytest.mark.parametrize("code", [45, 43])
def test_an_xid_that_follows_from_another_says_nothing(code: int) -> None:
    node = Node()
    assert [type(event) for event in node.tells(48, code)] == [GpuQuarantined]
    assert node.passes(2 * ALONE_MS) == []
    assert node.tells(13, code, gpu=OTHER) == []
    assert node.passes(2 * ALONE_MS) == []


def test_an_xid_45_that_stands_alone_is_recorded_and_three_within_an_hour_take_the_gpu_off_the_market() -> None:
    node, told = Node(), []
    for _ in range(3):
        assert node.tells(45, running=True) == []
        node.monitor.now_ms += ALONE_MS + 1
        told += node.tells(running=True)
        node.monitor.now_ms += RECORD_MS_MIN
        node.tells(running=True)
    assert [type(event) for event in told] == [GpuFaulted, GpuFaulted, GpuQuarantined]


@pytest.mark.parametrize("code", [code for code, line in BY_CODE.items() if line.repeats and not line.is_aftermath])
def test_repeats_count_only_within_their_window(code: int) -> None:
    repeats = BY_CODE[code].repeats
    assert repeats is not None
    node = Node()
    for _ in range(repeats.times + 2):
        node.monitor.now_ms += repeats.window_ms // (repeats.times - 1) + 1
        assert [type(event) for event in node.tells(code)] == [GpuFaulted]
    node.monitor.now_ms += RECORD_MS_MIN
    assert [type(event) for event in node.tells(code, gpu=OTHER)] == [GpuFaulted], "another GPU counts for itself"
    assert [type(event) for event in node.tells(code)] == [GpuQuarantined]


def test_an_xid_that_keeps_coming_is_recorded_once_a_minute() -> None:
    node = Node()
    assert len(node.tells(8, 8, 8, 8)) == 1
    assert node.tells(8) == []
    node.monitor.now_ms += RECORD_MS_MIN
    assert len(node.tells(8)) == 1


def test_an_xid_is_counted_once_however_often_it_is_told_or_read() -> None:
    node = Node()
    assert len(node.tells(94)) == 1
    repeated = beat(99, xids=node.last.xids)
    node.monitor.hear(repeated)
    assert said(node.monitor) == []
    assert [len(signs.seen) for signs in node.monitor.state.beats.signs.values()] == [1]
    node.monitor.restart()
    node.monitor.probe()
    node.monitor.probe()
    assert said(node.monitor) == []


def test_a_restarted_monitor_still_answers_what_nobody_has_answered() -> None:
    node = Node()
    node.monitor.hear(beat(2, xids=[Xid(number=1, gpu=GPU, code=48, age_ms=0)]))
    node.monitor.restart()
    node.monitor.probe()
    node.monitor.probe()
    assert [type(event) for event in said(node.monitor)] == [GpuQuarantined]


SICK = [
    (GpuReading(gpu=GPU, vanished=True), "vanished", NodeQuarantined),
    (GpuReading(gpu=GPU, remap_failed=True), "remap_failed", GpuQuarantined),
    (GpuReading(gpu=GPU, ecc_uncorrected=ECC_UNCORRECTED_MIN), "ecc_uncorrected", GpuQuarantined),
]


@pytest.mark.parametrize(("reading", "kind", "expected"), SICK)
def test_what_a_reading_shows_is_answered_once(reading: GpuReading, kind: str, expected: type[NodeEvent]) -> None:
    """A vanished GPU was noticed only at the next start: akash support#137 and #249."""
    node = Node()
    events = node.tells(readings=[GpuReading(gpu=OTHER), reading])
    assert [type(event) for event in events] == [expected]
    assert isinstance(events[0], GpuQuarantined | NodeQuarantined)
    assert (events[0].gpus, events[0].fault.kind) == ((GPU,), kind)
    assert node.tells(readings=[GpuReading(gpu=OTHER), reading]) == []


@pytest.mark.parametrize(
    "reading",
    [
        GpuReading(gpu=GPU, ecc_uncorrected=ECC_UNCORRECTED_MIN - 1),
        GpuReading(gpu=GPU, remap_pending=True),
        GpuReading(gpu=GPU, ecc_corrected=10**6, temperature_celsius=95, nvlinks_down=18),
    ],
)
def test_what_the_driver_has_dealt_with_quarantines_nothing(reading: GpuReading) -> None:
    assert Node().tells(readings=[reading]) == []


def test_a_quarantined_gpu_that_vanishes_closes_its_node_too() -> None:
    node = Node()
    assert [type(event) for event in node.tells(48)] == [GpuQuarantined]
    assert [type(event) for event in node.tells(readings=[GpuReading(gpu=GPU, vanished=True)])] == [NodeQuarantined]


def test_two_gpus_that_vanish_at_once_are_one_event() -> None:
    node = Node()
    events = node.tells(readings=[GpuReading(gpu=gpu, vanished=True) for gpu in (GPU, OTHER)])
    assert [event.gpus for event in events if isinstance(event, NodeQuarantined)] == [(GPU, OTHER)]


def test_a_quarantine_ends_by_a_clean_reading_of_a_later_incarnation_only() -> None:
    node = Node()
    node.tells(48)
    assert node.tells(readings=[GpuReading(gpu=GPU)]) == [], "the incarnation that saw it break"
    assert [type(event) for event in node.begins_again(GpuReading(gpu=OTHER))] == [NodeAlive], "it is not there"
    assert [type(event) for event in node.begins_again(GpuReading(gpu=GPU, ecc_uncorrected=1))] == [NodeAlive]
    assert quarantined(node.monitor) == {GPU}
    assert [type(event) for event in node.begins_again(GpuReading(gpu=GPU))] == [NodeAlive, QuarantineEnded]
    assert not quarantined(node.monitor)


def test_a_node_without_a_driver_clears_nothing_and_has_no_faults() -> None:
    node = Node()
    node.tells(48)
    assert [type(event) for event in node.begins_again()] == [NodeAlive]
    assert quarantined(node.monitor) == {GPU}


def test_a_gpu_that_comes_back_again_and_again_stays_away_for_a_week() -> None:
    node = Node()
    for _ in range(QUARANTINES_MAX):
        node.monitor.now_ms += MS_PER_HOUR
        node.tells(48)
        node.begins_again(GpuReading(gpu=GPU))
    assert quarantined(node.monitor) == {GPU}
    node.monitor.now_ms += QUARANTINES_WINDOW_MS
    assert any(isinstance(event, QuarantineEnded) for event in node.begins_again(GpuReading(gpu=GPU)))


def test_an_agent_that_makes_up_faults_fills_no_log() -> None:
    node = Node()
    for number in range(3 * EVENTS_PER_HOUR_MAX):
        node.monitor.now_ms += 100
        node.tells(48, gpu=f"GPU-{number}")
    faults = [event for event in node.monitor.log if isinstance(event, GpuQuarantined)]
    assert len(faults) == EVENTS_PER_HOUR_MAX


def test_the_largest_beat_fits_and_one_that_is_larger_is_refused() -> None:
    uuid = "GPU-" + "0" * 36
    reading = GpuReading(
        gpu=uuid,
        utilization_percent=100,
        memory_used_bytes=COUNT_MAX,
        temperature_celsius=1_000,
        power_milliwatts=COUNT_MAX,
        ecc_corrected=COUNT_MAX,
        ecc_uncorrected=COUNT_MAX,
        remap_pending=True,
        remap_failed=True,
        nvlinks_up=64,
        nvlinks_down=64,
    )
    xid = Xid(number=COUNT_MAX, gpu=uuid, code=1_000_000, age_ms=AGE_MS_MAX)
    lease = LeaseBeat(lease="l" * 64, generation=10**9, state="prepared", step=10**15, stored=10**15)
    largest = Heartbeat(
        account="a" * 64,
        node="n" * 64,
        incarnation="i" * 64,
        sequence=2**63,
        leases=(lease,) * LEASES_PER_BEAT_MAX,
        gpus=(reading,) * READINGS_PER_BEAT_MAX,
        xids=(xid,) * XIDS_PER_BEAT_MAX,
    )
    assert beat_problem(EMBEDDED, largest) is None
    assert len(encode(largest)) < MESSAGE_BYTES_MAX // 8
    assert beat_problem(EMBEDDED, beat(1, gpus=(reading,) * (READINGS_PER_BEAT_MAX + 1))) is not None
    assert beat_problem(EMBEDDED, beat(1, xids=(xid,) * (XIDS_PER_BEAT_MAX + 1))) is not None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["xid", "reading", "again", "wait", "restart", "lease"]),
        st.sampled_from([8, 13, 45, 48, 79, 94]),
        st.sampled_from([GPU, OTHER]),
        st.booleans(),
    ),
    max_size=30,
)


@given(STEPS)
@settings(deadline=None)
def test_whatever_the_beats_tell_the_log_can_be_folded_and_comes_to_rest(
    steps: list[tuple[str, int, str, bool]],
) -> None:
    """Invariant: no event repeats what the log says; a GPU is quarantined once at a time."""
    node = Node()
    for what, code, gpu, flag in steps:
        match what:
            case "xid":
                node.tells(code, gpu=gpu)
            case "reading":
                node.tells(readings=[GpuReading(gpu=gpu, vanished=flag)])
            case "again":
                node.begins_again(GpuReading(gpu=gpu), GpuReading(gpu="GPU-9"))
            case "wait":
                node.passes(ALONE_MS + 1)
            case "restart":
                node.monitor.restart()
                node.monitor.probe()
            case _:
                node.tells(running=flag)
    off: dict[str, bool] = {}
    for event in node.monitor.log:
        match event:
            case GpuQuarantined(gpus=gpus):
                assert not off.keys() & set(gpus)
                off |= dict.fromkeys(gpus, False)
            case NodeQuarantined(gpus=gpus):
                assert not any(off.get(one) for one in gpus)
                off |= dict.fromkeys(gpus, True)
            case QuarantineEnded(gpus=gpus):
                assert off.keys() >= set(gpus)
                off = {one: closes for one, closes in off.items() if one not in gpus}
            case _:
                pass
