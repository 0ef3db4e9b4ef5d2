"""Which of the nodes that could serve a request shall: the one function that says whether something fits.

Within the required level the cheapest set, its price being its highest ask. Equal prices go to the tightest
domain, the one with the fewest free GPUs that the request could use, so that large domains stay whole; then to ids.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import NamedTuple

from volt.contracts.ids import GpuUuid, NodeId
from volt_matcher.feasible import Node, Request, Shortfall, narrow, usable, usable_count
from volt_matcher.price import gang_price_microusd
from volt_matcher.topology import LEVELS, shared, tightest, up_to

UNHELD_GPUS = 2**63
"""Stands for the free GPUs of a domain that does not hold the whole set: looser than any that does."""


class Seat(NamedTuple):
    """A node and the GPUs to take of it."""

    node: Node
    gpus: tuple[GpuUuid, ...]


class Placement(NamedTuple):
    """Where a request fits: a seat for each rank, in the order of ranks, which follows topology."""

    seats: tuple[Seat, ...]
    price_microusd_per_gpu_hour: int
    domain: str
    """The tightest domain that holds all of them; empty if none does."""


def fit(nodes: Collection[Node], request: Request) -> Placement | Shortfall:
    """Where the request goes among these nodes, or why it does not fit."""
    able = narrow(nodes, request)
    if isinstance(able, Shortfall):
        return able
    chosen = _choose(nodes, _nearest(able, request), request)
    seats = tuple(Seat(node, usable(node, request)[: request.gpus_per_node]) for node in _ranked(chosen))
    return Placement(seats, _price_microusd(chosen), tightest(node.domains for node in chosen))


def _nearest(able: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    """Those in the domain to look in first, if there are any."""
    near = tuple(node for node in able if request.within and request.within in node.domains.values())
    return near or able


def _choose(nodes: Collection[Node], able: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    sets = _cheapest_of_each_domain(able, request)
    price_microusd = min(map(_price_microusd, sets))
    cheapest = [one for one in sets if _price_microusd(one) == price_microusd]
    if len(cheapest) == 1:
        return cheapest[0]
    free = _free_by_domain(nodes, request)
    return min(cheapest, key=lambda one: (_looseness(one, free, request), _ids(one)))


def _cheapest_of_each_domain(able: tuple[Node, ...], request: Request) -> list[tuple[Node, ...]]:
    """For each domain that holds enough nodes, those with its lowest asks; on equal asks the fullest ones."""
    sets = []
    ordered = sorted(able, key=lambda node: (node.ask_microusd_per_gpu_hour, usable_count(node, request), node.id))
    for level in up_to(request.level):
        groups: defaultdict[str, list[Node]] = defaultdict(list)
        for node in ordered:
            groups[node.domains[level]].append(node)
        sets += [
            tuple(group[: request.nodes]) for domain, group in groups.items() if domain and len(group) >= request.nodes
        ]
    return sets


def _free_by_domain(nodes: Collection[Node], request: Request) -> Counter[str]:
    """Free GPUs that the request could use, per domain; a node is its own smallest domain, under its id."""
    free: Counter[str] = Counter()
    for node in nodes:
        count = usable_count(node, request) if node.alive else 0
        for domain in (node.id, *node.domains.values()):
            free[domain] += count
    return free


def _looseness(chosen: tuple[Node, ...], free: Counter[str], request: Request) -> tuple[int, ...]:
    """Free GPUs of the domains that hold the whole set, narrowest first."""
    held = [chosen[0].id] if request.nodes == 1 else []
    held += [shared((node.domains for node in chosen), level) for level in LEVELS[:-1]]
    return tuple(free[domain] if domain else UNHELD_GPUS for domain in held)


def _ids(chosen: tuple[Node, ...]) -> tuple[NodeId, ...]:
    return tuple(node.id for node in chosen)


def _ranked(chosen: tuple[Node, ...]) -> list[Node]:
    """Neighbours in the tree get neighbouring ranks."""

    def key(node: Node) -> tuple[str, str, str, int, NodeId]:
        domains = node.domains
        return (domains["region"], domains["site"], domains["fabric"], node.ask_microusd_per_gpu_hour, node.id)

    return sorted(chosen, key=key)


def _price_microusd(chosen: tuple[Node, ...]) -> int:
    return gang_price_microusd(node.ask_microusd_per_gpu_hour for node in chosen)
