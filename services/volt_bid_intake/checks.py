"""Checks that requests and bids share. Each raises Refused: the field, the value seen, what to write instead."""

from volt.contracts.errors import refused_for, shown
from volt.contracts.units import PRICE_MICROUSD_PER_GPU_HOUR_MAX


def check_price(field: str, price_microusd: int, otherwise: str) -> None:
    check_between(field, "price_out_of_range", price_microusd, 1, PRICE_MICROUSD_PER_GPU_HOUR_MAX, otherwise)


def check_between(field: str, code: str, value: int, at_least: int, at_most: int, otherwise: str = "") -> None:
    if not at_least <= value <= at_most:
        seen = shown(str(value))
        hint = f"give {at_least} to {at_most}" + (f", or {otherwise}" if otherwise else "")
        raise refused_for(code, field, seen, f"{field} {seen} is out of range; {hint}")


def check_at_most(field: str, code: str, size: int, size_max: int, unit: str) -> None:
    if size > size_max:
        message = f"{field} has {size} {unit}; at most {size_max} are taken: shorten it"
        raise refused_for(code, field, str(size), message)
