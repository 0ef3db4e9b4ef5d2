"""What a node offers."""

from volt.contracts.errors import Reason
from volt.contracts.ids import AccountId, GpuUuid, NodeId, RequestId
from volt.contracts.messages import Answer, Command, Value
from volt.contracts.subjects import log_bid

GPUS_PER_BID_MAX = 16
PLACE_CHARS_MAX = 64


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU. `model` is a canonical slug once the bid is accepted, before it whatever the driver says."""

    uuid: GpuUuid
    model: str
    memory_mib: int = 0
    raw_model: str = ""


class Place(Value, frozen=True, kw_only=True):
    """Where a node is. Empty means unknown, and unknown never equals unknown."""

    region: str = ""
    country: str = ""
    site: str = ""
    fabric: str = ""


class PlaceBid(Command, frozen=True, kw_only=True):
    """Offers all of a node's healthy GPUs at one gross ask, micro-dollars per GPU-hour; replaces an earlier bid."""

    account: AccountId
    node: NodeId
    request_id: RequestId
    gpus: tuple[Gpu, ...]
    ask_microusd_per_gpu_hour: int
    place: Place = Place()


class WithdrawBid(Command, frozen=True, kw_only=True):
    """Takes the node off the market; running leases go on."""

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
    """The node's offer from now on."""

    request_digest: str
    gpus: tuple[Gpu, ...]
    ask_microusd_per_gpu_hour: int
    place: Place


class BidRejected(BidEvent, frozen=True, kw_only=True):
    """The offer is refused; the one before it stands."""

    request_digest: str
    reason: Reason


class BidWithdrawn(BidEvent, frozen=True, kw_only=True):
    """The node offers nothing from now on."""
