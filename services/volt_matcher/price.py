"""What a gang costs: the highest ask among its own nodes, for all of them, and never above the cap.

All amounts are gross micro-dollars per GPU-hour. No other job's trade enters, so none can move the price.
"""

from collections.abc import Iterable


def is_affordable(ask_microusd: int, cap_microusd: int | None) -> bool:
    """Whether a node asks at most the cap; no cap takes every ask."""
    return cap_microusd is None or ask_microusd <= cap_microusd


def gang_price_microusd(asks_microusd: Iterable[int]) -> int:
    """The price of a gang whose nodes ask this much."""
    return max(asks_microusd)
