"""The book in order, whatever happened to it; and the cheapest place in it, whoever asks."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.matcher.markets import (
    EU_A,
    EU_B,
    PLACES,
    US_C,
    asks,
    book_of,
    lot,
    request,
    requests,
    sets,
    some_lots,
)
from volt.contracts.bids import Place
from volt_matcher.book import CHANGES_REMEMBERED_MAX, Book
from volt_matcher.lots import Lot, Request
from volt_matcher.place import cheapest, score

relaxed = settings(max_examples=200, deadline=None)
updates = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 4), asks, st.sampled_from(PLACES), st.sampled_from("mmn")),
    max_size=30,
)


def found(book: Book, asked: Request) -> list[str]:
    placed = cheapest(book, asked)
    return [one.node for one in placed.lots] if placed else []


@given(updates, st.lists(requests, min_size=1, max_size=4))
@relaxed
def test_a_book_that_followed_every_change_is_the_book_made_afresh(
    told: list[tuple[str, int, int, Place, str]], asked: list[Request]
) -> None:
    book, standing = Book(), dict[tuple[str, str], Lot]()
    for node, free, ask_microusd, place, model in told:
        now = lot(node, free, ask_microusd, place, model=model)
        book.put(now)
        standing[node, model] = now
        for one in asked:
            cheapest(book, one)
    afresh = book_of(*standing.values())
    assert book == afresh
    assert [cheapest(book, one) for one in asked] == [cheapest(afresh, one) for one in asked]


@given(some_lots, requests)
@relaxed
def test_the_set_found_is_the_one_with_the_least_sum_and_then_the_lowest_price(lots: list[Lot], asked: Request) -> None:
    placed = cheapest(book_of(*lots), asked)
    every = sets(lots, asked, {one.key: len(one.free) for one in lots})
    costs = [(score(asked, one, gpus), max(each.ask_microusd_per_gpu_hour for each in one)) for one, gpus in every]
    if placed is None:
        assert not costs
    else:
        cost = (score(asked, placed.lots, placed.gpus_per_node), placed.price_microusd_per_gpu_hour)
        assert cost == min(costs)


@given(some_lots, st.lists(requests, min_size=1, max_size=5))
@relaxed
def test_what_is_taken_is_gone_until_it_is_given_back(lots: list[Lot], asked: list[Request]) -> None:
    book = book_of(*lots)
    before = [cheapest(book, one) for one in asked]
    for one in asked:
        placed = cheapest(book, one)
        for each in placed.lots if placed else ():
            book.take(each, placed.gpus_per_node if placed else 0)
            assert 0 <= book.free(each.key) < len(each.free)
    book.give_back()
    assert book == book_of(*lots)
    assert [cheapest(book, one) for one in asked] == before


def test_a_ranking_that_has_forgotten_what_changed_is_made_afresh() -> None:
    lots = [lot(f"{name}{number}", place=place) for name, place in (("a", EU_A), ("b", EU_B)) for number in range(2)]
    book, asked = book_of(*lots), request((2, 8), level="fabric")
    assert found(book, asked) == ["a0", "a1"]
    for number in range(CHANGES_REMEMBERED_MAX + 1):
        book.put(lot("a0", ask_microusd=1_100 + number % 7))
    assert found(book, asked) == ["b0", "b1"]


def test_the_earlier_shape_is_taken_on_equal_price_and_the_cheaper_one_otherwise() -> None:
    eights, fours = [lot(f"e{number}", 8) for number in range(2)], [lot(f"f{number}", 4) for number in range(4)]
    asked = request((2, 8), (4, 4))
    assert found(book_of(*eights, *fours), asked) == ["e0", "e1"]
    assert found(book_of(*eights, *[replace(one, ask_microusd_per_gpu_hour=999) for one in fours]), asked) == [
        "f0",
        "f1",
        "f2",
        "f3",
    ]


def test_nvlink_is_one_node() -> None:
    lots = [lot("n1", 4), lot("n2", 4), lot("n3", 8, 1_500)]
    assert found(book_of(*lots), request((2, 4), (1, 8), level="nvlink")) == ["n3"]
    assert found(book_of(*lots[:2]), request((2, 4), level="nvlink")) == []


@pytest.mark.parametrize(("percent", "nodes"), [(20, ["b1", "b2"]), (5, ["a1", "c1"])])
def test_a_preferred_level_is_worth_its_percentage_of_the_price(percent: int, nodes: list[str]) -> None:
    lots = [lot("a1", 8, 900), lot("b1", 8, 1_000, EU_B), lot("b2", 8, 1_000, EU_B), lot("c1", 8, 900, US_C)]
    asked = request((2, 8), preferred="fabric", preferred_percent=percent)
    assert found(book_of(*lots), asked) == nodes


def test_equal_asks_on_equally_full_nodes_go_to_the_more_reliable() -> None:
    lots = [lot("n1", reliability_permille=990), lot("n2", reliability_permille=999)]
    assert found(book_of(*lots), request((1, 8))) == ["n2"]


PLAIN = request((1, 8))
PICKY = [
    replace(PLAIN, providers_excluded=frozenset({"p"})),
    replace(PLAIN, excluded=frozenset({"n"})),
    replace(PLAIN, barred=frozenset({lot("n").key})),
    replace(PLAIN, min_memory_mib=1001),
    replace(PLAIN, interface="pcie"),
    replace(PLAIN, min_bandwidth_gbps=1),
    replace(PLAIN, min_reliability_permille=1001),
    replace(PLAIN, tier="datacenter"),
    replace(PLAIN, runtime="docker"),
    replace(PLAIN, countries=frozenset({"fr"})),
    replace(PLAIN, countries_denied=frozenset({"de"})),
    replace(PLAIN, regions_denied=frozenset({"eu"})),
    replace(PLAIN, home="site:eu/s2"),
]


@pytest.mark.parametrize("picky", PICKY)
def test_each_condition_keeps_a_lot_out(picky: Request) -> None:
    book = book_of(lot("n", place=Place(region="eu", country="de", site="s1", fabric="A")))
    assert found(book, PLAIN) == ["n"]
    assert found(book, picky) == []


def test_the_provider_s_terms_bind() -> None:
    asked = request((1, 2))
    hour = replace(asked, duration_seconds=3_600)
    assert found(book_of(lot("n", min_gpus=3)), asked) == []
    assert found(book_of(lot("n", max_duration_seconds=3_600)), asked) == [], "no known end is endless"
    assert found(book_of(lot("n", max_duration_seconds=3_600)), hour) == ["n"]
    assert found(book_of(lot("n", max_duration_seconds=3_599)), hour) == []
    assert found(book_of(lot("n", available_until_ms=3_600_000)), hour) == ["n"]
    assert found(book_of(lot("n", available_until_ms=3_600_000)), replace(hour, at_ms=1)) == []


def test_many_lots_of_an_unknown_fabric_are_found_one_by_one_and_never_together() -> None:
    lots = [lot(f"n{number:04}", 8, 1_000 + number, Place(region="eu")) for number in range(600)]
    book = book_of(*lots)
    assert found(book, request((1, 8))) == ["n0000"]
    assert found(book, request((3, 8))) == ["n0000", "n0001", "n0002"]
    assert found(book, request((2, 8), level="fabric")) == []
    assert found(book, request((2, 8), level="region")) == ["n0000", "n0001"]


def test_a_fabric_at_two_sites_is_one_fabric_and_two_sites() -> None:
    places = [Place(region="eu", site=site, fabric="A") for site in ("s1", "s2")]
    book = book_of(lot("n1", place=places[0]), lot("n2", place=places[1]))
    assert found(book, request((2, 8), level="fabric")) == ["n1", "n2"]
    assert found(book, request((2, 8), level="site")) == []


def test_a_lot_that_moves_is_found_where_it_is_now() -> None:
    book, asked = book_of(lot("n1"), lot("n2", place=EU_B)), request((2, 8), level="fabric")
    assert found(book, asked) == []
    book.put(lot("n1", place=EU_B))
    assert found(book, asked) == ["n1", "n2"]
    book.put(replace(lot("n1", place=EU_B), alive=False))
    assert found(book, asked) == []
