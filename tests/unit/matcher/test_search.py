"""How a contest is planned: bounded by steps, undone without a trace, and as good as trying everything."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.matcher.markets import (
    EU_A,
    EU_B,
    US_C,
    best_gains,
    book_of,
    competitors,
    gains_of,
    lot,
    request,
    some_lots,
)
from volt_matcher import exact, search
from volt_matcher.choose import choose
from volt_matcher.contest import Contest
from volt_matcher.dual import Dual
from volt_matcher.exact import solve
from volt_matcher.fields import Competitor
from volt_matcher.lots import Lot
from volt_matcher.moves import Move
from volt_matcher.prices import Priced, by_prices
from volt_matcher.search import improve

relaxed = settings(max_examples=100, deadline=None)


def market(seed: int, lots: int, jobs: int) -> tuple[list[Lot], list[Competitor]]:
    """Requests for several times what there is, gangs on one fabric among them."""
    chance = Random(seed)
    sold = [
        lot(f"n{number}", chance.choice((2, 4, 8, 8)), chance.randint(800, 1_600), chance.choice((EU_A, EU_B, US_C)))
        for number in range(lots)
    ]
    asked = [
        Competitor(
            request(
                (chance.choice((1, 1, 2, 3)), chance.choice((1, 2, 4, 8))),
                level=chance.choice(("any", "fabric")),
                cap_microusd=chance.randint(1_000, 2_500),
            )
        )
        for _ in range(jobs)
    ]
    return sold, asked


def contest_of(lots: list[Lot], asked: list[Competitor]) -> Contest:
    book = book_of(*lots)
    return Contest([rung for model in ("m", "n") for rung in book.rungs(model)], asked)


def priced(seed: int, lots: int = 30, jobs: int = 20, rounds: int = 6) -> Priced:
    return by_prices(contest_of(*market(seed, lots, jobs)), rounds)


def state_of(contest: Contest) -> tuple[object, ...]:
    return list(contest.free), dict(contest.available), list(contest.taken), list(contest.held), contest.gains


@pytest.mark.parametrize("moves_max", [1, 7, 40])
def test_the_local_search_makes_no_more_moves_than_it_may(moves_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter[str]()

    class Counted(Move):
        def __init__(self, contest: Contest, *noise: object) -> None:
            made["moves"] += 1
            super().__init__(contest)

    monkeypatch.setattr(search, "Move", Counted)
    monkeypatch.setattr(search, "solve", lambda one: False)
    improve(priced(1), moves_max)
    assert made["moves"] == moves_max


def test_a_move_takes_steps_in_proportion_to_the_jobs() -> None:
    for jobs in (20, 40, 80):
        one = priced(2, jobs, jobs)
        before = one.contest.steps
        improve(one, 50)
        assert one.contest.steps - before <= 50 * 4 * jobs


@pytest.mark.parametrize("steps_max", [1, 20, 300])
def test_the_exact_search_takes_no_more_steps_than_it_may(steps_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Counter[str]()
    with_lots = exact._Search._with

    def counted(*arguments: object) -> None:
        taken["steps"] += 1
        with_lots(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(exact._Search, "_with", counted)
    assert not solve(priced(3), steps_max)
    assert taken["steps"] <= steps_max


@pytest.mark.parametrize("seed", range(6))
def test_the_exact_search_leaves_nothing_better_when_it_says_so(seed: int) -> None:
    lots, asked = market(seed, 7, 6)
    one = by_prices(contest_of(lots, asked), 20)
    assert solve(one, 100_000)
    ages = len(asked) * (len(asked) + 1) // 2
    """Older ones pay a little more."""
    assert best_gains(lots, asked) <= one.gains <= best_gains(lots, asked) + ages


@pytest.mark.parametrize("seed", range(20, 30))
def test_a_small_tight_pass_gains_all_that_trying_everything_does(seed: int) -> None:
    lots, asked = market(seed, 8, 6)
    plan = choose(book_of(*lots), asked)
    assert gains_of(asked, plan) >= best_gains(lots, asked) * 995 // 1000


@given(some_lots, competitors, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6))
@relaxed
def test_a_move_that_is_undone_leaves_no_trace(
    lots: list[Lot], asked: list[Competitor], forced: list[tuple[int, int]]
) -> None:
    contest = contest_of(lots, asked)
    for number in range(len(asked)):
        found = contest.best(number, contest.available)
        if found is not None:
            contest.put(number, found)
    before = state_of(contest)
    move = Move(contest)
    for number, at in forced:
        if number < len(asked) and contest.choices[number]:
            move.force(number, contest.choices[number][at % len(contest.choices[number])])
    assert min(contest.free) >= 0
    move.undo()
    assert state_of(contest) == before


@given(some_lots, competitors, st.lists(st.dictionaries(st.integers(0, 5), st.integers(1, 400_000)), max_size=5))
@relaxed
def test_what_the_dual_passes_over_would_not_have_been_cheaper(
    lots: list[Lot], asked: list[Competitor], all_prices: list[dict[int, int]]
) -> None:
    contest = contest_of(lots, asked)
    dual = Dual(contest)
    for prices in all_prices:
        dual.charge({lot: price for lot, price in prices.items() if lot < len(lots)})
        bound, surplus, _ = dual.relax()
        for number, gains in enumerate(surplus):
            costs = [one.cost for one in dual.open_ways(number, 1 << 200, 0)]
            assert gains == max(0, contest.limit[number] - min(costs, default=1 << 200))
        assert bound == sum(surplus) + sum(price * contest.whole[lot] for lot, price in dual.prices.items())
