"""A waiting job is tried again after every change that could place it (ray#65694: "nothing to do" was cached as done).

Each change is made to a market at rest, in which `j` waits, and is all that `j` waits for. That no other change is
forgotten either is what `test_invariants` proves, over any story and after each of its events.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.unit.matcher.builders import (
    AT_MS,
    USD,
    B,
    Market,
    admitted,
    alive,
    bid,
    cleared,
    completed,
    forming,
    funded,
    lost,
    members_funded,
    released,
    spec,
    unknown,
    wanted,
    withdrawn,
)
from tests.unit.matcher.test_reported_supply import said_until
from tests.unit.matcher.test_reserve import Hour
from volt.contracts.bids import Terms
from volt.contracts.jobs import JobSpec
from volt.contracts.ledger import FundsExhausted, JobClosed, JobUnfunded
from volt.contracts.market import Expired, MarketCleared
from volt.contracts.messages import Event


class Case(NamedTuple):
    """A market in which `j` waits, and what places it."""

    before: tuple[Event, ...]
    what: JobSpec
    change: tuple[Event, ...]


ONE, BIG = spec(1, 8), spec(2, 8, interconnect="fabric")
DEAR, CHEAP = bid("n1", ask_microusd=9 * USD), bid("n1")
PAUSED = replace(bid("n1"), terms=Terms(ask_microusd_per_gpu_hour=USD, paused=True))
PICKY = replace(bid("n1"), terms=Terms(ask_microusd_per_gpu_hour=USD, max_duration_seconds=60))
HELD = (bid("n1"), alive("n1"), admitted("holder", ONE), funded("holder"))
RELIABLE = replace(ONE, min_reliability_permille=900)
CASES = {
    "a first bid": Case((alive("n1"),), ONE, (bid("n1"),)),
    "a lower ask": Case((DEAR, alive("n1")), ONE, (CHEAP,)),
    "more GPUs": Case((bid("n1", 7), alive("n1")), ONE, (CHEAP,)),
    "other terms": Case((PICKY, alive("n1")), ONE, (CHEAP,)),
    "no pause": Case((PAUSED, alive("n1")), ONE, (CHEAP,)),
    "a better tier": Case((CHEAP, alive("n1")), replace(ONE, tier="datacenter"), (replace(CHEAP, tier="datacenter"),)),
    "another model": Case((bid("n1", model="other"), alive("n1")), ONE, (CHEAP,)),
    "another place": Case((CHEAP, alive("n1"), bid("n2", place=B), alive("n2")), BIG, (bid("n2"),)),
    "GPUs given up by the node that had them first": Case(
        (bid("n1"), bid("n2", [f"n1-{number}" for number in range(8)]), alive("n2")), ONE, (withdrawn("n1"),)
    ),
    "a first sign of life": Case((CHEAP,), ONE, (alive("n1"),)),
    "a sign of life of one that was unknown": Case((CHEAP, alive("n1"), unknown("n1")), ONE, (alive("n1"),)),
    "a sign of life of one that was lost": Case((CHEAP, alive("n1"), lost("n1")), ONE, (alive("n1"),)),
    "more reliability": Case((CHEAP, replace(alive("n1"), reliability_permille=899)), RELIABLE, (alive("n1"),)),
    "a clearing": Case(HELD, ONE, (cleared("holder", "holder-1", "n1"),)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_change_of_supply_wakes_who_waits_for_it(case: Case) -> None:
    market = Market(*case.before)
    said_until(market, 0)
    market.job("j", case.what)
    assert said_until(market, 0) == []
    market.add(*case.change)
    assert said_until(market, 0) == ["j"]


def test_money_on_hold_wakes_its_job() -> None:
    market = Market(bid("n1"), alive("n1"), admitted("j", ONE))
    assert said_until(market, 0) == []
    market.add(funded("j"))
    assert said_until(market, 0) == ["j"]


def _served() -> Market:
    """`j` runs on n1, and n2 is there."""
    market = Market()
    market.node("n1")
    market.node("n2")
    market.job("j", ONE)
    assert said_until(market, 0) == ["j"]
    market.add(wanted("j", (0, 1), excluded=("n1", "n2")), members_funded("j", 1))
    assert said_until(market, 0) == []
    return market


@pytest.mark.parametrize(
    "change",
    [
        (wanted("j", (0, 1), excluded=("n1",)),),
        (wanted("j", (0, 2), excluded=("n1",)), members_funded("j", 2)),
        (
            forming("j", 3),
            wanted("j", (0, 2), generation=3, excluded=("n1",)),
            members_funded("j", 2, generation=3),
        ),
    ],
    ids=["wanted again", "another attempt", "another generation"],
)
def test_a_change_of_what_is_wanted_wakes_its_job(change: tuple[Event, ...]) -> None:
    market = _served()
    market.add(*change)
    assert said_until(market, 0) == ["j"]


ENDINGS: dict[str, Callable[[str], Event]] = {
    "released": released,
    "completed": completed,
    "exhausted": lambda job: FundsExhausted(account="buyer", at_ms=AT_MS, job=job, exhausted_at_ms=AT_MS),
    "unfunded": lambda job: JobUnfunded(account="buyer", at_ms=AT_MS, job=job, needed_microusd=2, balance_microusd=1),
    "closed": lambda job: JobClosed(account="buyer", at_ms=AT_MS, job=job, lines=()),
    "waited out": lambda job: MarketCleared(through_seq=0, at_ms=AT_MS, expired=(Expired(job=job, account="buyer"),)),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_end_of_a_job_wakes_who_waits_for_what_was_kept_for_it(ending: Callable[[str], Event]) -> None:
    hour = Hour(None, None, None, None)
    hour.starve()
    assert hour.free("n1") == []
    hour.market.job("j", ONE)
    assert hour.granted() == []
    hour.market.add(ending("gang"))
    assert hour.granted() == ["j"]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_gang_that_is_void_wakes_who_was_told_to_wait_for_it(ending: Callable[[str], Event]) -> None:
    market = Market(bid("n1"), alive("n1"))
    market.job("older", ONE)
    market.job("j", ONE)
    on_its_way = market.plan()
    assert on_its_way is not None
    market.add(ending("older"), on_its_way)
    assert said_until(market, 0) == ["j"]


def test_a_reservation_that_is_over_wakes_who_waits_for_what_was_kept() -> None:
    hour = Hour(None, None, None, None)
    reservation = hour.starve()
    assert hour.free("n1") == []
    hour.market.job("j", ONE)
    assert hour.granted() == []
    left_ms = reservation.until_ms - hour.market.at_ms
    assert [gang.job for said in hour.pass_ms(left_ms - 1) for gang in said.gangs] == []
    assert [gang.job for said in hour.pass_ms(1) for gang in said.gangs] == ["j"]


def test_who_only_asks_is_answered_whatever_was_settled_before() -> None:
    market = Market(bid("n1"), alive("n1"))
    market.job("waits", spec(1, 9))
    said_until(market, 0)
    market.ask("q", ONE)
    said = market.run()
    assert said is not None
    assert [one.quote for one in said.quotes] == ["q"]
