"""A market's log with an eventful day in it, and ways to change it."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from tests.unit.matcher.builders import (
    AT_MS,
    B,
    Market,
    alive,
    bid,
    cleared,
    forming,
    released,
    spec,
)
from volt.audit.market import audit_market
from volt.audit.report import MarketCode
from volt.contracts.bids import BidAccepted, Place, Terms
from volt.contracts.log import Entry
from volt.contracts.market import Gang, Grant, MarketCleared
from volt.contracts.messages import Event
from volt_matcher.reserve import RESERVE_AFTER_MS

PLACE = Place(region="eu", country="DE", site="s1", fabric="A", bandwidth_gbps=400)
PAIR = replace(
    spec(2, 8, interconnect="fabric", regions=("eu",), min_memory_mib=24_000),
    interface="pcie",
    min_bandwidth_gbps=200,
    min_reliability_permille=900,
    tier="datacenter",
    countries=("DE",),
    providers_excluded=("owner-n9",),
)
E = TypeVar("E", bound=Event)


def eventful() -> Market:
    """`pair` gets n1 and n2, loses n2, gets n3; `late` ends while its gang is on its way; others fill n2 and n4.

    `small` and `other` share n5. `small` ends, `big` waits for all of n5 and has it reserved, `wide` goes to b1
    instead; at last `other` ends too, and `big` gets n5.
    """
    market = Market()
    for number in range(1, 6):
        offer(market, f"n{number}", PLACE, ask_microusd=1_000_000 + number)
    offer(market, "b1", B, ask_microusd=1_500_000)
    market.job("pair", PAIR)
    market.settle()
    market.want("pair", 1, 1, excluded=("n2",), within="fabric:eu/A")
    market.settle()
    market.add(cleared("pair", "pair-2", "n2"))
    _grant_in_vain(market)
    for number in range(2):
        market.job(f"fill-{number}", spec(1, 8))
        market.settle()
    for half, seconds in (("small", None), ("other", 3_600)):
        market.job(half, replace(spec(1, 4), max_duration_seconds=seconds))
        market.settle()
    market.job("big", spec(1, 8), cap_microusd=1_400_000)
    market.add(released("small"), cleared("small", "small-1", "n5"))
    _starve(market)
    market.job("wide", spec(1, 2))
    market.settle()
    market.add(released("other"), cleared("other", "other-1", "n5"))
    market.settle()
    return market


def offer(market: Market, node: str, place: Place, ask_microusd: int) -> None:
    """A node of a datacenter, reliable as it is told."""
    offered = replace(bid(node, 8, ask_microusd=ask_microusd, place=place), tier="datacenter")
    market.add(offered, replace(alive(node), reliability_permille=990))


def _grant_in_vain(market: Market) -> None:
    """A gang of a job that is released meanwhile, and a replacement that is given up meanwhile."""
    market.job("late", spec(1, 8))
    overtaken = market.plan()
    assert overtaken is not None
    market.add(released("late"), overtaken)
    market.want("pair", 0, 2)
    overtaken = market.plan()
    assert overtaken is not None
    market.add(forming("pair", 3), overtaken)


def _starve(market: Market) -> None:
    market.at_ms = AT_MS + RESERVE_AFTER_MS
    said = market.settle()
    assert [one.job for message in said for one in message.reservations] == ["big"]


def codes(entries: list[Entry]) -> set[MarketCode]:
    return {finding.code for finding in audit_market(entries).findings}


def with_gang(entries: list[Entry], job: str, change: Callable[[Gang], Gang], attempt: int = 0) -> list[Entry]:
    """The log with one gang of the job granted otherwise."""

    def granted(cleared: MarketCleared) -> MarketCleared:
        gangs = [change(gang) if (gang.job, gang.attempt) == (job, attempt) else gang for gang in cleared.gangs]
        return replace(cleared, gangs=tuple(gangs))

    return changed(entries, MarketCleared, granted)


def with_grant(entries: list[Entry], job: str, change: Callable[[Grant], Grant]) -> list[Entry]:
    """The log with the first grant of the job's first gang made otherwise."""
    return with_gang(entries, job, lambda gang: replace(gang, grants=(change(gang.grants[0]), *gang.grants[1:])))


def with_bid(entries: list[Entry], node: str, change: Callable[[BidAccepted], BidAccepted]) -> list[Entry]:
    """The log with another bid of the node."""
    return changed(entries, BidAccepted, lambda event: change(event) if event.node == node else event)


def with_terms(entries: list[Entry], node: str, **terms: int | bool) -> list[Entry]:
    def on_terms(event: BidAccepted) -> BidAccepted:
        told: Terms = replace(event.terms, **terms)
        return replace(event, terms=told)

    return with_bid(entries, node, on_terms)


def changed(entries: list[Entry], kind: type[E], change: Callable[[E], Event]) -> list[Entry]:
    """The same log with every event of a kind changed."""
    return [one._replace(event=change(one.event)) if isinstance(one.event, kind) else one for one in entries]


def without(entries: list[Entry], *kinds: type[Event], job: str | None = None) -> list[Entry]:
    """The log without events of these kinds, of one job if told; all others where they were."""
    return [
        one for one in entries if not isinstance(one.event, kinds) or job not in (None, getattr(one.event, "job", None))
    ]


def place_of(entries: list[Entry], job: str, attempt: int = 0) -> int:
    """Where the message is, in the list, that grants this gang of the job."""
    for place, entry in enumerate(entries):
        if isinstance(entry.event, MarketCleared) and any(
            (gang.job, gang.attempt) == (job, attempt) for gang in entry.event.gangs
        ):
            return place
    raise AssertionError(f"{job} has no gang")
