"""Where one request goes, for itself: the cheapest set of lots, found in the book without looking at all of it.

The cheapest set has the least sum of asks times GPUs, and so the greatest gains; being within the preferred level
counts as so much per cent less. Equal costs go to the lower price, which is the highest ask of the set; then to the
earlier shape, the narrower level, the fuller domain (that with the fewest free GPUs of the model, so that large ones
stay whole), reliability and ids. Domains are looked at in the order of what they cost at least, best first, and only as
long as one could be better than what was found.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from typing import NamedTuple

from volt.contracts.ids import NodeId
from volt.contracts.jobs import Level
from volt_matcher.book import UNHELD_GPUS, Book, Shelf, Standing, free_in
from volt_matcher.feasible import serves
from volt_matcher.ladder import Domain, Ladder, Rung
from volt_matcher.lots import Lot, Request, Shape, level_of, shapes_allowed
from volt_matcher.price import gang_price_microusd
from volt_matcher.topology import EVERYWHERE, LEVELS, region_domain, shared, tightest

PERCENT = 100


class Placement(NamedTuple):
    """Where a request fits: lots in the order of ranks, which follows topology, so many GPUs of each."""

    lots: tuple[Lot, ...]
    gpus_per_node: int

    @property
    def price_microusd_per_gpu_hour(self) -> int:
        """What each of them gets, and what is paid for each."""
        return gang_price_microusd(lot.ask_microusd_per_gpu_hour for lot in self.lots)

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * len(self.lots)

    @property
    def domain(self) -> str:
        """The tightest domain that holds all of them; empty if none does."""
        return tightest(lot.domains for lot in self.lots)


class _Found(NamedTuple):
    """A set of lots, and what it is compared by."""

    score: int
    top_ask_microusd: int
    shape: int
    width: int
    free_on_node: int
    free_in_domain: int
    unreliability: int
    nodes: tuple[NodeId, ...]
    lots: tuple[Lot, ...]


def cheapest(book: Book, request: Request) -> Placement | None:
    """Where the request goes, or None if it does not fit."""
    best = _over_all(book, request, _within) if request.within else None
    if best is None:
        best = _over_all(book, request, _in_home if request.home else _on_shelf)
    if best is None:
        return None
    return Placement(ranked(best.lots), request.shapes[best.shape].gpus_per_node)


def walk_anywhere(shelf: Shelf, request: Request, shape: Shape) -> Iterator[Rung]:
    """All lots of the regions allowed with enough GPUs free, cheapest first."""
    names = [region_domain(region) for region in sorted(request.regions)] or [EVERYWHERE]
    found = [domain for domain in map(shelf.domain, names) if domain is not None]
    return merge(*(domain.walk(shape.gpus_per_node) for domain in found))


def score(request: Request, lots: Iterable[Lot], gpus_per_node: int) -> int:
    """What a set of lots is compared by: micro-dollars per hour times 100, less what the preference is worth."""
    chosen = tuple(lots)
    percent = PERCENT - (request.preferred_percent if is_preferred(request, chosen) else 0)
    return percent * gpus_per_node * sum(lot.ask_microusd_per_gpu_hour for lot in chosen)


def is_preferred(request: Request, lots: tuple[Lot, ...]) -> bool:
    """Whether the lots are within the preferred level."""
    match request.preferred:
        case None:
            return False
        case "nvlink":
            return len(lots) == 1
        case level:
            return len(lots) == 1 or bool(shared((lot.domains for lot in lots), level))


def ranked(lots: Iterable[Lot]) -> tuple[Lot, ...]:
    """Neighbours in the tree get neighbouring ranks."""

    def key(lot: Lot) -> tuple[str, str, str, int, NodeId]:
        domains = lot.domains
        return (domains["region"], domains["site"], domains["fabric"], lot.ask_microusd_per_gpu_hour, lot.node)

    return tuple(sorted(lots, key=key))


Try = Callable[[Shelf, Request, int, "_Found | None"], "_Found | None"]
"""Looks for a set of one model and of one shape, by its number, that is better than what was found before."""


def _over_all(book: Book, request: Request, look: Try) -> _Found | None:
    best: _Found | None = None
    allowed = set(shapes_allowed(request))
    for number, shape in enumerate(request.shapes):
        for model in sorted(request.models) if shape in allowed else ():
            shelf = book.shelves.get(model)
            if shelf is not None and shelf.lots >= shape.nodes:
                best = look(shelf, request, number, best)
    return best


def _within(shelf: Shelf, request: Request, number: int, best: _Found | None) -> _Found | None:
    domain = shelf.domain(request.within)
    return best if domain is None else _better(best, _in_domain(domain, request, number, "any"))


def _in_home(shelf: Shelf, request: Request, number: int, best: _Found | None) -> _Found | None:
    domain = shelf.domain(request.home)
    return best if domain is None else _better(best, _in_domain(domain, request, number, "any"))


def _on_shelf(shelf: Shelf, request: Request, number: int, best: _Found | None) -> _Found | None:
    """Widest level first: what that costs ends the search of the narrower ones at once, unless they cost as little."""
    shape = request.shapes[number]
    if shape.nodes == 1:
        return _at_level(shelf, request, number, "fabric", best)
    widest = LEVELS.index(level_of(request, shape.nodes))
    for level in reversed(LEVELS[: widest + 1]):
        best = (
            _anywhere(shelf, request, number, best)
            if level == "any"
            else _at_level(shelf, request, number, level, best)
        )
    return best


def _anywhere(shelf: Shelf, request: Request, number: int, best: _Found | None) -> _Found | None:
    """Across all domains."""
    chosen = _first_serving(walk_anywhere(shelf, request, request.shapes[number]), request, number)
    return _better(best, _found(chosen, request, number, "any", UNHELD_GPUS)) if chosen else best


def _at_level(shelf: Shelf, request: Request, number: int, level: Level, best: _Found | None) -> _Found | None:
    shape, regions = request.shapes[number], request.regions
    domains: Mapping[str, Domain] = shelf.ladders if shape.nodes == 1 else shelf.domains[level]
    widest = level_of(request, shape.nodes)
    least_percent = PERCENT - request.preferred_percent
    for standing in shelf.ranking(level, shape).walk():
        if best is not None and _least(standing, least_percent * shape.gpus_per_node, number, level) >= best[:6]:
            break
        domain = domains[standing.domain]
        if regions and isinstance(domain, Ladder) and domain.region not in regions:
            continue
        found = _in_domain(domain, request, number, level)
        if found is not None and (level == widest or shared((lot.domains for lot in found.lots), widest)):
            best = _better(best, found)  # A fabric may be at several sites.
    return best


def _in_domain(domain: Domain, request: Request, number: int, level: Level) -> _Found | None:
    chosen = _first_serving(domain.walk(request.shapes[number].gpus_per_node), request, number)
    return _found(chosen, request, number, level, free_in(domain)) if chosen else None


def _first_serving(walk: Iterator[Rung], request: Request, number: int) -> list[Rung]:
    """The cheapest lots that serve one node each; none if there are too few."""
    nodes, gpus = request.shapes[number]
    cap_microusd, chosen = request.cap_microusd_per_gpu_hour, list[Rung]()
    for rung in walk:
        if cap_microusd is not None and rung[0] > cap_microusd:
            break
        if serves(rung[4], request, gpus, rung[1]):
            chosen.append(rung)
            if len(chosen) == nodes:
                return chosen
    return []


def _found(chosen: list[Rung], request: Request, number: int, level: Level, free_gpus: int) -> _Found:
    nodes, gpus = request.shapes[number]
    lots = tuple([rung[4] for rung in chosen])
    return _Found(
        score=score(request, lots, gpus),
        top_ask_microusd=chosen[-1][0],
        shape=number,
        width=LEVELS.index(level),
        free_on_node=chosen[0][1] if nodes == 1 else 0,
        free_in_domain=free_gpus,
        unreliability=sum([rung[2] for rung in chosen]),
        nodes=tuple(sorted([rung[3] for rung in chosen])),
        lots=lots,
    )


def _least(standing: Standing, factor: int, number: int, level: Level) -> tuple[int, ...]:
    """What the best set in a domain could at best be compared by."""
    return (
        factor * standing[0],
        standing[1],
        number,
        LEVELS.index(level),
        standing[2],
        standing[3],
    )


def _better(one: _Found | None, other: _Found | None) -> _Found | None:
    return other if one is None or (other is not None and other[:8] < one[:8]) else one
