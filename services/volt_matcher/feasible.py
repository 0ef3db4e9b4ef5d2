"""Which nodes could serve a request, filter by filter: what each one removed is the answer to "why".

    alive, excluded, model, memory, free_gpus     must leave as many nodes as are needed
    interconnect, region, price                   must leave as many within one domain of the required level

The binding filter is the first that leaves too little.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from volt.contracts.bids import Gpu, Place
from volt.contracts.ids import AccountId, GpuUuid, NodeId
from volt.contracts.jobs import Level
from volt.contracts.market import FilterCount
from volt_matcher.price import is_affordable
from volt_matcher.topology import Domains


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as a pass sees it.

    `gpus` are all that it may sell, `free` those that no lease holds, both by UUID. `models` and `memory_mib_min` say
    of all its GPUs what most requests ask, so that they need not be looked at one by one.
    """

    id: NodeId
    provider: AccountId
    place: Place
    domains: Domains
    ask_microusd_per_gpu_hour: int
    alive: bool
    models: frozenset[str]
    memory_mib_min: int
    gpus: tuple[Gpu, ...]
    free: tuple[Gpu, ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sought: a job's first gang, a replacement, or either of them with something changed.

    `cap_microusd_per_gpu_hour` None is no cap. A replacement must be in the domain `home`, if there is one, and is
    sought in `within` first.
    """

    models: frozenset[str]
    min_memory_mib: int
    nodes: int
    gpus_per_node: int
    interconnect: Level
    regions: frozenset[str]
    regions_denied: frozenset[str]
    cap_microusd_per_gpu_hour: int | None
    excluded: frozenset[NodeId] = frozenset()
    home: str = ""
    within: str = ""

    @property
    def level(self) -> Level:
        """The level at which the nodes must be together; one node always is."""
        return self.interconnect if self.nodes > 1 else "any"


class Shortfall(NamedTuple):
    """Too little is left. `shown` are the nodes that the binding filter was shown."""

    binding: str
    shown: tuple[Node, ...]
    funnel: tuple[FilterCount, ...]

    @property
    def kept(self) -> int:
        """How many nodes the binding filter let through."""
        return next(count.kept for count in self.funnel if count.filter == self.binding)


def narrow(nodes: Iterable[Node], request: Request) -> tuple[Node, ...] | Shortfall:
    """The nodes that pass every filter, or where and why too few do."""
    left = tuple(nodes)
    binding, shown, funnel = "", left, list[FilterCount]()
    for name, passes, is_enough in FILTERS:
        kept = passes(left, request)
        funnel.append(FilterCount(filter=name, seen=len(left), kept=len(kept)))
        if not binding and not is_enough(kept, request):
            binding, shown = name, left
        left = kept
    return Shortfall(binding, shown, tuple(funnel)) if binding else left


def usable(node: Node, request: Request) -> tuple[GpuUuid, ...]:
    """The node's free GPUs that the request can use, by UUID."""
    return tuple(gpu.uuid for gpu in node.free if _suits(gpu, request))


def usable_count(node: Node, request: Request) -> int:
    """How many free GPUs of the node the request can use."""
    if node.models <= request.models and node.memory_mib_min >= request.min_memory_mib:
        return len(node.free)
    return sum(_suits(gpu, request) for gpu in node.free)


def crowd(nodes: tuple[Node, ...], request: Request) -> Counter[str]:
    """How many of the nodes each known domain of the required level holds."""
    level = request.level
    return Counter(domain for node in nodes if (domain := node.domains[level]))


def _suits(gpu: Gpu, request: Request) -> bool:
    return gpu.model in request.models and gpu.memory_mib >= request.min_memory_mib


def _has_count(nodes: tuple[Node, ...], request: Request) -> bool:
    return len(nodes) >= request.nodes


def _has_crowd(nodes: tuple[Node, ...], request: Request) -> bool:
    if request.level == "any":
        return len(nodes) >= request.nodes
    return max(crowd(nodes, request).values(), default=0) >= request.nodes


def _alive(nodes: tuple[Node, ...], _request: Request) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node.alive)


def _not_excluded(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node.id not in request.excluded) if request.excluded else nodes


def _of_model(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    return tuple(node for node in nodes if not request.models.isdisjoint(node.models))


def _with_memory(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    if not request.min_memory_mib:
        return nodes
    return tuple(node for node in nodes if any(_suits(gpu, request) for gpu in node.gpus))


def _with_free_gpus(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    needed = request.gpus_per_node
    return tuple(node for node in nodes if len(node.free) >= needed and usable_count(node, request) >= needed)


def _interconnected(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    level, home, needed = request.level, request.home, request.nodes
    if home:
        nodes = tuple(node for node in nodes if home in node.domains.values())
    if level == "any":
        return nodes
    crowds = crowd(nodes, request)
    return tuple(node for node in nodes if crowds[node.domains[level]] >= needed)


def _in_region(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    allowed, denied = request.regions, request.regions_denied
    if not allowed and not denied:
        return nodes
    return tuple(
        node for node in nodes if (not allowed or node.place.region in allowed) and node.place.region not in denied
    )


def _in_budget(nodes: tuple[Node, ...], request: Request) -> tuple[Node, ...]:
    cap_microusd = request.cap_microusd_per_gpu_hour
    return tuple(node for node in nodes if is_affordable(node.ask_microusd_per_gpu_hour, cap_microusd))


Filter = Callable[[tuple[Node, ...], Request], tuple[Node, ...]]
Check = Callable[[tuple[Node, ...], Request], bool]

FILTERS: tuple[tuple[str, Filter, Check], ...] = (
    ("alive", _alive, _has_count),
    ("excluded", _not_excluded, _has_count),
    ("model", _of_model, _has_count),
    ("memory", _with_memory, _has_count),
    ("free_gpus", _with_free_gpus, _has_count),
    ("interconnect", _interconnected, _has_crowd),
    ("region", _in_region, _has_crowd),
    ("price", _in_budget, _has_crowd),
)
