"""The optimum of a small contest, by branch and bound on what the shadow prices leave open.

A plan gains the bound less its losses: for each competitor, how much worse than the best way at these prices it is
served (its regret; its surplus, if it is not served), and the price of what nobody takes. One competitor after the
other, whole nodes first, gets each set of lots whose losses are still less than those of the best plan, the least
first; then nothing. What the others will lose at least, now that some of their lots are gone, counts too.

Sets are many, so only the first few of each way are tried at first, and more in every round after. A round that left
out none is a proof. The search gives up after so many steps, and the best plan stands.
"""

from collections.abc import Iterator
from typing import NamedTuple

from volt_matcher.contest import Choice
from volt_matcher.dual import Open, Prices
from volt_matcher.prices import Priced

EXACT_STEPS_MAX = 1_000
EXACT_COMPETITORS_MAX = 60
"""A contest of more is not searched: it would hardly end within its steps."""
ROUNDS = ((1, 4), (1, 16), (2, 16), (4, 16), (8, 16), (1_000, 16))
"""How many sets of each way are tried, and plans that lose up to how many sixteenths of what the best one does."""
NOBODY = 1 << 30

Chosen = tuple[Choice, tuple[int, ...]]


class _Ways(NamedTuple):
    """A competitor, what it could have, and all those lots as bits."""

    number: int
    surplus: int
    open: list[Open]
    lots: int
    is_twin: bool
    """It asks for the same as the one before."""


class _Search:
    def __init__(self, priced: Priced, steps_max: int) -> None:
        contest = priced.contest
        self.steps_left = steps_max
        self.cut = priced.bound - priced.gains
        """A plan that loses no less than this is of no use."""
        self.best: list[Chosen | None] | None = None
        self.free = list(contest.whole)
        self.prices = priced.prices
        self.ways = _in_order(priced)
        self._least, self._ending = _least_sizes(self.ways, self.prices)
        self._chosen: list[Chosen | None] = [None] * len(self.ways)
        served = {ways.number for ways in self.ways}
        self.losses = sum([surplus for number, surplus in enumerate(priced.surplus) if number not in served])
        for lot, price in self.prices.items():
            if self.free[lot] < self._least[0].get(lot, NOBODY):
                self.losses += price * self.free[lot]
        self._regret = [self._least_regret(at) for at in range(len(self.ways))]
        self.losses += sum(self._regret)
        self._width = 0
        self._is_narrow = False

    def run(self) -> bool:
        """Whether the best plan that it leaves is proven to be the best there is."""
        whole = self.cut
        for self._width, sixteenths in ROUNDS:
            before, found = self.cut, self.best
            self.cut = min(before, self.losses + (whole - self.losses) * sixteenths // 16)
            self._is_narrow = False
            if self.losses < self.cut:
                self._from(0, self.losses, False)
            if self.best is found and self.cut < before:
                self.cut = before
            elif not self._is_narrow and self.steps_left > 0:
                return True
            if self.steps_left <= 0:
                return False
        return False

    def _from(self, at: int, losses: int, is_skipped: bool) -> None:
        """Tries everything for this competitor and all after it, of whom `losses` counts the least regrets."""
        self.steps_left -= 1
        if self.steps_left <= 0:
            return
        if at == len(self.ways):
            self.cut, self.best = losses, list(self._chosen)
            return
        ways = self.ways[at]
        losses -= self._regret[at]
        for one in ways.open if not (is_skipped and ways.is_twin) else ():
            if losses + one.regret >= self.cut:
                break
            for regret, lots in self._sets(one, losses):
                self._with(at, losses + regret, one.choice, lots)
                if self.steps_left <= 0:
                    return
        if losses + ways.surplus < self.cut:
            losses += ways.surplus + self._wasted(at, ())
            if losses < self.cut:
                self._from(at + 1, losses, True)

    def _with(self, at: int, losses: int, choice: Choice, lots: tuple[int, ...]) -> None:
        """Goes on with these lots taken."""
        bits = 0
        for lot in lots:
            self.free[lot] -= choice.gpus
            bits |= 1 << lot
        losses += self._wasted(at, lots)
        before = self._regret
        self._regret = regret = list(before)
        for other in range(at + 1, len(self.ways)):
            if losses >= self.cut:
                break
            if self.ways[other].lots & bits:
                regret[other] = self._least_regret(other)
                losses += regret[other] - before[other]
        if losses < self.cut:
            self._chosen[at] = (choice, lots)
            self._from(at + 1, losses, False)
            self._chosen[at] = None
        self._regret = before
        for lot in lots:
            self.free[lot] += choice.gpus

    def _least_regret(self, at: int) -> int:
        """The regret of the best that is left for a competitor."""
        best, free = self.ways[at].surplus, self.free
        for regret, choice, lots, least in self.ways[at].open:
            if regret >= best:
                break
            left, gpus, cost = choice.nodes, choice.gpus, 0
            for price, lot in lots:
                if free[lot] >= gpus:
                    cost += price
                    left -= 1
                    if not left:
                        best = min(best, regret + gpus * cost - least)
                        break
        return best

    def _wasted(self, at: int, lots: tuple[int, ...]) -> int:
        """The price of what is too little for all who come after; it was not when this one's turn came."""
        now, after, free, prices = self._least[at], self._least[at + 1], self.free, self.prices
        wasted = 0
        for lot in self._ending[at]:
            if lot not in lots and now[lot] <= free[lot] < after.get(lot, NOBODY):
                wasted += prices[lot] * free[lot]
        for lot in lots:
            if lot in prices and free[lot] < after.get(lot, NOBODY):
                wasted += prices[lot] * free[lot]
        return wasted

    def _sets(self, one: Open, losses: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The first sets of a way that are of use, and the regret of each."""
        regret, choice, all_lots, least = one
        free, gpus, nodes, chosen, width = self.free, choice.gpus, choice.nodes, list[int](), self._width
        lots = [each for each in all_lots if free[each[1]] >= gpus]

        def extend(start: int, left: int, cost: int) -> Iterator[tuple[int, tuple[int, ...]]]:
            nonlocal width
            for at in range(start, len(lots) - left + 1):
                self.steps_left -= 1
                total = regret - least + gpus * (cost + sum([price for price, _ in lots[at : at + left]]))
                if losses + total >= self.cut or self.steps_left <= 0:
                    return
                if not width:
                    self._is_narrow = True
                    return
                chosen.append(lots[at][1])
                if left > 1:
                    yield from extend(at + 1, left - 1, cost + lots[at][0])
                else:
                    width -= 1
                    yield total, tuple(chosen)
                chosen.pop()

        return extend(0, nodes, 0)


def solve(priced: Priced, steps_max: int = EXACT_STEPS_MAX) -> bool:
    """Makes the plan better if it can, and says whether it is now proven to be the best."""
    if len(priced.contest.competitors) > EXACT_COMPETITORS_MAX:
        return False
    search, contest = _Search(priced, steps_max), priced.contest
    is_proven = search.run()
    if search.best is not None:
        contest.empty()
        for ways, chosen in zip(search.ways, search.best, strict=True):
            if chosen is not None:
                contest.put(ways.number, contest.taking(ways.number, *chosen))
        priced.keep()
    return is_proven


def _in_order(priced: Priced) -> list[_Ways]:
    """Those who could be served: who wants many GPUs of a node first, then who gains most."""
    contest, surplus = priced.contest, priced.surplus
    opened = [(number, priced.open_ways(number)) for number in range(len(contest.competitors))]
    able = [one for one in opened if one[1]]
    able.sort(key=lambda one: (-one[1][0].choice.gpus, -surplus[one[0]], -contest.size[one[0]], one[0]))
    found, before = list[_Ways](), -1
    for number, ways in able:
        is_twin = before >= 0 and contest.competitors[before] == contest.competitors[number]
        bits = sum({1 << lot for one in ways for _, lot in one.lots})
        found.append(_Ways(number, surplus[number], ways, bits, is_twin))
        before = number
    return found


def _least_sizes(all_ways: list[_Ways], prices: Prices) -> tuple[list[dict[int, int]], list[list[int]]]:
    """For each place in the order the fewest GPUs of a lot with a price that anyone from there on wants; and where it
    is the last to want so few.
    """
    least: list[dict[int, int]] = [{}]
    ending = list[list[int]]()
    for ways in reversed(all_ways):
        sizes = dict(least[-1])
        changed = set[int]()
        for _, choice, lots, _ in ways.open:
            for _, lot in lots:
                if lot in prices and choice.gpus < sizes.get(lot, NOBODY):
                    sizes[lot] = choice.gpus
                    changed.add(lot)
        least.append(sizes)
        ending.append(sorted(changed))
    return least[::-1], ending[::-1]
