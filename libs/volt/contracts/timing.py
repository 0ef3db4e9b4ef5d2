"""How long is too long: every constant of liveness and recovery, in one place.

A node that hears no acknowledgement fences itself after F; the monitor calls it lost after L. The order in which
the two happen is what keeps one GPU from running two generations:

    L >= F x (1 + drift) + watchdog tick + freeze time
"""

from typing import Literal

from msgspec.structs import replace

from volt.contracts.messages import Value

ProfileName = Literal["embedded", "served"]

WATCHDOG_TICK_MS = 100
FREEZE_MS = 200
"""How long a shim may take from its deadline until what it fences no longer runs."""
DRIFT_BASIS_POINTS = 10
FINAL_STORE_MS_MAX = 60_000
"""For how long the end of a generation that is ended on purpose waits for its members' last checkpoint."""


PACE_LEVEL_MAX = 4
BEATS_PER_SECOND_MAX = 1_000
"""As many beats as the fleet may send before it is told to beat half as often."""
FASTER_BELOW_PERMILLE = 700
"""Of that: with fewer, at the pace of one level below, it is told to beat twice as often again."""


class Timing(Value, frozen=True, kw_only=True):
    """One profile's periods, in milliseconds."""

    beat_ms: int
    fence_after_ms: int
    lost_after_ms: int
    frozen_ms_max: int
    """How long a workload may stand still until it is given up."""
    tick_ms: int
    prepare_ms_max: int
    start_ms_max: int
    stop_grace_ms: int
    replace_ms_max: int
    cover_flush_ms: int
    brake_ms_min: int = 60_000
    """How long the monitor's own probes have to come back without a break before held losses are judged."""
    first_beat_ms_max: int = 60_000
    """How long after its bid a node may take to beat for the first time."""

    @property
    def cover_gap_ms(self) -> int:
        """The furthest apart that two beats may be and still cover what lies between."""
        return self.fence_after_ms

    def is_safe(self) -> bool:
        """Whether a node has surely stopped its work before anybody calls it lost."""
        slowest_ms = self.fence_after_ms + _drift_ms(self.fence_after_ms)
        return self.lost_after_ms >= slowest_ms + WATCHDOG_TICK_MS + FREEZE_MS

    def at_level(self, level: int) -> "Timing":
        """These periods for a fleet of this level: beats half as often as one level below, and L as safe as here."""
        fence_after_ms = self.fence_after_ms << level
        return replace(
            self,
            beat_ms=self.beat_ms << level,
            fence_after_ms=fence_after_ms,
            lost_after_ms=self.lost_after_fence(fence_after_ms),
        )

    def lost_after_fence(self, fence_after_ms: int) -> int:
        """The L of a node that runs on for so long from its last beat, as safe as that of the profile's own F."""
        longer_ms = fence_after_ms - self.fence_after_ms
        return self.lost_after_ms + longer_ms + _drift_ms(longer_ms) if longer_ms > 0 else self.lost_after_ms


def _drift_ms(counted_ms: int) -> int:
    """By how much the slowest clock is late when it has counted so long, rounded up."""
    return -(-counted_ms * DRIFT_BASIS_POINTS // 10_000)


EMBEDDED = Timing(
    beat_ms=500,
    fence_after_ms=2_000,
    lost_after_ms=2_500,
    frozen_ms_max=60_000,
    tick_ms=100,
    prepare_ms_max=60_000,
    start_ms_max=60_000,
    stop_grace_ms=1_000,
    replace_ms_max=600_000,
    cover_flush_ms=1_000,
    brake_ms_min=10_000,
    first_beat_ms_max=30_000,
)
SERVED = Timing(
    beat_ms=5_000,
    fence_after_ms=15_000,
    lost_after_ms=20_000,
    frozen_ms_max=600_000,
    tick_ms=250,
    prepare_ms_max=1_800_000,
    start_ms_max=300_000,
    stop_grace_ms=10_000,
    replace_ms_max=3_600_000,
    cover_flush_ms=10_000,
)
PROFILES: dict[ProfileName, Timing] = {"embedded": EMBEDDED, "served": SERVED}
assert all(profile.is_safe() for profile in PROFILES.values()), "a node may run on when it is called lost"
