"""Why a job waits, and what would clear now. Everything offered here was found by the same `fit` that grants."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from volt.contracts.jobs import NODES_MAX
from volt.contracts.market import Alternative, Waiting
from volt.contracts.units import format_usd
from volt_matcher.book import Book
from volt_matcher.feasible import Request, Shortfall, crowd, usable_count
from volt_matcher.place import Placement
from volt_matcher.state import FIRST_ATTEMPT, Opening, Reason
from volt_matcher.topology import broader_than

ALTERNATIVES_MAX = 3
TOO_LARGE = "message_size"
"""What binds when a gang fits the market and no message."""


def explain(book: Book, opening: Opening, short: Shortfall, reason: Reason) -> Waiting:
    """What a job is told that waits. A running cluster cannot change its request, so it is offered no other."""
    is_first = opening.attempt == FIRST_ATTEMPT
    message = _message(opening.request, short)
    is_changeable = is_first and short.binding != TOO_LARGE
    return Waiting(
        job=opening.job,
        account=opening.account,
        binding=reason.binding,
        message=message if is_first else f"replacement of rank {opening.rank}: {message}",
        infeasible=reason.infeasible,
        funnel=short.funnel,
        alternatives=_alternatives(book, opening.request) if is_changeable else (),
    )


def _message(request: Request, short: Shortfall) -> str:
    """One line for a person: what the binding filter found, and what was needed."""
    if short.binding == TOO_LARGE:
        return f"a grant of {_nodes(request.nodes)} is larger than a message may be; ask for fewer"
    kept, needed = short.kept, _nodes(request.nodes)
    match short.binding:
        case "alive":
            return f"{kept} of {_nodes(len(short.shown))} on offer alive, {needed} needed"
        case "excluded":
            return f"{_nodes(kept)} left that the job may still go to, {needed} needed"
        case "model":
            return f"{_nodes(kept)} with {' or '.join(sorted(request.models))}, {needed} needed"
        case "memory":
            return f"{_nodes(kept)} with GPUs of {request.min_memory_mib} MiB, {needed} needed"
        case "free_gpus":
            return _of_free_gpus(request, short)
        case "interconnect":
            return _of_interconnect(request, short)
        case "region":
            return f"{_nodes(kept)} in the regions asked for, {needed} needed{_together(request)}"
        case "price":
            return _of_price(request, short)
        case other:
            raise AssertionError(f"there is no filter {other}")


def _alternatives(book: Book, request: Request) -> tuple[Alternative, ...]:
    """Changes of the request that clear now."""
    changes = (_dearer, _elsewhere, _looser, _other_shape, _fewer)
    clearing = (found for change in changes if (found := change(book, request)) is not None)
    return tuple(islice(clearing, ALTERNATIVES_MAX))


def _of_free_gpus(request: Request, short: Shortfall) -> str:
    kept, each = short.kept, request.gpus_per_node
    if kept:
        return f"{_nodes(kept)} with {each} free, {_nodes(request.nodes)} needed"
    largest = max((usable_count(node, request) for node in short.shown), default=0)
    where = "on one node" if request.nodes == 1 else f"on each of {_nodes(request.nodes)}"
    return f"largest node has {largest} free, {each} needed {where}"


def _of_interconnect(request: Request, short: Shortfall) -> str:
    if request.home:
        return f"none of {_nodes(len(short.shown))} is in {request.home}, where the rest of the cluster is"
    level = request.level
    most = max(crowd(short.shown, request).values(), default=0)
    if not most:
        return f"none of {_nodes(len(short.shown))} says which {level} it is in, {request.nodes} needed in one {level}"
    return f"largest {level} has {_nodes(most)} that would do, {request.nodes} needed in one {level}"


def _of_price(request: Request, short: Shortfall) -> str:
    assert request.cap_microusd_per_gpu_hour is not None, "no cap excludes nobody"
    cap = format_usd(request.cap_microusd_per_gpu_hour)
    lowest = format_usd(min(node.ask_microusd_per_gpu_hour for node in short.shown))
    return (
        f"{_nodes(short.kept)} asking at most ${cap} per GPU-hour, {_nodes(request.nodes)} needed{_together(request)}; "
        f"the lowest ask is ${lowest}"
    )


def _dearer(book: Book, request: Request) -> Alternative | None:
    placed = book.fit(replace(request, cap_microusd_per_gpu_hour=None))
    if not isinstance(placed, Placement):
        return None
    return _alternative(placed, f"a cap of ${format_usd(placed.price_microusd_per_gpu_hour)} per GPU-hour")


def _elsewhere(book: Book, request: Request) -> Alternative | None:
    if not request.regions and not request.regions_denied:
        return None
    placed = book.fit(replace(request, regions=frozenset(), regions_denied=frozenset()))
    if not isinstance(placed, Placement):
        return None
    regions = sorted({seat.node.place.region or "an unknown one" for seat in placed.seats})
    return _alternative(placed, f"another region: {', '.join(regions)}")


def _looser(book: Book, request: Request) -> Alternative | None:
    for level in broader_than(request.level):
        placed = book.fit(replace(request, interconnect=level))
        if isinstance(placed, Placement):
            where = "anywhere" if level == "any" else f"in one {level}"
            return _alternative(placed, f"nodes {where} instead of in one {request.level}")
    return None


def _other_shape(book: Book, request: Request) -> Alternative | None:
    """As many GPUs, on more nodes with fewer each."""
    gpus = request.nodes * request.gpus_per_node
    for nodes in range(request.nodes + 1, min(gpus, NODES_MAX) + 1):
        if gpus % nodes:
            continue
        placed = book.fit(replace(request, nodes=nodes, gpus_per_node=gpus // nodes))
        if isinstance(placed, Placement):
            return _alternative(placed, _shape(nodes, gpus // nodes))
    return None


def _fewer(book: Book, request: Request) -> Alternative | None:
    """The most GPUs that clear with fewer nodes or, failing that, with fewer on each."""

    def with_nodes(nodes: int) -> Request:
        return replace(request, nodes=nodes)

    def with_each(gpus_per_node: int) -> Request:
        return replace(request, gpus_per_node=gpus_per_node)

    found = [
        _largest(book, with_nodes, request.nodes - 1),
        _largest(book, with_each, request.gpus_per_node - 1),
    ]
    clearing = [one for one in found if one is not None]
    if not clearing:
        return None
    best = max(clearing, key=lambda one: sum(len(seat.gpus) for seat in one.seats))
    return _alternative(best, _shape(len(best.seats), len(best.seats[0].gpus)))


def _largest(book: Book, request_of: Callable[[int], Request], high: int) -> Placement | None:
    """The placement of the largest size up to `high` that fits: what holds more also holds less, so halve."""
    best, low = None, 1
    while low <= high:
        middle = (low + high) // 2
        placed = book.fit(request_of(middle))
        if isinstance(placed, Placement):
            best, low = placed, middle + 1
        else:
            high = middle - 1
    return best


def _alternative(placed: Placement, change: str) -> Alternative:
    gpus = sum(len(seat.gpus) for seat in placed.seats)
    return Alternative(change=change, price_microusd_per_gpu_hour=placed.price_microusd_per_gpu_hour, gpus=gpus)


def _shape(nodes: int, each: int) -> str:
    gpus = "1 GPU" if each == 1 else f"{each} GPUs"
    return f"{_nodes(nodes)} with {gpus}" + (" each" if nodes > 1 else "")


def _together(request: Request) -> str:
    return "" if request.level == "any" else f" in one {request.level}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
