"""What the matcher decides. All of it is on one subject, so that one order of events rules the whole market."""

from typing import Literal

from volt.contracts.ids import AccountId, GpuUuid, JobId, LeaseId, NodeId
from volt.contracts.jobs import Level
from volt.contracts.messages import Event, Value
from volt.contracts.subjects import LOG_MARKET


class Grant(Value, frozen=True, kw_only=True):
    """One lease of a gang: these GPUs of this node. `rank` is the node's place in the cluster."""

    lease: LeaseId
    rank: int
    node: NodeId
    provider: AccountId
    gpus: tuple[GpuUuid, ...]


class Gang(Value, frozen=True, kw_only=True):
    """Leases granted together at one price, which is the highest ask among their own nodes.

    `attempt` 0 is the cluster's first gang; a later one answers the `MembersWanted` of that generation and attempt.
    """

    job: JobId
    account: AccountId
    generation: int
    attempt: int
    grants: tuple[Grant, ...]
    model: str = ""
    """The model of all of its GPUs."""
    price_microusd_per_gpu_hour: int
    domain: str
    """The topology domain that holds the whole gang, such as `fabric:eu/A`; empty if none does."""


class FilterCount(Value, frozen=True, kw_only=True):
    """One step of the funnel: how many nodes it was shown and how many it let through."""

    filter: str
    seen: int
    kept: int


Droppable = Literal[
    "image",
    "min_memory_mib",
    "interface",
    "min_bandwidth_gbps",
    "min_reliability_permille",
    "tier",
    "regions",
    "countries",
    "providers_excluded",
]
"""What a request can do without: those of its fields, and for places what is denied too."""


class Alternative(Value, frozen=True, kw_only=True):
    """A change of the request that would clear now. None leaves that part of the request as it is.

    With `nodes` the request is for `gpus` GPUs on so many nodes.
    """

    price_microusd_per_gpu_hour: int
    gpus: int
    nodes: int | None = None
    max_price_microusd_per_gpu_hour: int | None = None
    interconnect: Level | None = None
    dropped: Droppable | None = None
    places: tuple[str, ...] = ()
    """Where it would be, if it is the regions or countries that are dropped."""


class Waiting(Value, frozen=True, kw_only=True):
    """Why a job, or a member of it, is not placed. `infeasible`: no such supply exists at all, leased or free."""

    job: JobId
    account: AccountId
    binding: str
    """The filter that binds: the first that leaves too little."""
    message: str
    infeasible: bool
    funnel: tuple[FilterCount, ...]
    alternatives: tuple[Alternative, ...] = ()


class Expired(Value, frozen=True, kw_only=True):
    """A job that got no gang for as long as it would wait. It is over, and never cost anything."""

    job: JobId
    account: AccountId


class Quote(Value, frozen=True, kw_only=True):
    """What a request would have got in this pass, beside everything that it granted: a gang, or why none."""

    quote: JobId
    account: AccountId
    gang: Gang | None = None
    waiting: Waiting | None = None


class ReservedLot(Value, frozen=True, kw_only=True):
    """So many GPUs of one model on one node."""

    node: NodeId
    model: str
    gpus: int


class Reservation(Value, frozen=True, kw_only=True):
    """GPUs that are kept for a job that has waited for long, as far as they are free or become so, until `until_ms`.

    `free_ms` is when the last of them should be free; None if nobody knows. Until then they are sold to nobody but
    jobs that are sure to have ended by it.
    """

    job: JobId
    account: AccountId
    lots: tuple[ReservedLot, ...]
    free_ms: int | None
    until_ms: int


class MarketCleared(Event, frozen=True, kw_only=True):
    """One pass: the gangs it grants, whole; what keeps the others waiting (only where that changed); who waited out.

    `through_seq` is the `LOG` sequence up to which the pass had folded its inputs, so that it can be replayed.
    A gang later in `LOG` than its job's end is void.
    """

    through_seq: int
    at_ms: int
    gangs: tuple[Gang, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    expired: tuple[Expired, ...] = ()
    quotes: tuple[Quote, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def subject(self) -> str:
        return LOG_MARKET
