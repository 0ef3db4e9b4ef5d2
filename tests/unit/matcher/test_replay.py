"""Anyone with the log can repeat every pass, and one byte of difference is found."""

import random

import pytest
from msgspec.structs import replace

from tests.unit.matcher.builders import AT_MS, USD, B, Market, alive, bid, cleared, released, spec
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt_matcher.replay import Replay


def a_busy_market(seed: int) -> Market:
    """Jobs that come, wait, are granted and released, among bids that change."""
    chance = random.Random(seed)
    market = Market()
    for number in range(6):
        market.node(f"n{number}", 8, ask_microusd=USD + number)
    for number in range(12):
        what = spec(chance.choice((1, 2)), chance.choice((2, 4, 8)), interconnect=chance.choice(("any", "fabric")))
        market.job(f"j{number}", replace(what, max_wait_seconds=chance.choice((None, 0, 60))))
        if number % 3 == 0:
            market.ask(f"q{number}", what)
        market.at_ms = AT_MS + 1_000 * len(market.entries)
        market.run()
        if number % 4 == 3:
            lease, held = next(iter(market.state.leases.items()))
            market.add(released(held.job), cleared(held.job, lease, held.node))
        market.add(bid(f"n{number % 6}", 8, ask_microusd=USD + chance.randrange(9), place=B))
    market.settle()
    return market


@pytest.mark.parametrize("seed", range(8))
def test_a_log_is_repeated_byte_for_byte(seed: int) -> None:
    market = a_busy_market(seed)
    replay = Replay()
    assert list(replay.read(market.entries)) == []
    assert replay.passes == sum(isinstance(entry.event, MarketCleared) for entry in market.entries) > 3


def test_what_came_while_a_message_was_on_its_way_is_no_part_of_it() -> None:
    market = Market(bid("n1", 8), alive("n1"))
    market.job("j1", spec(1, 8))
    said = market.plan()
    assert said is not None
    market.node("n2", 8, ask_microusd=1)
    market.add(said)
    assert list(Replay().read(market.entries)) == []


def _dearer(gang: Gang) -> Gang:
    return replace(gang, price_microusd_per_gpu_hour=gang.price_microusd_per_gpu_hour + 1)


def test_one_micro_dollar_of_difference_is_found_and_named() -> None:
    market = a_busy_market(1)
    place, entry = next(
        (place, entry)
        for place, entry in enumerate(market.entries)
        if isinstance(entry.event, MarketCleared) and entry.event.gangs
    )
    assert isinstance(entry.event, MarketCleared)
    changed = replace(entry.event, gangs=tuple(map(_dearer, entry.event.gangs)))
    entries = [*market.entries[:place], Entry(entry.seq, entry.at_ms, changed), *market.entries[place + 1 :]]
    (difference,) = Replay().read(entries)
    assert (difference.seq, difference.part) == (entry.seq, "gangs")
    assert list(Replay(entry.seq + 1).read(entries)) == [], "which was not asked about"


def test_a_pass_that_says_nothing_new_is_found() -> None:
    market = a_busy_market(1)
    empty = MarketCleared(through_seq=len(market.entries), at_ms=market.at_ms)
    (difference,) = Replay().read([*market.entries, Entry(len(market.entries) + 1, market.at_ms, empty)])
    assert difference.part == "pass"
