"""What would clear now instead of what was asked for. Everything offered here was found by the search that grants.

One of each kind, the nearest first: a higher cap, one constraint less, nodes less near to each other, as many GPUs on
more nodes, fewer GPUs. If no single change clears, a higher cap beside another one may.

A search that finds nothing is the dearest, so changes are not tried that cannot help: what the binding filter lets
through does not depend on the filters behind it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import assert_never

from msgspec import structs

from volt.contracts.jobs import NODES_MAX, Level
from volt.contracts.market import Alternative, Droppable
from volt_matcher.book import Book
from volt_matcher.lots import Request, Shape
from volt_matcher.place import Placement, cheapest
from volt_matcher.survey import FILTERS, Shortfall
from volt_matcher.topology import LEVELS, broader_than

_FILTERS: dict[Droppable, str] = {
    "providers_excluded": "excluded",
    "min_memory_mib": "memory",
    "interface": "interface",
    "min_bandwidth_gbps": "bandwidth",
    "min_reliability_permille": "reliability",
    "tier": "tier",
    "image": "runtime",
    "regions": "region",
    "countries": "country",
}
"""What each of the constraints is counted as, in that order."""
_PLACE = {name: place for place, name in enumerate(FILTERS)}


def alternatives(book: Book, request: Request, short: Shortfall) -> tuple[Alternative, ...]:
    """Changes of the request, which falls short by this, that clear now."""
    bound = _PLACE[short.binding]
    if bound >= _PLACE["free_gpus"] and len(request.shapes) > 1:
        bound = _PLACE["price"]  # The other shapes may fall short by a later filter.
    found = tuple(_clearing(book, request, bound, short.kept))
    if found or request.cap_microusd_per_gpu_hour is None:
        return found
    uncapped = replace(request, cap_microusd_per_gpu_hour=None)
    return tuple(
        structs.replace(one, max_price_microusd_per_gpu_hour=one.price_microusd_per_gpu_hour)
        for one in _clearing(book, uncapped, bound, short.kept)
    )


def _clearing(book: Book, request: Request, bound: int, kept: int) -> Iterator[Alternative]:
    """One of each kind, of those that can help where this filter binds and so many lots are left by it."""
    found = [
        _dearer(book, request) if bound >= _PLACE["price"] else None,
        _without(book, request, bound),
        _looser(book, request) if bound >= _PLACE["interconnect"] else None,
        _other_shape(book, request) if bound >= _PLACE["free_gpus"] else None,
        _fewer(book, request) if bound >= _PLACE["free_gpus"] or kept else None,
    ]
    yield from (one for one in found if one is not None)


def _dearer(book: Book, request: Request) -> Alternative | None:
    placed = cheapest(book, replace(request, cap_microusd_per_gpu_hour=None))
    if placed is None:
        return None
    return structs.replace(_alternative(placed), max_price_microusd_per_gpu_hour=placed.price_microusd_per_gpu_hour)


def _without(book: Book, request: Request, bound: int) -> Alternative | None:
    """The first constraint that can be dropped alone."""
    for constraint, name in _FILTERS.items():
        if _PLACE[name] > bound:
            return None
        freed = _freed(request, constraint)
        placed = cheapest(book, freed) if freed != request else None
        if placed is not None:
            return structs.replace(_alternative(placed), dropped=constraint, places=_places(placed, constraint))
    return None


def _freed(request: Request, constraint: Droppable) -> Request:
    """The request without a constraint."""
    match constraint:
        case "image":
            return replace(request, runtime="process")
        case "min_memory_mib":
            return replace(request, min_memory_mib=0)
        case "interface":
            return replace(request, interface=None)
        case "min_bandwidth_gbps":
            return replace(request, min_bandwidth_gbps=0)
        case "min_reliability_permille":
            return replace(request, min_reliability_permille=0)
        case "tier":
            return replace(request, tier=None)
        case "regions":
            return replace(request, regions=frozenset(), regions_denied=frozenset())
        case "countries":
            return replace(request, countries=frozenset(), countries_denied=frozenset())
        case "providers_excluded":
            return replace(request, providers_excluded=frozenset())
        case other:
            assert_never(other)


def _places(placed: Placement, constraint: Droppable) -> tuple[str, ...]:
    if constraint == "regions":
        return tuple(sorted({lot.place.region for lot in placed.lots}))
    return tuple(sorted({lot.place.country for lot in placed.lots})) if constraint == "countries" else ()


def _looser(book: Book, request: Request) -> Alternative | None:
    if request.interconnect not in LEVELS or all(shape.nodes == 1 for shape in request.shapes):
        return None
    for level in broader_than(request.interconnect):
        placed = cheapest(book, replace(request, interconnect=level))
        if placed is not None:
            return structs.replace(_alternative(placed), interconnect=level)
    return None


def _other_shape(book: Book, request: Request) -> Alternative | None:
    """As many GPUs, on more nodes with fewer each; in one fabric if it was NVLink that is given up."""
    gpus = request.nodes * request.gpus_per_node
    level: Level = "fabric" if request.interconnect == "nvlink" else request.interconnect
    for nodes in range(request.nodes + 1, min(gpus, NODES_MAX) + 1):
        if gpus % nodes:
            continue
        placed = cheapest(book, replace(request, shapes=(Shape(nodes, gpus // nodes),), interconnect=level))
        if placed is not None:
            return _reshaped(placed, level)
    return None


def _fewer(book: Book, request: Request) -> Alternative | None:
    """The most GPUs that clear with fewer nodes or, failing that, with fewer on each."""

    def with_nodes(nodes: int) -> Request:
        return replace(request, shapes=(Shape(nodes, request.gpus_per_node),))

    def with_each(gpus_per_node: int) -> Request:
        return replace(request, shapes=(Shape(request.nodes, gpus_per_node),))

    found = [
        _largest(book, with_nodes, request.nodes - 1),
        _largest(book, with_each, request.gpus_per_node - 1),
    ]
    clearing = [one for one in found if one is not None]
    return _reshaped(max(clearing, key=lambda one: one.gpus), request.interconnect) if clearing else None


def _largest(book: Book, request_of: Callable[[int], Request], high: int) -> Placement | None:
    """The placement of the largest size up to `high` that fits: what holds more also holds less, so halve."""
    best, low = None, 1
    while low <= high:
        middle = (low + high) // 2
        placed = cheapest(book, request_of(middle))
        if placed is not None:
            best, low = placed, middle + 1
        else:
            high = middle - 1
    return best


def _reshaped(placed: Placement, level: Level) -> Alternative:
    """Several nodes name their level: left out, it would be the usual one for so many."""
    nodes = len(placed.lots)
    return structs.replace(_alternative(placed), nodes=nodes, interconnect=level if nodes > 1 else None)


def _alternative(placed: Placement) -> Alternative:
    return Alternative(price_microusd_per_gpu_hour=placed.price_microusd_per_gpu_hour, gpus=placed.gpus)


def nodes_in_words(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
