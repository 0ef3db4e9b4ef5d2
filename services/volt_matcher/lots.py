"""What is sold and what is sought: lots of GPUs, and requests for them."""

from dataclasses import dataclass
from typing import NamedTuple

from volt.contracts.bids import Place, Runtime, Tier
from volt.contracts.gpus import Interface
from volt.contracts.ids import AccountId, GpuUuid, NodeId
from volt.contracts.jobs import Level
from volt_matcher.topology import Domains


class LotId(NamedTuple):
    """A lot is all that one node offers of one model."""

    node: NodeId
    model: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lot:
    """The GPUs of one model on one node, and on what terms they are sold.

    `total` counts all that the node offers of the model; `free` are those that no lease holds, by UUID. What is not
    known is empty or zero. Instants are the stream's milliseconds; None is no bound.
    """

    node: NodeId
    model: str
    provider: AccountId
    place: Place
    domains: Domains
    ask_microusd_per_gpu_hour: int
    alive: bool
    total: int
    free: tuple[GpuUuid, ...]
    memory_mib: int
    """The least among its GPUs."""
    interface: Interface | None = None
    bandwidth_gbps: int = 0
    tier: Tier = "community"
    runtime: Runtime = "process"
    reliability_permille: int = 1000
    min_gpus: int = 1
    max_duration_seconds: int | None = None
    available_from_ms: int | None = None
    available_until_ms: int | None = None

    @property
    def key(self) -> LotId:
        return LotId(self.node, self.model)


class Shape(NamedTuple):
    """How many nodes with how many GPUs each."""

    nodes: int
    gpus_per_node: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sought: a job's first gang, a replacement, or either of them with something changed.

    A gang is of one of the `models` and one of the `shapes`, which are of as many GPUs each; the earlier shape on equal
    price. Being inside the level
    `preferred` is worth `preferred_percent` of the price. `cap_microusd_per_gpu_hour` None is no cap. All must be in
    the domain `home`, if there is one, and are sought in `within` first. `barred` lots are kept for somebody else.
    """

    models: frozenset[str]
    shapes: tuple[Shape, ...]
    interconnect: Level
    cap_microusd_per_gpu_hour: int | None
    preferred: Level | None = None
    preferred_percent: int = 0
    min_memory_mib: int = 0
    interface: Interface | None = None
    min_bandwidth_gbps: int = 0
    min_reliability_permille: int = 0
    tier: Tier | None = None
    runtime: Runtime = "process"
    regions: frozenset[str] = frozenset()
    regions_denied: frozenset[str] = frozenset()
    countries: frozenset[str] = frozenset()
    countries_denied: frozenset[str] = frozenset()
    excluded: frozenset[NodeId] = frozenset()
    providers_excluded: frozenset[AccountId] = frozenset()
    barred: frozenset[LotId] = frozenset()
    at_ms: int = 0
    duration_seconds: int | None = None
    """How long it runs at most; None is without end."""
    home: str = ""
    within: str = ""

    @property
    def nodes(self) -> int:
        """Nodes of the shape that is asked for first."""
        return self.shapes[0].nodes

    @property
    def gpus_per_node(self) -> int:
        """GPUs per node of the shape that is asked for first."""
        return self.shapes[0].gpus_per_node

    @property
    def level(self) -> Level:
        """The level at which the nodes of that shape must be together; one node always is."""
        return level_of(self, self.nodes)


def level_of(request: Request, nodes: int) -> Level:
    """The level at which so many nodes must be together. One node is together wherever it is."""
    if nodes == 1 or request.interconnect == "nvlink":
        return "any"
    return request.interconnect


def shapes_allowed(request: Request) -> tuple[Shape, ...]:
    """The shapes that the interconnect rule allows: only one node is within NVLink's reach."""
    if request.interconnect != "nvlink":
        return request.shapes
    return tuple(shape for shape in request.shapes if shape.nodes == 1)
