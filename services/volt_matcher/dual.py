"""The Lagrangian dual of a contest at given prices: what each would do if it were alone and had to pay them.

A price per GPU of each lot relaxes "no lot is sold beyond what is free". Only lots with a price are kept track of: in
a domain without any, the cheapest set is what it always was. What a set in another domain cost when it was last looked
at, less what prices there have fallen since, is a bound by which most domains are passed over.
"""

from typing import NamedTuple

from volt_matcher.contest import ANYWHERE, Choice, Contest

Prices = dict[int, int]
"""Per lot, in money per GPU; lots that are not named are free of charge."""
IS_ABLE = bytes.maketrans(b"01", b"\0\1")


class Open(NamedTuple):
    """A way that a better plan could use: how much worse it is than the best one, and each lot's cost per GPU."""

    regret: int
    choice: Choice
    lots: list[tuple[int, int]]
    cost: int


class Way:
    """A choice, which lots it could use, and the cost per GPU of every lot for whoever has this choice."""

    __slots__ = ("choice", "costs", "domain", "eligible", "gpus", "known", "least", "lots", "nodes")

    def __init__(self, choice: Choice, lots: list[int], eligible: bytes, costs: list[int]) -> None:
        self.choice = choice
        self.least, self.domain, self.nodes, gpus, _, _ = choice
        self.gpus = gpus
        self.lots = lots
        self.eligible = eligible
        self.costs = costs
        self.known = choice.least
        """What it cost when last looked at, plus what prices in the domain had fallen by then."""


class Relaxed(NamedTuple):
    """The bound that prices prove, what each gains at them, and how many GPUs of each lot all take together."""

    bound: int
    surplus: list[int]
    taken: dict[int, int]


class Dual:
    """The dual at prices that change."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.prices: Prices = {}
        self._costs: dict[int, list[int]] = {}
        self._orders: dict[int, list[int]] = {}
        self._is_priced = [False] * len(contest.domain_lots)
        self._fallen = [0] * len(contest.domain_lots)
        self._lots: dict[tuple[int, int, int], tuple[list[int], bytes]] = {}
        self.ways = [
            [self._way(choice) for choice in choices if choice.least < limit]
            for choices, limit in zip(contest.choices, contest.limit, strict=True)
        ]
        self._last: list[Way | None] = [None] * len(self.ways)

    def charge(self, prices: Prices) -> None:
        """From now on lots have these prices."""
        before, self.prices = self.prices, prices
        asks_microusd, domains_of = self.contest.asks_microusd, self.contest.domains_of
        for factor, costs in self._costs.items():
            for lot in before:
                costs[lot] = factor * asks_microusd[lot]
            for lot, price in prices.items():
                costs[lot] = factor * asks_microusd[lot] + price
            if factor in self._orders:
                self._orders[factor].sort(key=costs.__getitem__)
        fallen: dict[int, int] = {}
        for lot, price in before.items():
            less = price - prices.get(lot, 0)
            for domain in domains_of[lot]:
                self._is_priced[domain] = False
                fallen[domain] = max(less, fallen.get(domain, 0))
        for domain, less in fallen.items():
            self._fallen[domain] += less
        for lot in prices:
            for domain in domains_of[lot]:
                self._is_priced[domain] = True

    def relax(self) -> Relaxed:
        """Everybody alone."""
        free = self.contest.whole
        bound = sum([price * free[lot] for lot, price in self.prices.items()])
        surplus, taken = [0] * len(self.ways), dict[int, int]()
        for number, limit in enumerate(self.contest.limit):
            cost, way = self._best(number, limit)
            if way is not None:
                surplus[number] = limit - cost
                bound += limit - cost
                for lot in self._cheapest(way):
                    taken[lot] = taken.get(lot, 0) + way.gpus
        return Relaxed(bound, surplus, taken)

    def cost(self, way: Way) -> int:
        """What the cheapest lots of the way cost."""
        if way.domain == ANYWHERE:
            costs = way.costs
            return way.gpus * sum([costs[lot] for lot in self._cheapest(way)])
        if not self._is_priced[way.domain]:
            return way.least
        return self._in_domain(way)

    def open_ways(self, number: int, gap: int, surplus: int) -> list[Open]:
        """The ways that a plan could use which loses less than so much against the bound, and the lots likewise."""
        found, limit = list[Open](), self.contest.limit[number]
        for way in self.ways[number]:
            costs, nodes, eligible = way.costs, way.nodes, way.eligible
            lots = way.lots or [lot for lot in self._orders[way.choice.factor] if eligible[lot]]
            by_cost = sorted([(costs[lot], lot) for lot in lots])
            cost = way.gpus * sum([one for one, _ in by_cost[:nodes]])
            regret = surplus - limit + cost
            if regret < gap:
                most = by_cost[nodes - 1][0] + (gap - regret) // way.gpus
                found.append(Open(regret, way.choice, [one for one in by_cost if one[0] <= most], cost))
        return sorted(found, key=lambda one: one[:2])

    def _way(self, choice: Choice) -> Way:
        contest, factor = self.contest, choice.factor
        if factor not in self._costs:
            self._costs[factor] = [factor * ask_microusd for ask_microusd in contest.asks_microusd]
        key = (choice.field, choice.domain, choice.gpus)
        if key not in self._lots:
            bits = contest.at_first[choice.gpus] & contest.reach(choice)
            if choice.domain == ANYWHERE:
                text = format(bits, f"0{len(contest.lots)}b")
                self._lots[key] = ([], text[::-1].encode().translate(IS_ABLE))
            else:
                self._lots[key] = (contest.lots_of(bits), b"")
        if choice.domain == ANYWHERE and factor not in self._orders:
            self._orders[factor] = list(range(len(contest.lots)))
        return Way(choice, *self._lots[key], self._costs[factor])

    def _best(self, number: int, limit: int) -> tuple[int, Way | None]:
        """The cheapest way that costs less than the limit."""
        best, found, last = limit, None, self._last[number]
        is_priced, fallen = self._is_priced, self._fallen
        if last is not None and is_priced[last.domain]:
            cost = self._in_domain(last)
            if cost < best:
                best, found = cost, last
        for way in self.ways[number]:
            if way.least >= best:
                break
            domain = way.domain
            if domain == ANYWHERE:
                cost = self.cost(way)
            elif not is_priced[domain]:
                cost = way.least
            elif way is last or way.known - way.gpus * way.nodes * fallen[domain] >= best:
                continue
            else:
                cost = self._in_domain(way)
            if cost < best:
                best, found = cost, way
        if found is not None and found.domain != ANYWHERE:
            self._last[number] = found
        return best, found

    def _in_domain(self, way: Way) -> int:
        costs = way.costs
        cost = way.gpus * sum(sorted([costs[lot] for lot in way.lots])[: way.nodes])
        way.known = cost + way.gpus * way.nodes * self._fallen[way.domain]
        return cost

    def _cheapest(self, way: Way) -> list[int]:
        if way.domain != ANYWHERE:
            return sorted(way.lots, key=way.costs.__getitem__)[: way.nodes]
        eligible, nodes, lots = way.eligible, way.nodes, list[int]()
        for lot in self._orders[way.choice.factor]:
            if eligible[lot]:
                lots.append(lot)
                if len(lots) == nodes:
                    break
        return lots
