"""A pass: the greatest gains from trade, nobody left out for nothing, and the same plan every time."""

import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from tests.unit.matcher.markets import (
    EU_A,
    EU_B,
    best_gains,
    book_of,
    competitors,
    gains_of,
    lot,
    request,
    some_lots,
)
from volt.contracts.bids import Place
from volt_matcher import reach
from volt_matcher.book import Book
from volt_matcher.choose import choose
from volt_matcher.contest import Contest
from volt_matcher.fields import Competitor
from volt_matcher.lots import Lot
from volt_matcher.place import Placement, cheapest
from volt_matcher.prices import by_prices

relaxed = settings(max_examples=150, deadline=None)


def chosen(lots: list[Lot], asked: list[Competitor]) -> list[Placement | None]:
    book = book_of(*lots)
    plan = choose(book, asked)
    book.give_back()
    assert book == book_of(*lots), "a plan leaves no trace"
    return plan


def nodes(plan: list[Placement | None]) -> list[list[str]]:
    return [sorted(one.node for one in placed.lots) if placed else [] for placed in plan]


@given(some_lots, competitors)
@relaxed
def test_on_a_small_book_the_gains_are_the_exact_optimum(lots: list[Lot], asked: list[Competitor]) -> None:
    assert gains_of(asked, chosen(lots, asked)) == best_gains(lots, asked)


@given(some_lots, competitors)
@relaxed
def test_who_fits_beside_everything_placed_is_placed(lots: list[Lot], asked: list[Competitor]) -> None:
    book = book_of(*lots)
    plan = choose(book, asked)
    for one, placed in zip(asked, plan, strict=True):
        assert placed is not None or cheapest(book, one.request) is None


@given(some_lots, competitors)
@relaxed
def test_the_bound_that_prices_prove_is_never_below_the_optimum(lots: list[Lot], asked: list[Competitor]) -> None:
    rungs = [rung for model in ("m", "n") for rung in book_of(*lots).rungs(model)]
    assert by_prices(Contest(rungs, asked), 5).bound >= best_gains(lots, asked)


@given(some_lots, competitors)
@relaxed
def test_the_price_is_the_highest_own_ask_and_never_above_the_cap(lots: list[Lot], asked: list[Competitor]) -> None:
    for one, placed in zip(asked, chosen(lots, asked), strict=True):
        if placed is not None:
            asks_microusd = [each.ask_microusd_per_gpu_hour for each in placed.lots]
            assert placed.price_microusd_per_gpu_hour == max(asks_microusd)
            assert one.request.cap_microusd_per_gpu_hour is not None
            assert max(asks_microusd) <= one.request.cap_microusd_per_gpu_hour


@given(some_lots, competitors)
@relaxed
def test_lots_that_are_left_out_of_a_large_book_could_not_have_mattered(
    lots: list[Lot], asked: list[Competitor]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "LOTS_UNREDUCED_MAX", 0)
        assert gains_of(asked, chosen(lots, asked)) == best_gains(lots, asked)


def test_a_contest_for_a_few_lots_of_a_large_book_plans_with_a_few() -> None:
    lots = [lot(f"n{number}", 8, 1_000 + number, place(number)) for number in range(3_000)]
    asked = [Competitor(request((2, 8), level="fabric", cap_microusd=9_000)), Competitor(request((1, 8)))] * 2
    assert len(reach.relevant(book_of(*lots), asked)) < 100
    assert nodes(chosen(lots, asked)) == [["n0", "n100"], ["n2"], ["n1", "n101"], ["n3"]]


def place(number: int) -> Place:
    return Place(region="eu", site="s", fabric=f"f{number % 100}")


def test_two_small_jobs_together_can_be_worth_more_than_an_older_large_one() -> None:
    lots = [lot("n1"), lot("n2")]
    asked = [Competitor(request((2, 8), cap_microusd=1_100)), *[Competitor(request((1, 8), cap_microusd=1_900))] * 2]
    assert nodes(chosen(lots, asked)) == [[], ["n1"], ["n2"]]


def test_equal_gains_go_to_the_older() -> None:
    asked = [Competitor(request((1, 8)))] * 3
    assert nodes(chosen([lot("n1"), lot("n2")], asked)) == [["n1"], ["n2"], []]


def test_equal_gains_go_to_the_older_also_if_the_requests_differ() -> None:
    asked = [Competitor(request((1, 4), cap_microusd=2_000)), Competitor(request((1, 8), cap_microusd=1_500))]
    assert nodes(chosen([lot("n1")], asked)) == [["n1"], []]
    assert nodes(chosen([lot("n1")], asked[::-1])) == [["n1"], []]


def test_waiting_adds_weight() -> None:
    asked = [
        Competitor(request((1, 8), cap_microusd=1_900), 1000),
        Competitor(request((1, 8), cap_microusd=1_600), 1501),
    ]
    assert nodes(chosen([lot("n1")], asked)) == [[], ["n1"]]


def test_a_job_that_could_go_elsewhere_makes_room_for_a_gang_that_could_not() -> None:
    lots = [lot("a1", 8, 1_000), lot("a2", 8, 1_000), lot("b1", 8, 1_010, EU_B)]
    asked = [Competitor(request((1, 8))), Competitor(request((2, 8), level="fabric"))]
    assert nodes(chosen(lots, asked)) == [["b1"], ["a1", "a2"]]


def test_a_small_job_does_not_break_a_whole_node_that_a_large_one_needs() -> None:
    lots = [lot("whole", 8, 1_000), lot("part", 1, 1_100)]
    asked = [Competitor(request((1, 1))), Competitor(request((1, 8)))]
    assert nodes(chosen(lots, asked)) == [["part"], ["whole"]]


def test_reserved_lots_go_to_nobody_else() -> None:
    barred = replace(request((1, 8)), barred=frozenset({lot("n1").key}))
    asked = [Competitor(barred), Competitor(request((1, 8), cap_microusd=1_001))]
    assert nodes(chosen([lot("n1")], asked)) == [[], ["n1"]]


def crowded(seed: int, size: int = 30) -> tuple[list[Lot], list[Competitor]]:
    """More requests than lots can serve, gangs on one fabric among them."""
    chance = Random(seed)
    lots = [
        lot(f"n{number}", chance.choice((1, 2, 4, 8, 8)), chance.randint(800, 1_600), chance.choice((EU_A, EU_B)))
        for number in range(size)
    ]
    asked = [
        Competitor(
            request(
                (chance.choice((1, 1, 2, 4, 6)), chance.choice((1, 2, 4, 8))),
                level=chance.choice(("any", "fabric")),
                cap_microusd=chance.randint(1_000, 2_500),
            )
        )
        for _ in range(size)
    ]
    return lots, asked


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_bids_and_the_history_of_the_book_do_not_matter(seed: int) -> None:
    lots, asked = crowded(seed)
    plan = chosen(lots, asked)
    book, chance = Book(), Random(seed)
    for one in chance.sample(lots, len(lots)):
        book.put(lot(one.node, 3, 77, EU_B))
        if chance.random() < 0.5:
            book.drop(one.key)
            cheapest(book, request((2, 2), level="fabric"))
        book.put(one)
    assert choose(book, asked) == plan


def test_another_process_makes_the_same_plan() -> None:
    code = (
        "from tests.unit.matcher.test_choose import chosen, crowded, nodes;"
        "print([nodes(chosen(*crowded(seed))) for seed in range(2)])"
    )
    said = set()
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        said.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)
    assert len(said) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_crowded_pass_gains_nearly_what_its_bound_allows(seed: int) -> None:
    lots, asked = crowded(seed, 40)
    gains = gains_of(asked, chosen(lots, asked))
    bound = by_prices(Contest(list(book_of(*lots).rungs("m")), asked), 60).bound
    assert gains >= bound * 94 // 100, f"seed {seed}"


def test_a_plan_takes_steps_in_proportion_to_the_jobs_and_no_more() -> None:
    steps = []
    for size in (40, 80):
        lots, asked = crowded(1, size)
        contest = Contest(list(book_of(*lots).rungs("m")), asked)
        by_prices(contest, 10)
        steps.append(contest.steps)
    assert steps[1] <= 2 * steps[0]
