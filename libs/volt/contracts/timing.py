"""How long is too long: every constant of liveness and recovery, in one place.

A node that hears no acknowledgement fences itself after F; the monitor calls it lost after L. The order in which
the two happen is what keeps one GPU from running two generations:

    L >= F x (1 + drift) + watchdog tick + freeze time
"""

from typing import Literal

from volt.contracts.messages import Value

ProfileName = Literal["embedded", "served"]

WATCHDOG_TICK_MS = 100
FREEZE_MS = 200
"""How long a shim may take from its deadline until what it fences no longer runs."""
DRIFT_BASIS_POINTS = 10
FINAL_STORE_MS_MAX = 60_000
"""For how long the end of a generation that is ended on purpose waits for its members' last checkpoint."""


class Timing(Value, frozen=True, kw_only=True):
    """One profile's periods, in milliseconds."""

    beat_ms: int
    fence_after_ms: int
    lost_after_ms: int
    tick_ms: int
    prepare_ms_max: int
    start_ms_max: int
    stop_grace_ms: int
    replace_ms_max: int
    cover_flush_ms: int

    @property
    def cover_gap_ms(self) -> int:
        """The furthest apart that two beats may be and still cover what lies between."""
        return self.fence_after_ms

    def is_safe(self) -> bool:
        """Whether a node has surely stopped its work before anybody calls it lost."""
        drift_ms = -(-self.fence_after_ms * DRIFT_BASIS_POINTS // 10_000)
        return self.lost_after_ms >= self.fence_after_ms + drift_ms + WATCHDOG_TICK_MS + FREEZE_MS


EMBEDDED = Timing(
    beat_ms=500,
    fence_after_ms=2_000,
    lost_after_ms=2_500,
    tick_ms=100,
    prepare_ms_max=60_000,
    start_ms_max=60_000,
    stop_grace_ms=1_000,
    replace_ms_max=600_000,
    cover_flush_ms=1_000,
)
SERVED = Timing(
    beat_ms=5_000,
    fence_after_ms=15_000,
    lost_after_ms=20_000,
    tick_ms=250,
    prepare_ms_max=1_800_000,
    start_ms_max=300_000,
    stop_grace_ms=10_000,
    replace_ms_max=3_600_000,
    cover_flush_ms=10_000,
)
PROFILES: dict[ProfileName, Timing] = {"embedded": EMBEDDED, "served": SERVED}
assert all(profile.is_safe() for profile in PROFILES.values()), "a node may run on when it is called lost"
