"""Money, time and sizes as people write them, parsed strictly or refused.

Money is integer micro-dollars inside and a decimal string outside. Nothing here ever makes a float.
"""

import re
from decimal import ROUND_HALF_EVEN, Decimal

MICROUSD_PER_USD = 1_000_000
MS_PER_SECOND = 1_000
MS_PER_HOUR = 3_600_000
BASIS_POINTS = 10_000

AMOUNT_MICROUSD_MAX = 10**15
PRICE_MICROUSD_PER_GPU_HOUR_MAX = 10_000 * MICROUSD_PER_USD
DURATION_SECONDS_MAX = 90 * 24 * 3600

MICROUSD_PLACES = 6

# Digits are written out: `\d` would take those of every script.
_AMOUNT = re.compile(r"(-)?([0-9]{1,20})(?:\.([0-9]{1,20}))?")
_PERCENT = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?")
_DURATION = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?")


def parse_usd(text: str) -> int:
    """Micro-dollars of a decimal string such as `1.85`.

    Raises ValueError for anything but plain digits with at most six places, or over `AMOUNT_MICROUSD_MAX`.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an amount in dollars; write it like 1.85")
    sign, dollars, places = match.groups(default="")
    if len(places) > MICROUSD_PLACES:
        raise ValueError(f"{text!r} has more than six decimal places")
    amount_microusd = int(dollars + places.ljust(MICROUSD_PLACES, "0"))
    if amount_microusd > AMOUNT_MICROUSD_MAX:
        raise ValueError(f"{text!r} is out of range")
    return -amount_microusd if sign else amount_microusd


def format_usd(amount_microusd: int, places: int = 6) -> str:
    """Decimal string of an amount, `places` digits after the point; six are exact."""
    step = Decimal(1).scaleb(-places)
    return str((Decimal(amount_microusd) / MICROUSD_PER_USD).quantize(step, rounding=ROUND_HALF_EVEN))


def parse_duration_seconds(text: str) -> int:
    """Seconds of a duration such as `90s`, `24h` or `1h30m`; a bare number is refused, its unit being a guess.

    Raises ValueError.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 30m, 24h or 1h30m")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 < total <= DURATION_SECONDS_MAX:
        raise ValueError(f"{text!r} is out of range: 1s to {DURATION_SECONDS_MAX // 86400}d")
    return total


def parse_permille(text: str) -> int:
    """Thousandths of a percentage such as `99.5`. Raises ValueError beyond 100 or a tenth of one per cent."""
    match = _PERCENT.fullmatch(text.strip().removesuffix("%"))
    permille = int(match[1]) * 10 + int(match[2] or 0) if match else -1
    if not 0 <= permille <= 1_000:
        raise ValueError(f"{text!r} is not a percentage; write it like 99.5, from 0 to 100")
    return permille
