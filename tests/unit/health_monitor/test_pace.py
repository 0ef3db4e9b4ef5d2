"""How often agents beat follows the size of the fleet, and at every instant L and cover go by what each beat states."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.effects import sound
from tests.unit.health_monitor.builders import BEAT_MS, EPOCH_MS, GAP_MS, LEASE, LOST_MS, Monitor, beat, kinds, leasing
from volt.contracts.fleet import Pace, PaceSet
from volt.contracts.nodes import Heartbeat, NodeLost
from volt.contracts.streams import DESIRED
from volt.contracts.subjects import DESIRED_FLEET
from volt.contracts.timing import (
    BEATS_PER_SECOND_MAX,
    DRIFT_BASIS_POINTS,
    EMBEDDED,
    FREEZE_MS,
    PACE_LEVEL_MAX,
    PROFILES,
    WATCHDOG_TICK_MS,
)
from volt.runtime.engine import Publication
from volt_health_monitor.domain import beat_problem
from volt_health_monitor.effects import effects, publications
from volt_health_monitor.pace import wanted_level

SLOW = EMBEDDED.at_level(1)
FULL = BEATS_PER_SECOND_MAX * EMBEDDED.beat_ms // 1_000
"""So many nodes beat as often as the stream is to take."""


def stating(sequence: int, level: int, node: str = "n1") -> Heartbeat:
    fence_after_ms = EMBEDDED.at_level(level).fence_after_ms
    return replace(beat(sequence, node=node, running=[LEASE]), fence_after_ms=fence_after_ms)


def test_a_fleet_within_the_bound_is_told_nothing() -> None:
    monitor = Monitor()
    monitor.probe()
    monitor.hear(*(beat(1, node=f"n{number}") for number in range(FULL)))

    monitor.act()

    assert not [event for event in monitor.log if isinstance(event, PaceSet)]
    assert publications(monitor.state) == ()


def test_a_fleet_that_outgrows_the_bound_beats_half_as_often_and_every_agent_can_read_it() -> None:
    monitor = Monitor()
    monitor.probe()
    monitor.hear(*(beat(1, node=f"n{number}") for number in range(FULL + 1)))

    first, *_ = sound(effects(monitor.state, EPOCH_MS))
    assert first == PaceSet(level=1, nodes=FULL + 1, at_ms=EPOCH_MS)
    monitor.append(first)

    pace = Pace(beat_ms=SLOW.beat_ms, fence_after_ms=SLOW.fence_after_ms)
    (published,) = publications(monitor.state)
    assert isinstance(published, Publication)
    assert (published.stream, published.subject) == (DESIRED.name, DESIRED_FLEET)
    assert pace.is_of(EMBEDDED)
    assert published.data.decode().endswith(f'"beat_ms":{pace.beat_ms},"fence_after_ms":{pace.fence_after_ms}}}')


@given(nodes=st.integers(0, 1_000_000), level=st.integers(0, PACE_LEVEL_MAX))
def test_the_pace_comes_to_rest_and_keeps_the_stream_under_its_bound(nodes: int, level: int) -> None:
    for profile in PROFILES.values():
        for _ in range(PACE_LEVEL_MAX + 1):
            level = wanted_level(profile, level, nodes)
        assert wanted_level(profile, level, nodes) == level
        per_second = nodes * 1_000 / profile.at_level(level).beat_ms
        assert per_second <= BEATS_PER_SECOND_MAX or level == PACE_LEVEL_MAX


@given(level=st.integers(0, PACE_LEVEL_MAX - 1), fewer_percent=st.integers(0, 25))
def test_a_fleet_about_the_bound_does_not_change_its_pace_to_and_fro(level: int, fewer_percent: int) -> None:
    nodes = BEATS_PER_SECOND_MAX * EMBEDDED.at_level(level).beat_ms // 1_000 + 1
    slower = wanted_level(EMBEDDED, level, nodes)
    assert slower == level + 1
    assert wanted_level(EMBEDDED, slower, nodes * (100 - fewer_percent) // 100) == slower


def test_a_node_is_judged_by_what_its_own_last_beat_states() -> None:
    """Neither by what it is told, of which it may not have heard, nor by what others do."""
    monitor = Monitor()
    monitor.probe()
    monitor.hear(stating(1, 0, "n1"), stating(1, 1, "n2"))
    monitor.act()

    lost_ms: dict[str, int] = {}
    while len(lost_ms) < 2 and monitor.now_ms < 60_000:
        monitor.now_ms += 100
        monitor.probe()
        lost_ms |= {event.node: monitor.now_ms for event in monitor.act() if isinstance(event, NodeLost)}

    assert lost_ms["n1"] == LOST_MS
    assert SLOW.lost_after_ms <= lost_ms["n2"] < SLOW.lost_after_ms + 100


@given(st.lists(st.tuples(st.integers(0, PACE_LEVEL_MAX), st.integers(1, 60), st.booleans()), max_size=12))
def test_at_every_instant_l_is_longer_than_a_node_can_run_on_whatever_pace_it_was_told_when(
    told: list[tuple[int, int, bool]],
) -> None:
    """An agent as the beat process is, which hears of paces late or never: it keeps what it promised its workloads."""
    monitor = Monitor()
    monitor.probe()
    good_until_ms = lost_at_ms = 0
    stopped_ms = 0.0
    for sequence, (level, ticks, is_acknowledged) in enumerate([(0, 1, True), *told], start=1):
        pace = EMBEDDED.at_level(level)
        fence_after_ms = max(pace.fence_after_ms, good_until_ms - monitor.now_ms)
        monitor.hear(replace(beat(sequence), fence_after_ms=fence_after_ms))
        if is_acknowledged:
            good_until_ms = monitor.now_ms + fence_after_ms
            slowest_ms = fence_after_ms * (10_000 + DRIFT_BASIS_POINTS) / 10_000
            stopped_ms = max(stopped_ms, monitor.now_ms + slowest_ms + WATCHDOG_TICK_MS + FREEZE_MS)
        for _ in range(ticks):
            monitor.now_ms += 100
            monitor.probe()
            if any(isinstance(event, NodeLost) for event in monitor.act()):
                lost_at_ms = monitor.now_ms
                break
        if lost_at_ms:
            break
    assert not lost_at_ms or lost_at_ms >= stopped_ms


def test_cover_reaches_as_far_as_the_first_of_two_beats_is_good() -> None:
    for level in (0, 1):
        gap_ms = EMBEDDED.at_level(level).cover_gap_ms
        for apart_ms, is_covered in ((gap_ms, True), (gap_ms + 1, False)):
            monitor = leasing()
            monitor.hear(stating(1, level))
            monitor.now_ms = apart_ms
            monitor.hear(stating(2, 1 - level))
            monitor.now_ms += 20_000
            monitor.probe()
            monitor.act()
            assert bool(monitor.covered()) == is_covered


def test_the_watermark_waits_for_the_slowest_that_holds_a_lease() -> None:
    monitor = leasing()
    monitor.hear(stating(1, 1))
    monitor.now_ms = SLOW.cover_gap_ms

    monitor.probe()
    monitor.act()

    assert monitor.complete_to_ms() <= 0 < SLOW.cover_gap_ms - GAP_MS


def test_a_beat_that_states_what_no_pace_allows_is_refused() -> None:
    slowest_ms = EMBEDDED.at_level(PACE_LEVEL_MAX).fence_after_ms
    for fence_after_ms, is_fine in (
        (0, True),
        (EMBEDDED.fence_after_ms, True),
        (EMBEDDED.fence_after_ms - 1, False),
        (slowest_ms, True),
        (slowest_ms + 1, False),
        (-1, False),
    ):
        problem = beat_problem(EMBEDDED, replace(beat(1), fence_after_ms=fence_after_ms))
        assert (problem is None) == is_fine
    assert not Pace(beat_ms=BEAT_MS, fence_after_ms=10**9).is_of(EMBEDDED)


def test_a_monitor_that_restarts_keeps_the_pace_that_the_log_has() -> None:
    monitor = leasing()
    monitor.append(PaceSet(level=2, nodes=5_000, at_ms=EPOCH_MS))
    monitor.restart()
    assert monitor.state.pace == EMBEDDED.at_level(2)
    assert kinds(monitor.log) == []
