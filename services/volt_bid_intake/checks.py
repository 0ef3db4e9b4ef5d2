"""Checks that requests and bids share. Each raises Refused: the field, the value seen, what to write instead."""

from volt.contracts.errors import Reason, Refused
from volt.contracts.ids import is_id
from volt.contracts.units import PRICE_MICROUSD_PER_GPU_HOUR_MAX

SEEN_CHARS_MAX = 80
COUNTRY_CHARS = 2


def check_region(field: str, region: str) -> None:
    if not is_id(region):
        message = f"{shown(region)!r} is no region; write it like eu-west, in lower case"
        raise refused_for("invalid_region", field, region, message)


def check_country(field: str, country: str) -> None:
    if not (len(country) == COUNTRY_CHARS and country.isascii() and country.isupper() and country.isalpha()):
        message = f"{shown(country)!r} is no country; write its two letters as in ISO 3166, such as DE"
        raise refused_for("invalid_country", field, country, message)


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


def refused_for(code: str, field: str, seen: str, message: str) -> Refused:
    return Refused(Reason(code=code, message=message, field=field, seen=shown(seen)))


def shown(text: str) -> str:
    return text if len(text) <= SEEN_CHARS_MAX else text[: SEEN_CHARS_MAX - 1] + "…"
