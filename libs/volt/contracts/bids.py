"""What a node offers."""

from typing import Literal

from volt.contracts.errors import Reason
from volt.contracts.ids import AccountId, GpuUuid, NodeId, RequestId
from volt.contracts.messages import Answer, Command, Value
from volt.contracts.subjects import log_bid

GPUS_PER_BID_MAX = 16
PLACE_CHARS_MAX = 64
BANDWIDTH_GBPS_MAX = 100_000
DRAIN_REASON_CHARS_MAX = 200
DRAIN_SECONDS_MAX = 7 * 24 * 3600
DRAIN_SECONDS_DEFAULT = 30 * 60
"""By when a node is empty, unless its provider says otherwise."""

Tier = Literal["community", "datacenter"]
"""What kind of house a node stands in, as its provider declares it; `datacenter` is the better one."""
Runtime = Literal["process", "docker"]
"""How a node runs workloads: as processes of its machine, or as containers of an image, and then never without one."""


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU. `model` is a canonical slug once the bid is accepted, before it whatever the driver says."""

    uuid: GpuUuid
    model: str
    memory_mib: int = 0
    raw_model: str = ""


class Place(Value, frozen=True, kw_only=True):
    """Where a node is. Empty means unknown, and unknown never equals unknown; a bandwidth of 0 is unknown too."""

    region: str = ""
    country: str = ""
    """As in ISO 3166-1: two letters, upper case."""
    site: str = ""
    fabric: str = ""
    bandwidth_gbps: int = 0
    """What the node's ports on its fabric carry together, gigabits per second."""


class Terms(Value, frozen=True, kw_only=True):
    """At what price GPUs are offered, and for which leases. Instants are milliseconds of the stream's time."""

    ask_microusd_per_gpu_hour: int
    """Gross: the fee comes out of it."""
    gpus_min: int = 1
    """The smallest lease."""
    max_duration_seconds: int | None = None
    """The longest lease; only jobs that say how long they take get one."""
    available_from_ms: int | None = None
    available_until_ms: int | None = None
    """By when a lease must have ended; only jobs that say how long they take get one."""
    paused: bool = False
    """Whether it is kept off the market for now."""


class ModelTerms(Value, frozen=True, kw_only=True):
    """Terms for the GPUs of one model, by its slug."""

    model: str
    terms: Terms


class PlaceBid(Command, frozen=True, kw_only=True):
    """Offers all of a node's healthy GPUs; replaces an earlier bid.

    Terms that were changed since (`ChangeBid`) stand as long as those declared here are what they were.
    """

    account: AccountId
    node: NodeId
    request_id: RequestId
    gpus: tuple[Gpu, ...]
    terms: Terms
    place: Place = Place()
    tier: Tier = "community"
    runtime: Runtime = "process"


class ChangeBid(Command, frozen=True, kw_only=True):
    """Changes the terms of a node that was offered. Running leases keep theirs; None leaves a term as it is.

    A withdrawn node is changed only by `offer`, which puts it on the market again. A duration or instant of 0 takes
    that term away.
    """

    account: AccountId
    node: NodeId
    request_id: RequestId
    model: str | None = None
    """None: every model of the node."""
    offer: bool = False
    ask_microusd_per_gpu_hour: int | None = None
    gpus_min: int | None = None
    max_duration_seconds: int | None = None
    available_from_ms: int | None = None
    available_until_ms: int | None = None
    paused: bool | None = None


class WithdrawBid(Command, frozen=True, kw_only=True):
    """Takes the node off the market; running leases go on."""

    account: AccountId
    node: NodeId
    request_id: RequestId


class DrainNode(Command, frozen=True, kw_only=True):
    """Empties a node: it gets no new leases, and those that it has move to others, or end at the deadline."""

    account: AccountId
    node: NodeId
    request_id: RequestId
    reason: str = ""
    deadline_seconds: int = DRAIN_SECONDS_DEFAULT


class ResumeNode(Command, frozen=True, kw_only=True):
    """Ends the draining of a node: it is leased again, and what has not moved stays."""

    account: AccountId
    node: NodeId
    request_id: RequestId


class BidEvent(Answer, frozen=True, kw_only=True):
    """An event of `log.bid.<account>.<node>`, written by bid-intake."""

    account: AccountId
    node: NodeId
    request_id: RequestId
    at_ms: int

    def subject(self) -> str:
        return log_bid(self.account, self.node)


class BidAccepted(BidEvent, frozen=True, kw_only=True):
    """The node's offer from now on, and the answer to its `PlaceBid` or `ChangeBid`.

    `terms` are those declared with its GPUs, `changed` those of the models for which they were changed since.
    """

    request_digest: str
    gpus: tuple[Gpu, ...]
    terms: Terms
    changed: tuple[ModelTerms, ...] = ()
    place: Place
    tier: Tier = "community"
    runtime: Runtime = "process"

    def terms_of(self, model: str) -> Terms:
        """The terms of one of its models."""
        return next((one.terms for one in self.changed if one.model == model), self.terms)


class BidRejected(BidEvent, frozen=True, kw_only=True):
    """The offer is refused; the one before it stands."""

    request_digest: str
    reason: Reason


class BidWithdrawn(BidEvent, frozen=True, kw_only=True):
    """The node offers nothing from now on."""


class NodeDrainAccepted(BidEvent, frozen=True, kw_only=True):
    """The node is to be empty by `deadline_ms`; the last one counts. What it offers stands, and is not sold."""

    request_digest: str
    reason: str
    deadline_ms: int


class NodeResumeAccepted(BidEvent, frozen=True, kw_only=True):
    """The node is not drained any more."""
