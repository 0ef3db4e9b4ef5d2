"""What would clear now instead of what was asked for. Everything offered here was found by the search that grants."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from volt.contracts.jobs import NODES_MAX
from volt.contracts.market import Alternative
from volt.contracts.units import format_usd
from volt_matcher.book import Book
from volt_matcher.lots import Request, Shape, level_of
from volt_matcher.place import Placement, cheapest
from volt_matcher.topology import broader_than

ALTERNATIVES_MAX = 3


def alternatives(book: Book, request: Request) -> tuple[Alternative, ...]:
    """Changes of the request that clear now."""
    changes = (_dearer, _elsewhere, _looser, _other_shape, _fewer)
    clearing = (found for change in changes if (found := change(book, request)) is not None)
    return tuple(islice(clearing, ALTERNATIVES_MAX))


def _dearer(book: Book, request: Request) -> Alternative | None:
    placed = cheapest(book, replace(request, cap_microusd_per_gpu_hour=None))
    if placed is None:
        return None
    return _alternative(placed, f"a cap of ${format_usd(placed.price_microusd_per_gpu_hour)} per GPU-hour")


def _elsewhere(book: Book, request: Request) -> Alternative | None:
    if not request.regions and not request.regions_denied:
        return None
    placed = cheapest(book, replace(request, regions=frozenset(), regions_denied=frozenset()))
    if placed is None:
        return None
    regions = sorted({lot.place.region or "an unknown one" for lot in placed.lots})
    return _alternative(placed, f"another region: {', '.join(regions)}")


def _looser(book: Book, request: Request) -> Alternative | None:
    for level in broader_than(level_of(request, request.nodes)):
        placed = cheapest(book, replace(request, interconnect=level))
        if placed is not None:
            where = "anywhere" if level == "any" else f"in one {level}"
            return _alternative(placed, f"nodes {where} instead of in one {request.level}")
    return None


def _other_shape(book: Book, request: Request) -> Alternative | None:
    """As many GPUs, on more nodes with fewer each."""
    gpus = request.nodes * request.gpus_per_node
    for nodes in range(request.nodes + 1, min(gpus, NODES_MAX) + 1):
        if gpus % nodes:
            continue
        placed = cheapest(book, _shaped(request, nodes, gpus // nodes))
        if placed is not None:
            return _alternative(placed, _shape(nodes, gpus // nodes))
    return None


def _fewer(book: Book, request: Request) -> Alternative | None:
    """The most GPUs that clear with fewer nodes or, failing that, with fewer on each."""

    def with_nodes(nodes: int) -> Request:
        return _shaped(request, nodes, request.gpus_per_node)

    def with_each(gpus_per_node: int) -> Request:
        return _shaped(request, request.nodes, gpus_per_node)

    found = [
        _largest(book, with_nodes, request.nodes - 1),
        _largest(book, with_each, request.gpus_per_node - 1),
    ]
    clearing = [one for one in found if one is not None]
    if not clearing:
        return None
    best = max(clearing, key=lambda one: one.gpus)
    return _alternative(best, _shape(len(best.lots), best.gpus_per_node))


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


def _alternative(placed: Placement, change: str) -> Alternative:
    price_microusd = placed.price_microusd_per_gpu_hour
    return Alternative(change=change, price_microusd_per_gpu_hour=price_microusd, gpus=placed.gpus)


def _shaped(request: Request, nodes: int, gpus_per_node: int) -> Request:
    return replace(request, shapes=(Shape(nodes, gpus_per_node),))


def _shape(nodes: int, each: int) -> str:
    gpus = "1 GPU" if each == 1 else f"{each} GPUs"
    return f"{nodes_in_words(nodes)} with {gpus}" + (" each" if nodes > 1 else "")


def nodes_in_words(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
