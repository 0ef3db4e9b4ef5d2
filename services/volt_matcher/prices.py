"""Shadow prices: what a GPU of each lot is worth to those who do not get it.

The sum of what all gain alone at some prices, plus the price of all that is free, bounds what any plan can gain (Held
and Karp 1970, Fisher 1981). The prices rise where more is taken than is free and fall where less is, by steps of
Polyak's length in a direction that remembers the last one (Camerini, Fratta and Maffioli 1975). Now and then the
competitors are placed one after the other at the best prices so far; the best plan is kept.
"""

from typing import NamedTuple

from volt_matcher.contest import Choice, Contest, Taken
from volt_matcher.dual import Dual, Open, Prices

DENSITIES = ((1, 1), (4, 3), (2, 1))
"""Orders to begin with: gains to this power over GPUs to that one, greatest first."""
MEMORY_PERMILLE = 500
"""How much of the last direction is kept."""
SHRINK_PERMILLE_MIN = 400
SHRINK_ROUNDS = 32
"""Steps that stall become shorter, by this many rounds' part of all rounds."""
STALLED_ROUNDS_MAX = 1
PROGRESS = 2_000
"""A round that lowers the bound by less than this part has stalled."""
ROUNDS_PER_GREEDY = 12
ENOUGH = 700
"""A plan within this part of the bound is good enough."""

Plan = list[Taken | None]


class Candidate(NamedTuple):
    """Somebody, a way to serve it (None is not to), and what a plan loses by that at least."""

    number: int
    choice: Choice | None
    regret: int


class Priced:
    """The best plan so far, and the bound with the prices that prove it."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.dual = Dual(contest)
        self.plan: Plan = [None] * len(contest.competitors)
        self.gains = -1
        self.bound = -1
        self.prices: Prices = {}
        self.surplus = [0] * len(contest.competitors)
        """What each would gain at those prices."""
        self.alone: list[int] = []
        """What each would gain if nobody else were there."""

    @property
    def enough(self) -> int:
        """Plans that gain so much are not improved any more."""
        return self.bound - self.bound // ENOUGH

    def keep(self) -> None:
        """The contest's plan, if it is better than what was kept."""
        if self.contest.gains > self.gains:
            self.gains, self.plan = self.contest.gains, list(self.contest.taken)

    def renumber(self, percent: int) -> None:
        """Empties the contest, and numbers its lots by ask plus such a share of the prices."""
        prices = [0] * len(self.contest.lots)
        for lot, price in self.prices.items():
            prices[lot] = price * percent // 100
        self.contest.renumber(prices)

    def candidates(self) -> list[Candidate]:
        """What a plan that is noticeably better could do, in the order of what it loses by that at least."""
        found = list[tuple[int, int, int, Choice | None]]()
        gap = self.enough - self.gains
        self.dual.charge(self.prices)
        for number, ways in enumerate(self.dual.ways):
            surplus, limit = self.surplus[number], self.contest.limit[number]
            for at, way in enumerate(ways):
                regret = surplus - limit + self.dual.cost(way)
                if regret <= gap:
                    found.append((regret, number, at, way.choice))
            if surplus <= gap:
                found.append((surplus, number, len(ways), None))
        found.sort(key=lambda one: one[:3])
        return [Candidate(number, choice, regret) for regret, number, _, choice in found]

    def open_ways(self, number: int) -> list[Open]:
        """What a better plan could do with one competitor."""
        return self.dual.open_ways(number, self.bound - self.gains, self.surplus[number])


def by_prices(contest: Contest, rounds: int) -> Priced:
    """Plans by shadow prices."""
    priced, numbers = Priced(contest), range(len(contest.competitors))
    found = [contest.best(number, contest.at_first) for number in numbers]
    priced.alone = [one[0] if one else 0 for one in found]
    for up, down in DENSITIES:
        worth = zip(priced.alone, contest.size, strict=True)
        _greedy(priced, [max(0, gains) ** up * 1000 // size**down for gains, size in worth])
    shrink_permille = max(SHRINK_PERMILLE_MIN, 1000 - 1000 * SHRINK_ROUNDS // rounds)
    step_permille, stalled, direction = 1000, 0, dict[int, int]()
    for at in range(1, rounds + 1):
        bound, surplus, taken = priced.dual.relax()
        is_stalled = priced.bound >= 0 and bound > priced.bound - priced.bound // PROGRESS
        if priced.bound < 0 or bound < priced.bound:
            priced.bound, priced.prices, priced.surplus = bound, priced.dual.prices, surplus
        stalled = stalled + 1 if is_stalled else 0
        if stalled > STALLED_ROUNDS_MAX:
            step_permille, stalled = step_permille * shrink_permille // 1000, 0
        if at % ROUNDS_PER_GREEDY == 0 or at == rounds:
            _at_prices(priced)
        direction = _direction(priced, taken, direction)
        steepness = sum([more * more for more in direction.values()])
        if not steepness or priced.gains >= priced.enough:
            break
        step = max(bound - priced.gains, bound // 500) * step_permille
        prices = {lot: priced.dual.prices.get(lot, 0) + step * more // steepness for lot, more in direction.items()}
        priced.dual.charge({lot: price for lot, price in prices.items() if price > 0})
    return priced


def _direction(priced: Priced, taken: dict[int, int], before: dict[int, int]) -> dict[int, int]:
    """Where prices should go, per mille of GPUs: lots that are neither dear nor wanted too much stay out."""
    free, prices = priced.contest.whole, priced.dual.prices
    excess = {lot: taken.get(lot, 0) - free[lot] for lot in prices}
    excess |= {lot: gpus - free[lot] for lot, gpus in taken.items() if gpus > free[lot]}
    return {lot: 1000 * more + MEMORY_PERMILLE * before.get(lot, 0) // 1000 for lot, more in excess.items()}


def _at_prices(priced: Priced) -> None:
    """One after the other, by what they gain per GPU and by what they gain."""
    priced.renumber(100)
    _greedy(priced, [gains * 1000 // size for gains, size in zip(priced.surplus, priced.contest.size, strict=True)])
    _greedy(priced, priced.surplus)


def _greedy(priced: Priced, worth: list[int]) -> None:
    """One after the other, those who are worth most first."""
    contest = priced.contest
    contest.empty()
    for number in sorted(range(len(contest.competitors)), key=lambda number: (-worth[number], number)):
        found = contest.best(number, contest.available)
        if found is not None:
            contest.put(number, found)
    priced.keep()
