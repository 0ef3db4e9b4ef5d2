"""Requests that compete for the same lots, in a form in which many plans can be tried quickly.

Lots are numbered by ask plus shadow price, and sets of lots are integers with a bit for each. The cheapest lots with
eight GPUs free on one fabric are then the lowest bits of `available[8] & eligible & fabric`.

Money here is micro-dollars per hour times `UNIT`, so that weights (per mille) and preferences (per cent) stay integers.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from volt.contracts.jobs import Level
from volt_matcher.fields import PERMILLE, Competitor, Fields, gather
from volt_matcher.ladder import Rung
from volt_matcher.lots import Lot, Request, Shape, level_of, shapes_allowed
from volt_matcher.place import PERCENT
from volt_matcher.topology import LEVELS, shared

UNIT = PERMILLE * PERCENT
NEVER = 1 << 200
"""More than anything costs."""


class Choice(NamedTuple):
    """One way to serve a competitor: a shape, within one domain or anywhere, and what it costs at least."""

    least: int
    domain: int
    nodes: int
    gpus: int
    factor: int
    field: int


Taken = tuple[int, Choice, tuple[int, ...]]
"""What a competitor has in a plan: its gains, how, and which lots."""
ANYWHERE = -1
WIDTH: dict[Level, int] = {"nvlink": 0, "fabric": 1, "site": 2, "region": 3, "any": 4}


class Contest:
    """A plan in the making: what is free of each lot, and who has what."""

    def __init__(self, rungs: Sequence[Rung], competitors: Sequence[Competitor]) -> None:
        ordered = sorted(rungs, key=lambda rung: (*rung[:4], rung.lot.model))
        self.lots: list[Lot] = [rung.lot for rung in ordered]
        self.asks_microusd = [rung.ask_microusd for rung in ordered]
        self.free = [rung.free for rung in ordered]
        self.competitors = competitors
        self.taken: list[Taken | None] = []
        self.held: list[int] = []
        """The lots that each has, as bits."""
        self.steps = 0
        self.changes = 0
        self.gains = 0
        """Of the whole plan."""
        self.whole = list(self.free)
        """What was free at first."""
        self._sizes = sorted({shape.gpus_per_node for one in competitors for shape in one.request.shapes})
        most = max(self.free, default=0)
        self._crossed = [
            {gpus: self._between(before, before + gpus) for gpus in range(-before, most - before + 1)}
            for before in range(most + 1)
        ]
        self._name_domains()
        self._eligible = Fields(self.lots, competitors)
        self._unchanged = [0] * len(self.domain_lots)
        self.prices = [0] * len(ordered)
        self.renumber(self.prices)
        self.limit = [self._limit(one) + len(competitors) - number for number, one in enumerate(competitors)]
        """What each would pay at most. Older ones pay a little more, so that equal gains are theirs."""
        self.choices = [self._choices(number) for number in range(len(competitors))]
        self.size = [one.request.shapes[0].nodes * one.request.shapes[0].gpus_per_node for one in competitors]

    def renumber(self, prices: list[int]) -> None:
        """Empties the plan, and numbers the lots by ask plus these shadow prices, in money."""
        self.prices = prices
        asks_microusd = self.asks_microusd
        costs = [UNIT * ask_microusd + price for ask_microusd, price in zip(asks_microusd, prices, strict=True)]
        self._order = order = sorted(range(len(costs)), key=costs.__getitem__)
        self.bit = bit = [0] * len(order)
        one = 1
        for lot in order:
            bit[lot] = one
            one <<= 1
        self._masks = gather(self.domain_lots, bit)
        self._fields = self._eligible.bits(bit)
        self.at_first = self._at_least(self.whole)
        self._costs: list[dict[Choice, tuple[int, int]]] = [{} for _ in self.competitors]
        self.empty()

    def best(self, number: int, available: dict[int, int]) -> Taken | None:
        """The cheapest way, shadow prices counted, to serve a competitor out of what is available."""
        self.steps += 1
        best_cost, best_choice, best_lots = NEVER, None, 0
        known, fields, masks = self._costs[number], self._fields, self._masks
        changed = self._changed if available is self.available else self._unchanged
        for choice in self.choices[number]:
            least, domain, _, gpus, _, field = choice
            if least >= best_cost:
                break
            lots = available[gpus] & fields[field]
            if domain < 0:
                cost = self._cost(lots, choice)
            else:
                lots &= masks[domain]
                cached = known.get(choice)
                if cached is not None and cached[0] == changed[domain]:
                    cost = cached[1]
                else:
                    cost = self._cost(lots, choice)
                    known[choice] = (changed[domain], cost)
            if cost < best_cost:
                best_cost, best_choice, best_lots = cost, choice, lots
        if best_choice is None:
            return None
        return self._take_lowest(number, best_choice, best_lots)

    def taking(self, number: int, choice: Choice, lots: tuple[int, ...]) -> Taken:
        """What the competitor gains from these lots."""
        asked_microusd = sum([self.asks_microusd[lot] for lot in lots])
        return (self.limit[number] - choice.gpus * choice.factor * asked_microusd, choice, lots)

    def reach(self, choice: Choice) -> int:
        """The lots that the choice could use, as bits."""
        lots = self._fields[choice.field]
        return lots & self._masks[choice.domain] if choice.domain >= 0 else lots

    def lots_of(self, bits: int) -> list[int]:
        """The lots that these bits stand for, cheapest first."""
        lots = []
        while bits:
            low = bits & -bits
            lots.append(self._order[low.bit_length() - 1])
            bits ^= low
        return lots

    def first(self, bits: int, count: int) -> list[int]:
        """The cheapest so many of the lots that these bits stand for; all if there are fewer."""
        order, lots = self._order, list[int]()
        while bits and len(lots) < count:
            low = bits & -bits
            lots.append(order[low.bit_length() - 1])
            bits ^= low
        return lots

    def beside(self, lot: int) -> int:
        """The lots of the narrowest domain that the lot is in, as bits; all if it is in none."""
        domains = self.domains_of[lot]
        return self._masks[domains[0]] if domains else (1 << len(self.lots)) - 1

    def put(self, number: int, taken: Taken) -> None:
        """Gives a competitor what was found for it."""
        self.held[number] = self._shift(taken, -taken[1].gpus)
        self.taken[number] = taken
        self.gains += taken[0]

    def remove(self, number: int) -> Taken:
        """Takes it away again."""
        taken = self.taken[number]
        assert taken is not None, f"competitor {number} has nothing"
        self._shift(taken, taken[1].gpus)
        self.held[number] = 0
        self.taken[number] = None
        self.gains -= taken[0]
        return taken

    def empty(self) -> None:
        """Takes everything away."""
        self.free, self.available = list(self.whole), dict(self.at_first)
        self.taken, self.held = [None] * len(self.competitors), [0] * len(self.competitors)
        self.gains = 0
        self._changed = [0] * len(self._masks)

    def load(self, plan: Sequence[Taken | None]) -> None:
        """Makes this the plan."""
        for number, taken in enumerate(plan):
            if self.taken[number] is not None and self.taken[number] is not taken:
                self.remove(number)
        for number, taken in enumerate(plan):
            if taken is not None and self.taken[number] is None:
                self.put(number, taken)

    def priced(self, taken: Taken) -> int:
        """The gains less the shadow prices."""
        prices = self.prices
        return taken[0] - taken[1].gpus * sum([prices[lot] for lot in taken[2]])

    def _take_lowest(self, number: int, choice: Choice, bits: int) -> Taken:
        order, lots = self._order, []
        for _ in range(choice.nodes):
            low = bits & -bits
            lots.append(order[low.bit_length() - 1])
            bits ^= low
        return self.taking(number, choice, tuple(lots))

    def _cost(self, bits: int, choice: Choice) -> int:
        if bits.bit_count() < choice[2]:
            return NEVER
        order, asks_microusd, prices, asked_microusd, priced = self._order, self.asks_microusd, self.prices, 0, 0
        for _ in range(choice[2]):
            low = bits & -bits
            lot = order[low.bit_length() - 1]
            asked_microusd += asks_microusd[lot]
            priced += prices[lot]
            bits ^= low
        return choice[3] * (choice[4] * asked_microusd + priced)

    def _shift(self, taken: Taken, gpus: int) -> int:
        """So many GPUs more, or fewer, on each of the lots taken. Returns the lots as bits."""
        free, available, bit = self.free, self.available, self.bit
        by_free: dict[int, int] = {}
        for lot in taken[2]:
            before = free[lot]
            free[lot] = before + gpus
            by_free[before] = by_free.get(before, 0) + bit[lot]
        for before, bits in by_free.items():
            for size in self._crossed[before][gpus]:
                available[size] ^= bits
        self.changes += 1
        if self._is_one_level and taken[1].domain >= 0:
            self._changed[taken[1].domain] = self.changes
        else:
            for lot in taken[2]:
                for domain in self.domains_of[lot]:
                    self._changed[domain] = self.changes
        return sum(by_free.values())

    def _between(self, one: int, other: int) -> tuple[int, ...]:
        """The sizes that fit into the larger number of GPUs and not into the smaller."""
        low, high = min(one, other), max(one, other)
        return tuple(size for size in self._sizes if low < size <= high)

    def _at_least(self, free: list[int]) -> dict[int, int]:
        """For each size, the lots with so many GPUs free."""
        return {
            size: sum([b for b, count in zip(self.bit, free, strict=True) if count >= size]) for size in self._sizes
        }

    def _limit(self, competitor: Competitor) -> int:
        """What the competitor would pay at most."""
        request, shape = competitor.request, competitor.request.shapes[0]
        assert request.cap_microusd_per_gpu_hour is not None, "who competes has a cap"
        gpus = shape.nodes * shape.gpus_per_node
        return competitor.weight_permille * PERCENT * request.cap_microusd_per_gpu_hour * gpus

    def _name_domains(self) -> None:
        """Numbers the domains of those levels at which somebody must or would be together."""
        levels = {
            level
            for one in self.competitors
            for shape in one.request.shapes
            for level in (level_of(one.request, shape.nodes), one.request.preferred)
            if level in LEVELS[:-1] and shape.nodes > 1
        }
        self._levels: dict[Level, dict[tuple[str, str], int]] = {level: {} for level in LEVELS if level in levels}
        self._is_one_level = len(self._levels) == 1
        self.domain_lots: list[list[int]] = []
        self.domains_of: list[list[int]] = [[] for _ in self.lots]
        for level in LEVELS:
            names = self._levels.get(level)
            for number, lot in enumerate(self.lots if names is not None else ()):
                name = lot.domains[level]
                if names is None or not name:
                    continue
                domain = names.setdefault((lot.model, name), len(self.domain_lots))
                if domain == len(self.domain_lots):
                    self.domain_lots.append([])
                self.domain_lots[domain].append(number)
                self.domains_of[number].append(domain)

    def _choices(self, number: int) -> tuple[Choice, ...]:
        """Every way to serve a competitor that would do if nobody else were there, cheapest first."""
        request, weight_permille = self.competitors[number]
        found = []
        for shape in shapes_allowed(request):
            for model in sorted(request.models):
                field = self._eligible.of[number, shape, model]
                for domain, percent in self._extents(request, shape, model):
                    choice = Choice(0, domain, *shape, weight_permille * percent, field)
                    least = self._cost(self.at_first[shape.gpus_per_node] & self.reach(choice), choice)
                    if least < NEVER:
                        found.append(choice._replace(least=least))
        return tuple(sorted(found))

    def _extents(self, request: Request, shape: Shape, model: str) -> Iterable[tuple[int, int]]:
        """Domains to look in, and the percentage at which costs in them count."""
        preferred, less = request.preferred, PERCENT - request.preferred_percent
        level = level_of(request, shape.nodes)
        held: Level = "nvlink" if shape.nodes == 1 else level
        is_always = preferred is not None and WIDTH[held] <= WIDTH[preferred]
        percent = less if is_always else PERCENT
        if level == "any":
            yield ANYWHERE, percent
        else:
            yield from ((domain, percent) for domain in self._of_model(level, model))
        if preferred is not None and not is_always:
            inside = [domain for domain in self._of_model(preferred, model) if self._is_inside(domain, level)]
            yield from ((domain, less) for domain in inside)

    def _is_inside(self, domain: int, level: Level) -> bool:
        """Whether the domain is within one of this level; a fabric may be at several sites."""
        return bool(shared((self.lots[lot].domains for lot in self.domain_lots[domain]), level))

    def _of_model(self, level: Level, model: str) -> list[int]:
        return [domain for (of, _), domain in self._levels.get(level, {}).items() if of == model]
