"""What people declare of a node, or ask of one, as they write it. Each raises Refused: what was seen, what to write."""

import re

from volt.contracts.bids import GPUS_PER_BID_MAX
from volt.contracts.errors import refused_for, shown
from volt.contracts.ids import is_id

_GPUS = re.compile(r"([0-9]{1,2})x(\S{1,64})")
_COUNTRY = re.compile(r"[A-Z]{2}")


def parse_gpus(text: str) -> tuple[int, str]:
    """How many GPUs of which model are declared by `COUNTxMODEL`; what the name means is said by `gpus.resolve`."""
    match = _GPUS.fullmatch(text)
    count = int(match[1]) if match else 0
    if match is None or not 1 <= count <= GPUS_PER_BID_MAX:
        message = f"{shown(text)!r} declares no GPUs; write it like 8xh100-80gb, 1 to {GPUS_PER_BID_MAX} of them"
        raise refused_for("invalid_gpus", "gpus", text, message)
    return count, match[2]


def check_region(field: str, region: str) -> None:
    if not is_id(region):
        message = f"{shown(region)!r} is no region; write it like eu-west, in lower case"
        raise refused_for("invalid_region", field, region, message)


def check_country(field: str, country: str) -> None:
    if not _COUNTRY.fullmatch(country):
        message = f"{shown(country)!r} is no country; write its two letters as in ISO 3166, such as DE"
        raise refused_for("invalid_country", field, country, message)
