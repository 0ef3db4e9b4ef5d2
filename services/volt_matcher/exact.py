"""The optimum of a small contest, by branch and bound.

One competitor after the other, the older first: each set of lots that it could have, then nothing. A branch is left
when what is gained so far and what the others could gain at most are no more than the best plan. That most is the
lesser of two bounds: each of the others alone, and the Lagrangian one at the shadow prices. The first of equal plans
stays, and it is the one that places the older. The search gives up after so many steps, and the best plan stands.
"""

from collections.abc import Iterator

from volt_matcher.contest import Choice, Contest, Taken
from volt_matcher.prices import Plan, Priced

EXACT_STEPS_MAX = 3_000


class _Search:
    def __init__(self, priced: Priced, steps_max: int) -> None:
        self.contest: Contest = priced.contest
        self.steps_left = steps_max
        self.best_gains = priced.gains - 1
        """Plans that gain no more are of no use; one that gains as much may place the older."""
        self.best_plan: Plan | None = None
        self.alone = _sums_from(priced.alone)
        self.surplus = _sums_from(priced.surplus)
        prices, free = self.contest.prices, self.contest.free
        self.rent = sum([price * count for price, count in zip(prices, free, strict=True)])
        self._kinds = _kinds(self.contest)

    def from_(self, number: int) -> None:
        """Tries everything for this competitor and all younger ones."""
        contest = self.contest
        if contest.gains > self.best_gains and number == len(contest.competitors):
            self.best_gains, self.best_plan = contest.gains, list(contest.taken)
        if number == len(contest.competitors) or self.steps_left <= 0:
            return
        for taken in self._ways(number):
            self.steps_left -= 1
            rent = taken[1].gpus * sum([contest.prices[lot] for lot in taken[2]])
            contest.put(number, taken)
            self.rent -= rent
            if self._most(number + 1) > self.best_gains:
                self.from_(number + 1)
            self.rent += rent
            contest.remove(number)
            if self.steps_left <= 0:
                return
        if self._most(number + 1) > self.best_gains:
            self.from_(number + 1)

    def _most(self, number: int) -> int:
        """What this plan can still come to, if the competitors from this one on are added."""
        return self.contest.gains + min(self.alone[number], self.surplus[number] + self.rent)

    def _ways(self, number: int) -> Iterator[Taken]:
        """Every set of lots that the competitor could have now and that could be worth it, the cheaper lots first."""
        contest = self.contest
        seen = set[tuple[int, ...]]()
        for choice in contest.choices[number]:
            lots = contest.lots_of(contest.available[choice.gpus] & contest.reach(choice))
            if len(lots) < choice.nodes:
                continue
            lots.sort(key=lambda lot: (contest.asks_microusd[lot], lot))
            for chosen in self._sets(lots, choice):
                if chosen not in seen:
                    seen.add(chosen)
                    yield contest.taking(number, choice, chosen)

    def _sets(self, lots: list[int], choice: Choice) -> Iterator[tuple[int, ...]]:
        """The sets of the right size; of lots that are alike always the first ones."""
        free, kinds, chosen = self.contest.free, self._kinds, list[int]()

        def extend(start: int) -> Iterator[tuple[int, ...]]:
            if len(chosen) == choice.nodes:
                yield tuple(chosen)
                return
            skipped = set[tuple[int, int]]()
            for at in range(start, len(lots) - (choice.nodes - len(chosen)) + 1):
                kind = (kinds[lots[at]], free[lots[at]])
                if kind in skipped:
                    continue
                chosen.append(lots[at])
                yield from extend(at + 1)
                chosen.pop()
                skipped.add(kind)

        return extend(0)


def solve(priced: Priced, steps_max: int = EXACT_STEPS_MAX) -> bool:
    """Makes the plan optimal, and says whether it could within so many steps."""
    contest = priced.contest
    contest.renumber(priced.bound_prices)
    search = _Search(priced, steps_max)
    search.from_(0)
    if search.steps_left <= 0:
        return False
    if search.best_plan is not None:
        priced.gains, priced.plan = search.best_gains, search.best_plan
    return True


def _sums_from(gains: list[int]) -> list[int]:
    """For each competitor, what it and all younger ones gain."""
    sums = [0]
    for one in reversed(gains):
        sums.append(sums[-1] + max(0, one))
    return sums[::-1]


def _kinds(contest: Contest) -> list[int]:
    """A number for each lot; lots with the same number are alike for everybody, but for what is free of them."""
    known: dict[tuple[object, ...], int] = {}
    return [known.setdefault(contest.traits(lot), len(known)) for lot in range(len(contest.lots))]
