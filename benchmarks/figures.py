"""Percentiles, and how they are printed."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` per cent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, minimum, median, 99th percentile and maximum, rounded to a thousandth."""
    return {
        "n": len(values),
        "min": round(min(values), 3),
        "p50": round(percentile(values, 50), 3),
        "p99": round(percentile(values, 99), 3),
        "max": round(max(values), 3),
    }
