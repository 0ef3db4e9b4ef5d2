"""A pass over the jobs that wait: who is placed, so that the gains from trade are greatest.

Gains are the sum over placed jobs of weight times (cap - ask) times GPUs; each job is placed whole or not at all. Jobs
that do not compete each get what is cheapest for them, which is the optimum. Those that compete go through shadow
prices and a local search, with an exact one if they are few. At the end each gang is placed once more for itself,
the older first, and whoever still fits is placed too, so that no plan leaves out a job for nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from volt_matcher.book import Book
from volt_matcher.contest import Contest
from volt_matcher.fields import Competitor
from volt_matcher.lots import LotId, Request
from volt_matcher.place import Placement, cheapest, ranked
from volt_matcher.prices import by_prices
from volt_matcher.reach import relevant
from volt_matcher.search import improve

ROUNDS_MIN = 64
ROUNDS_MAX = 128
COMPETITOR_ROUNDS_MAX = 12_000
"""Rounds of prices, times competitors."""
MOVES_PER_COMPETITOR = 16
MOVES_MIN = 400
MOVES_MAX = 2_400


def choose(book: Book, competitors: Sequence[Competitor]) -> list[Placement | None]:
    """What each gets, taken from the book until it is given back. Competitors are given in the order of age."""
    known: dict[Request, Placement | None] = {}
    for one in competitors:
        if one.request not in known:
            known[one.request] = cheapest(book, one.request)
    alone = [known[one.request] for one in competitors]
    able = [number for number, found in enumerate(alone) if found is not None]
    plan: list[Placement | None] = [None] * len(competitors)
    for group in _groups(competitors, able):
        if _is_contested(book, [alone[number] for number in group]):
            found = _contested(book, [competitors[number] for number in group])
        else:
            found = [alone[number] for number in group]
        for number, placement in zip(group, found, strict=True):
            plan[number] = placement
            if placement is not None:
                take(book, placement)
    _settle(book, competitors, able, plan)
    return plan


def take(book: Book, placement: Placement, times: int = 1) -> None:
    """The placement's GPUs are no longer free; with -1 they are again."""
    for lot in placement.lots:
        book.take(lot, times * placement.gpus_per_node)


def _groups(competitors: Sequence[Competitor], able: list[int]) -> Iterator[list[int]]:
    """Competitors that could want the same lots: those whose models overlap, directly or through others."""
    groups: list[tuple[set[str], list[int]]] = []
    for number in able:
        models, members = set(competitors[number].request.models), [number]
        apart = []
        for group in groups:
            if models.isdisjoint(group[0]):
                apart.append(group)
            else:
                models |= group[0]
                members = group[1] + members
        groups = [*apart, (models, sorted(members))]
    return iter(sorted(members for _, members in groups))


def _is_contested(book: Book, found: Sequence[Placement | None]) -> bool:
    """Whether what is cheapest for each is too much for some lot."""
    wanted: dict[LotId, int] = {}
    for placement in found:
        assert placement is not None, "only those who are able are grouped"
        for lot in placement.lots:
            wanted[lot.key] = wanted.get(lot.key, 0) + placement.gpus_per_node
    return any(gpus > book.free(key) for key, gpus in wanted.items())


def _contested(book: Book, competitors: list[Competitor]) -> list[Placement | None]:
    contest = Contest(relevant(book, competitors), competitors)
    count = len(competitors)
    rounds = min(ROUNDS_MAX, max(ROUNDS_MIN, count * 5 // 4), COMPETITOR_ROUNDS_MAX // count)
    priced = by_prices(contest, max(1, rounds))
    improve(priced, min(MOVES_MAX, max(MOVES_MIN, MOVES_PER_COMPETITOR * count)))
    return [
        Placement(ranked(contest.lots[lot] for lot in taken[2]), taken[1].gpus) if taken is not None else None
        for taken in priced.plan
    ]


def _settle(book: Book, competitors: Sequence[Competitor], able: list[int], plan: list[Placement | None]) -> None:
    """Each in turn, the older first, gets what is cheapest for it now; then whoever still fits."""
    _older_first(competitors, able, plan)
    for number in able:
        _again(book, competitors[number], number, plan)
    for number in able:
        if plan[number] is None:
            _again(book, competitors[number], number, plan)


def _older_first(competitors: Sequence[Competitor], able: list[int], plan: list[Placement | None]) -> None:
    """Of those who ask for the very same, the older are placed: it makes no difference to the gains."""
    alike: dict[Competitor, list[int]] = {}
    for number in able:
        alike.setdefault(competitors[number], []).append(number)
    for numbers in alike.values():
        placed = [plan[number] for number in numbers if plan[number] is not None]
        for number, placement in zip_longest(numbers, placed):
            plan[number] = placement


def _again(book: Book, competitor: Competitor, number: int, plan: list[Placement | None]) -> None:
    """Places it once more, for itself."""
    before = plan[number]
    if before is not None:
        take(book, before, -1)
    after = plan[number] = cheapest(book, competitor.request)
    if after is not None:
        take(book, after)
