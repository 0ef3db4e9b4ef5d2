"""Why L is as long as it is: with any of its terms left out, a replacement starts while the lost node still runs.

The monitor is the real one, reading its probes back at once, which is the soonest that it can ever lose anybody. The
node is a model: a shim that looks at a slow clock once a tick, and then takes a while to stop what it fences.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import pytest

from tests.unit.health_monitor.builders import Monitor, beat
from volt.contracts.nodes import NodeLost
from volt.contracts.timing import DRIFT_BASIS_POINTS, FREEZE_MS, PROFILES, WATCHDOG_TICK_MS, ProfileName, Timing

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Shim:
    """What a node really does, on the monitor's clock."""

    fence_after_ms: int
    drift_basis_points: int = DRIFT_BASIS_POINTS
    tick_ms: int = WATCHDOG_TICK_MS
    freeze_ms: int = FREEZE_MS

    def stops_ns(self) -> Iterator[int]:
        """When what it ran has stopped, counted from its last acknowledged beat, for each phase of its ticks."""
        due_ns = self.fence_after_ms * NS_PER_MS * (10_000 + self.drift_basis_points) // 10_000
        for phase_ms in range(self.tick_ms):
            looks_ns = phase_ms * NS_PER_MS
            yield due_ns + (looks_ns - due_ns) % (self.tick_ms * NS_PER_MS) + self.freeze_ms * NS_PER_MS
        yield due_ns + self.tick_ms * NS_PER_MS + self.freeze_ms * NS_PER_MS  # It just missed its deadline.


def lost_ns(timing: Timing) -> int:
    """When the node is called lost at the soonest, counted from its last beat; its replacement may start then."""
    monitor = Monitor(timing)
    monitor.probe()
    monitor.hear(beat(1))
    monitor.act()
    first_ms = timing.lost_after_ms - 3
    while True:
        monitor.now_ms += timing.tick_ms if monitor.now_ms < first_ms - timing.tick_ms else 1
        monitor.probe()
        if any(isinstance(event, NodeLost) for event in monitor.act()):
            return monitor.now_ms * NS_PER_MS


def tightest(profile: Timing) -> Timing:
    """The profile with the shortest safe L."""
    return next(
        shorter
        for lost_after_ms in range(profile.fence_after_ms, profile.lost_after_ms + 1)
        if (shorter := msgspec.structs.replace(profile, lost_after_ms=lost_after_ms)).is_safe()
    )


@pytest.mark.parametrize("name", list(PROFILES))
def test_a_node_has_stopped_in_every_phase_of_its_ticks_before_its_replacement_starts(name: ProfileName) -> None:
    for timing in (PROFILES[name], tightest(PROFILES[name]), PROFILES[name].at_level(3)):
        assert max(Shim(timing.fence_after_ms).stops_ns()) <= lost_ns(timing)


@pytest.mark.parametrize("name", list(PROFILES))
@pytest.mark.parametrize(
    ("term", "more"), [("fence_after_ms", 1), ("drift_basis_points", 10), ("tick_ms", 1), ("freeze_ms", 1)]
)
def test_a_node_that_takes_longer_in_any_term_runs_beside_its_replacement(
    name: ProfileName, term: str, more: int
) -> None:
    timing = tightest(PROFILES[name])
    shim = Shim(timing.fence_after_ms)
    slower = replace(shim, **{term: getattr(shim, term) + more})
    assert max(slower.stops_ns()) > lost_ns(timing)


@pytest.mark.parametrize("name", list(PROFILES))
@pytest.mark.parametrize("term", ["drift", "tick", "freeze"])
def test_an_l_that_leaves_a_term_out_starts_two_generations_at_once(name: ProfileName, term: str) -> None:
    timing = tightest(PROFILES[name])
    drift_ms = timing.lost_after_ms - timing.fence_after_ms - WATCHDOG_TICK_MS - FREEZE_MS
    left_out_ms = {"drift": drift_ms, "tick": WATCHDOG_TICK_MS, "freeze": FREEZE_MS}[term]
    short = msgspec.structs.replace(timing, lost_after_ms=timing.lost_after_ms - left_out_ms)
    assert not short.is_safe()
    assert max(Shim(timing.fence_after_ms).stops_ns()) > lost_ns(short)
