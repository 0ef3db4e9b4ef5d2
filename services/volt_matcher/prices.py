"""Shadow prices: what a GPU of each lot is worth to those who do not get it.

The Lagrangian dual of the pass: with a price on each lot, every competitor alone takes what is cheapest, and the sum
of what they gain, plus the price of all that is free, bounds what any plan can gain (Held and Karp 1970, Fisher 1981).
The prices rise where more is taken than is free and fall where less is, by Polyak's step. In every round the
competitors are also placed one after the other at these prices; the best plan of all rounds is kept.
"""

from volt_matcher.contest import Contest, Taken

DENSITIES = ((1, 1), (4, 3), (2, 1))
"""Orders to begin with: gains to this power over GPUs to that one, greatest first."""
STEP_PERMILLE = 1000
SHRINK_PERMILLE = 600
STALLED_ROUNDS_MAX = 2

Plan = list[Taken | None]


class Priced:
    """The best plan so far, the prices of the last round, and the bound that the prices prove."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.plan: Plan = [None] * len(contest.competitors)
        self.gains = -1
        self.bound = -1
        self.prices = list(contest.prices)
        self.bound_prices = self.prices
        """The prices that prove the bound."""
        self.surplus = [0] * len(contest.competitors)
        """What each would gain at those prices."""
        self.alone: list[int] = []
        """What each would gain if nobody else were there."""

    def keep(self) -> None:
        """The contest's plan, if it is better than what was kept."""
        if self.contest.gains > self.gains:
            self.gains, self.plan = self.contest.gains, list(self.contest.taken)


def by_prices(contest: Contest, rounds: int) -> Priced:
    """Plans by shadow prices."""
    priced, numbers = Priced(contest), range(len(contest.competitors))
    found = [contest.best(number, contest.at_first) for number in numbers]
    alone = priced.alone = [one[0] if one else 0 for one in found]
    for up, down in DENSITIES:
        _greedy(priced, [gains**up * 1000 // size**down for gains, size in zip(alone, contest.size, strict=True)])
    step_permille, stalled = STEP_PERMILLE, 0
    for _ in range(rounds):
        contest.renumber(priced.prices)
        bound, surplus, excess = _relaxed(contest)
        if priced.bound < 0 or bound < priced.bound:
            priced.bound, priced.bound_prices, priced.surplus, stalled = bound, priced.prices, surplus, 0
        else:
            stalled += 1
        if stalled > STALLED_ROUNDS_MAX:
            step_permille, stalled = step_permille * SHRINK_PERMILLE // 1000, 0
        _greedy(priced, [gains * 1000 // size for gains, size in zip(surplus, contest.size, strict=True)])
        _greedy(priced, surplus)
        gap = max(bound - priced.gains, bound // 500) * step_permille // 1000
        steepness = sum([more * more for more, price in zip(excess, priced.prices, strict=True) if more > 0 or price])
        if not steepness or priced.bound <= priced.gains:
            break
        priced.prices = [
            max(0, price + gap * more // steepness) for price, more in zip(priced.prices, excess, strict=True)
        ]
    return priced


def _greedy(priced: Priced, worth: list[int]) -> None:
    """One after the other, those who are worth most first."""
    contest = priced.contest
    contest.empty()
    for number in sorted(range(len(contest.competitors)), key=lambda number: (-worth[number], number)):
        found = contest.best(number, contest.available)
        if found is not None:
            contest.put(number, found)
    priced.keep()


def _relaxed(contest: Contest) -> tuple[int, list[int], list[int]]:
    """What all could gain at these prices if each were alone, what each gains, and what is asked of lots in excess."""
    prices, free = contest.prices, contest.free
    bound = sum([price * count for price, count in zip(prices, free, strict=True)])
    surplus, excess = [], [-count for count in free]
    for number in range(len(contest.competitors)):
        found = contest.best(number, contest.at_first)
        gains = contest.priced(found) if found is not None else 0
        surplus.append(gains)
        if found is not None and gains > 0:
            bound += gains
            for lot in found[2]:
                excess[lot] += found[1].gpus
    return bound, surplus, excess
