"""How many lots each filter lets through, for the requests that could not be placed: the answer to "why".

    alive, excluded, model, memory, interface, bandwidth, reliability, tier, terms, free_gpus
                                            must leave as many lots of one model as nodes are needed
    interconnect, region, country, price    must leave as many within one domain of the required level

The binding filter is the first that leaves too little. Filters of what was not asked are counted only when they removed
something. Requests that differ by their cap alone are counted once, the price apart.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from volt.contracts.market import FilterCount
from volt_matcher.feasible import displaced_by, is_excluded, unsuited_by
from volt_matcher.lots import Lot, LotId, Request, level_of
from volt_matcher.state import State

LOT_FILTERS = ("model", "memory", "interface", "bandwidth", "reliability", "tier", "terms", "free_gpus")
PLACE_FILTERS = ("region", "country")
ALWAYS = frozenset({"alive", "excluded", "model", "memory", "free_gpus", "interconnect", "region", "price"})


class Shortfall(NamedTuple):
    """Too little is left. `shown` is how many lots the binding filter was shown, `kept` how many it let through."""

    binding: str
    shown: int
    kept: int
    funnel: tuple[FilterCount, ...]
    largest_free: int
    """The most GPUs free on one of the lots that free GPUs were sought on."""
    largest_crowd: int
    """The most lots in one domain of those that `interconnect` was shown."""
    lowest_ask_microusd: int
    """Of the lots that `price` was shown."""


class _Counted(NamedTuple):
    """A request without its cap: the steps up to the price, and the asks of what is left, in order, by domain."""

    steps: tuple[tuple[str, int, bool], ...]
    """Each filter, how many lots it kept, and whether those are enough."""
    asks_microusd: Mapping[tuple[str, str], list[int]]
    largest_free: int
    largest_crowd: int


class Survey:
    """All lots there are, as one pass leaves them."""

    def __init__(self, state: State) -> None:
        self.book = state.book
        self.reasons = state.reasons
        self._lots: dict[str, list[Lot]] = {}
        for lots in state.lots.values():
            for lot in lots:
                self._lots.setdefault(lot.model, []).append(lot)
        self._alive = sum([lot.alive for lots in self._lots.values() for lot in lots])
        self._all = sum(map(len, self._lots.values()))
        self._counted: dict[tuple[Request, bool], _Counted] = {}

    def shortfall(self, request: Request, *, if_all_were_free: bool = False) -> Shortfall | None:
        """Why the request finds too little; None if there is enough."""
        uncapped = replace(request, cap_microusd_per_gpu_hour=None)
        key = (uncapped, if_all_were_free)
        if key not in self._counted:
            self._counted[key] = self._count(uncapped, if_all_were_free)
        counted = self._counted[key]
        steps = (*counted.steps, _price_step(counted, request))
        binding = next((name for name, _, is_enough in steps if not is_enough), None)
        if binding is None:
            return None
        seen = (self._all, *(kept for _, kept, _ in steps))
        funnel = tuple(
            FilterCount(filter=name, seen=before, kept=kept)
            for (name, kept, _), before in zip(steps, seen, strict=False)
            if name in ALWAYS or kept < before
        )
        bound = next(count for count in funnel if count.filter == binding)
        lowest_microusd = min([asks[0] for asks in counted.asks_microusd.values()], default=0)
        return Shortfall(
            binding, bound.seen, bound.kept, funnel, counted.largest_free, counted.largest_crowd, lowest_microusd
        )

    def _count(self, request: Request, if_all_were_free: bool) -> _Counted:
        nodes, gpus = request.shapes[0]
        refused: Counter[str] = Counter()
        left, largest_free = list[Lot](), 0
        allowed, others = self._allowed(request)
        for lot in allowed:
            filter_ = unsuited_by(lot, request, gpus)
            if not filter_:
                free = lot.total if if_all_were_free else self.book.free(LotId(lot.node, lot.model))
                largest_free = max(largest_free, free)
                filter_ = "" if free >= gpus else "free_gpus"
            if filter_:
                refused[filter_] += 1
            else:
                left.append(lot)
        kept = len(allowed) + others
        steps = [("alive", self._alive, self._alive >= nodes), ("excluded", kept, kept >= nodes)]
        refused["model"] = others
        by_model = Counter([lot.model for lot in left])
        for name in LOT_FILTERS:
            kept -= refused[name]
            most = max(by_model.values(), default=0) if name == "free_gpus" else kept
            steps.append((name, kept, most >= nodes))
        together, largest_crowd = self._place(request, left, steps)
        return _Counted(tuple(steps), together, largest_free, largest_crowd)

    def _allowed(self, request: Request) -> tuple[list[Lot], int]:
        """The live lots of the models asked for that are not excluded, and how many there are of other models."""
        of_models = [lot for model in sorted(request.models) for lot in self._lots.get(model, ()) if lot.alive]
        if not (request.excluded or request.providers_excluded or request.barred):
            return of_models, self._alive - len(of_models)
        allowed = [lot for lot in of_models if not is_excluded(lot, request)]
        others = [lot for model, lots in self._lots.items() if model not in request.models for lot in lots]
        return allowed, sum([lot.alive and not is_excluded(lot, request) for lot in others])

    def _place(
        self, request: Request, left: list[Lot], steps: list[tuple[str, int, bool]]
    ) -> tuple[dict[tuple[str, str], list[int]], int]:
        """Counts the filters of place; the asks of what is left by domain, and the size of the largest crowd."""
        nodes, level = request.nodes, level_of(request, request.nodes)
        if request.home:
            left = [lot for lot in left if request.home in lot.domains.values()]
        if request.interconnect == "nvlink" and nodes > 1:
            left = []
        crowds: dict[tuple[str, str], list[Lot]] = {}
        for lot in left:
            if lot.domains[level]:
                crowds.setdefault((lot.model, lot.domains[level]), []).append(lot)
        largest_crowd = max(map(len, crowds.values()), default=0)
        if level != "any":
            crowds = {name: lots for name, lots in crowds.items() if len(lots) >= nodes}
        steps.append(("interconnect", *_crowded(crowds, nodes)))
        for name in PLACE_FILTERS:
            crowds = {key: [lot for lot in lots if displaced_by(lot, request) != name] for key, lots in crowds.items()}
            steps.append((name, *_crowded(crowds, nodes)))
        asks_microusd = {
            name: sorted([lot.ask_microusd_per_gpu_hour for lot in lots]) for name, lots in crowds.items() if lots
        }
        return asks_microusd, largest_crowd


def _crowded(crowds: Mapping[tuple[str, str], list[Lot]], nodes: int) -> tuple[int, bool]:
    sizes = [len(lots) for lots in crowds.values()]
    return sum(sizes), max(sizes, default=0) >= nodes


def _price_step(counted: _Counted, request: Request) -> tuple[str, int, bool]:
    cap_microusd = request.cap_microusd_per_gpu_hour
    sizes = [
        len(asks) if cap_microusd is None else bisect_right(asks, cap_microusd)
        for asks in counted.asks_microusd.values()
    ]
    return "price", sum(sizes), max(sizes, default=0) >= request.nodes
