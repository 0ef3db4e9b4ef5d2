"""How often agents beat: the larger the fleet, the more seldom, so that the beat stream keeps up.

A beat states how long its node runs on from it, and the node's L follows from that, so an agent may change its pace at
any time, or never hear of it: it is judged by what it last said. Cover goes by the same: two beats cover what lies
between them if the second comes before the first is no longer good.
"""

from volt.contracts.nodes import Heartbeat
from volt.contracts.timing import BEATS_PER_SECOND_MAX, FASTER_BELOW_PERMILLE, PACE_LEVEL_MAX, Timing
from volt.contracts.units import MS_PER_SECOND


def wanted_level(timing: Timing, level: int, nodes: int) -> int:
    """The level for so many nodes that beat at this one now. Slower at once, faster by one level and with a margin."""
    slower = next((one for one in range(level, PACE_LEVEL_MAX) if _fits(timing, one, nodes, 1_000)), PACE_LEVEL_MAX)
    if slower > level:
        return slower
    return level - 1 if level and _fits(timing, level - 1, nodes, FASTER_BELOW_PERMILLE) else level


def stated_fence_ms(timing: Timing, beat: Heartbeat) -> int:
    """How long the beat is good for."""
    return beat.fence_after_ms or timing.fence_after_ms


def fence_problem(timing: Timing, fence_after_ms: int) -> str | None:
    """What is wrong with what a beat states; None if nothing is."""
    longest_ms = timing.at_level(PACE_LEVEL_MAX).fence_after_ms
    if fence_after_ms and not timing.fence_after_ms <= fence_after_ms <= longest_ms:
        return f"fence_after_ms is {fence_after_ms}; from {timing.fence_after_ms} to {longest_ms}, or 0"
    return None


def _fits(timing: Timing, level: int, nodes: int, permille: int) -> bool:
    """Whether so many nodes at this level send no more than this share of what the beat stream is to take."""
    return nodes * MS_PER_SECOND * 1_000 <= BEATS_PER_SECOND_MAX * permille * timing.at_level(level).beat_ms
