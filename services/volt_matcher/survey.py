"""How many lots each filter lets through, for the requests that could not be placed: the answer to "why".

    alive, excluded, model, memory, interface, bandwidth, reliability, tier, runtime, terms, free_gpus
                                            must leave as many lots of one model as nodes are needed
    interconnect, region, country, price    must leave as many within one domain of the required level

The binding filter is the first that leaves too little. Filters of what was not asked are counted only when they removed
something. Requests that differ by their cap alone are counted once, the price apart.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from volt.contracts.bids import Place
from volt.contracts.market import FilterCount
from volt_matcher.feasible import displaced_by, is_excluded, unsuited_by
from volt_matcher.lots import Lot, LotId, Request, Shape, level_of
from volt_matcher.state import State

LOT_FILTERS = ("model", "memory", "interface", "bandwidth", "reliability", "tier", "runtime", "terms", "free_gpus")
PLACE_FILTERS = ("region", "country")
FILTERS = ("alive", "excluded", *LOT_FILTERS, "interconnect", *PLACE_FILTERS, "price")
"""In the order in which they are counted."""
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


class _Group(NamedTuple):
    """Lots of one model in one place: one of them for all, and their asks in order."""

    lot: Lot
    asks_microusd: list[int]


class _Able(NamedTuple):
    """What passes the filters of lots: how many each kept, the most of one model, the rest by place."""

    kept: tuple[tuple[str, int], ...]
    most_of_a_model: int
    largest_free: int
    groups: tuple[_Group, ...]


class _Together(NamedTuple):
    """What passes the filters of place too: each filter, how many it kept, and whether those are enough."""

    steps: tuple[tuple[str, int, bool], ...]
    crowds: tuple[tuple[_Group, ...], ...]
    """By domain of the required level."""
    largest_crowd: int


class Survey:
    """All lots there are, as one pass leaves them. What requests have in common is counted once."""

    def __init__(self, state: State) -> None:
        self.book = state.book
        self.reasons = state.reasons
        self._lots: dict[str, list[Lot]] = {}
        for lots in state.lots.values():
            for lot in lots:
                self._lots.setdefault(lot.model, []).append(lot)
        self._alive = sum([lot.alive for lots in self._lots.values() for lot in lots])
        self._all = sum(map(len, self._lots.values()))
        self._able: dict[tuple[Request, bool], _Able] = {}
        self._together: dict[tuple[Request, bool], _Together] = {}

    def shortfall(self, request: Request, *, if_all_were_free: bool = False) -> Shortfall | None:
        """Why the request finds too little; None if there is enough."""
        able = self._able_lots(request, if_all_were_free)
        together = self._together_lots(request, if_all_were_free, able)
        nodes, cap_microusd = request.nodes, request.cap_microusd_per_gpu_hour
        affordable = [_affordable(crowd, cap_microusd) for crowd in together.crowds]
        steps = [(name, kept, kept >= nodes) for name, kept in able.kept[:-1]]
        steps.append((*able.kept[-1], able.most_of_a_model >= nodes))
        steps += [*together.steps, ("price", sum(affordable), max(affordable, default=0) >= nodes)]
        binding = next((name for name, _, is_enough in steps if not is_enough), None)
        if binding is None:
            return None
        seen = (self._all, *(kept for _, kept, _ in steps[:-1]))
        funnel = tuple(
            FilterCount(filter=name, seen=before, kept=kept)
            for (name, kept, _), before in zip(steps, seen, strict=True)
            if name in ALWAYS or kept < before
        )
        bound = next(count for count in funnel if count.filter == binding)
        lowest_microusd = min([group.asks_microusd[0] for crowd in together.crowds for group in crowd], default=0)
        return Shortfall(
            binding, bound.seen, bound.kept, funnel, able.largest_free, together.largest_crowd, lowest_microusd
        )

    def _able_lots(self, request: Request, if_all_were_free: bool) -> _Able:
        """Counts the filters of lots, once for all requests that differ by place, price or number of nodes."""
        alike = replace(
            request,
            shapes=(Shape(1, request.gpus_per_node),),
            interconnect="any",
            cap_microusd_per_gpu_hour=None,
            regions=frozenset(),
            regions_denied=frozenset(),
            countries=frozenset(),
            countries_denied=frozenset(),
            home="",
            within="",
        )
        key = (alike, if_all_were_free)
        if key not in self._able:
            self._able[key] = self._count(alike, if_all_were_free)
        return self._able[key]

    def _count(self, request: Request, if_all_were_free: bool) -> _Able:
        gpus, allowed, others = request.gpus_per_node, *self._allowed(request)
        refused, groups, largest_free = Counter({"model": others}), dict[tuple[str, Place], list[Lot]](), 0
        for lot in allowed:
            filter_ = unsuited_by(lot, request, gpus)
            if not filter_:
                free = lot.total if if_all_were_free else self.book.free(LotId(lot.node, lot.model))
                largest_free = max(largest_free, free)
                if free >= gpus:
                    groups.setdefault((lot.model, lot.place), []).append(lot)
                    continue
                filter_ = "free_gpus"
            refused[filter_] += 1
        left = len(allowed) + others
        kept, of_model = [("alive", self._alive), ("excluded", left)], Counter[str]()
        for name in LOT_FILTERS:
            left -= refused[name]
            kept.append((name, left))
        for (model, _), lots in groups.items():
            of_model[model] += len(lots)
        by_place = (
            _Group(lots[0], sorted([lot.ask_microusd_per_gpu_hour for lot in lots])) for lots in groups.values()
        )
        return _Able(tuple(kept), max(of_model.values(), default=0), largest_free, tuple(by_place))

    def _allowed(self, request: Request) -> tuple[list[Lot], int]:
        """The live lots of the models asked for that are not excluded, and how many there are of other models."""
        of_models = [lot for model in sorted(request.models) for lot in self._lots.get(model, ()) if lot.alive]
        if not (request.excluded or request.providers_excluded or request.barred):
            return of_models, self._alive - len(of_models)
        allowed = [lot for lot in of_models if not is_excluded(lot, request)]
        others = [lot for model, lots in self._lots.items() if model not in request.models for lot in lots]
        return allowed, sum([lot.alive and not is_excluded(lot, request) for lot in others])

    def _together_lots(self, request: Request, if_all_were_free: bool, able: _Able) -> _Together:
        """Counts the filters of place, once for all requests that differ by price."""
        key = (replace(request, cap_microusd_per_gpu_hour=None), if_all_were_free)
        if key not in self._together:
            self._together[key] = _placed(request, able.groups)
        return self._together[key]


def _placed(request: Request, groups: tuple[_Group, ...]) -> _Together:
    nodes, level = request.nodes, level_of(request, request.nodes)
    is_too_far = request.interconnect == "nvlink" and nodes > 1
    crowds: dict[tuple[str, str], list[_Group]] = {}
    for group in groups:
        lot = group.lot
        is_home = not request.home or request.home in lot.domains.values()
        if lot.domains[level] and is_home and not is_too_far:
            crowds.setdefault((lot.model, lot.domains[level]), []).append(group)
    largest_crowd = max([_size(crowd) for crowd in crowds.values()], default=0)
    together = list(crowds.values()) if level == "any" else [one for one in crowds.values() if _size(one) >= nodes]
    steps = [("interconnect", *_crowded(together, nodes))]
    for name in PLACE_FILTERS:
        together = [[group for group in crowd if displaced_by(group.lot, request) != name] for crowd in together]
        steps.append((name, *_crowded(together, nodes)))
    return _Together(tuple(steps), tuple([tuple(crowd) for crowd in together]), largest_crowd)


def _size(crowd: list[_Group]) -> int:
    return sum([len(group.asks_microusd) for group in crowd])


def _crowded(crowds: list[list[_Group]], nodes: int) -> tuple[int, bool]:
    sizes = list(map(_size, crowds))
    return sum(sizes), max(sizes, default=0) >= nodes


def _affordable(crowd: tuple[_Group, ...], cap_microusd: int | None) -> int:
    """How many of them ask at most the cap."""
    if cap_microusd is None:
        return sum([len(group.asks_microusd) for group in crowd])
    return sum([bisect_right(group.asks_microusd, cap_microusd) for group in crowd])
