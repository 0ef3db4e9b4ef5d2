"""Plain greedy passes: one request after the other gets what is cheapest for it then."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.instances import Instance, book_of, competitors_of
from volt_matcher.choose import take
from volt_matcher.lots import Request
from volt_matcher.place import Placement, cheapest


class Traits(NamedTuple):
    """What to order requests by: the cap per GPU-hour, GPUs, and the gains when nobody else is there."""

    cap: int
    gpus: int
    gains: int


ORDERS: dict[str, Callable[[Traits], int]] = {
    "age": lambda _: 0,
    "cap": lambda one: -one.cap,
    "gains": lambda one: -one.gains,
    "gains_per_gpu": lambda one: -one.gains * 1_000_000 // one.gpus,
    "size": lambda one: -one.gpus,
}
"""The usual orders, the lowest first. Equals go by age."""


def greedy(instance: Instance) -> dict[str, int]:
    """The gains from trade in each order."""
    book, requests = book_of(instance), [one.request for one in competitors_of(instance)]
    traits = [_traits(request, cheapest(book, request)) for request in requests]
    found = dict.fromkeys(ORDERS, 0)
    for name, order in ORDERS.items():
        ranks = [order(one) for one in traits]
        for number in sorted(range(len(requests)), key=ranks.__getitem__):
            placed = cheapest(book, requests[number])
            if placed is not None:
                take(book, placed)
                found[name] += _gains(traits[number].cap, placed)
        book.give_back()
    return found


def _traits(request: Request, placed: Placement | None) -> Traits:
    cap = request.cap_microusd_per_gpu_hour
    assert cap is not None, "an instance's requests have caps"
    return Traits(cap, request.nodes * request.gpus_per_node, _gains(cap, placed) if placed is not None else 0)


def _gains(cap: int, placed: Placement) -> int:
    return placed.gpus_per_node * sum(cap - lot.ask_microusd_per_gpu_hour for lot in placed.lots)
