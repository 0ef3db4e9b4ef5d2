"""Who offers which GPUs on what terms, who is alive, and which GPUs are leased: as the log says it."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from volt.contracts.bids import BidAccepted, BidWithdrawn, Gpu, NodeDrainAccepted, NodeResumeAccepted, Place
from volt.contracts.ids import AccountId, GpuUuid, JobId, LeaseId, NodeId
from volt.contracts.jobs import Level
from volt.contracts.market import Grant
from volt.contracts.nodes import (
    GpuFaulted,
    GpuQuarantined,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    NodeRated,
    NodeUnknown,
    QuarantineEnded,
)

LEVELS: tuple[Level, ...] = ("fabric", "site", "region")
"""The levels that a place may know, the narrowest first."""


class Held(NamedTuple):
    """GPUs of a node that are leased to a job."""

    job: JobId
    node: NodeId
    gpus: frozenset[GpuUuid]


@dataclass
class Supply:
    """What there is to sell."""

    bids: dict[NodeId, BidAccepted] = field(default_factory=dict)
    """The standing ones."""
    reliability_permille: dict[tuple[AccountId, NodeId], int] = field(default_factory=dict)
    """Of the nodes that are alive. Anybody can beat in the name of a node, under an account of their own."""
    quarantined: dict[tuple[AccountId, NodeId], dict[GpuUuid, bool]] = field(default_factory=dict)
    """GPUs that may not be sold, and whether nothing else of their node may."""
    drained: set[tuple[AccountId, NodeId]] = field(default_factory=set)
    """Those that are emptied, whatever they offer."""
    leases: dict[LeaseId, Held] = field(default_factory=dict)
    """Those that are not cleared."""
    _offered: dict[GpuUuid, dict[NodeId, None]] = field(default_factory=dict)
    """The nodes that offer a GPU, the one that has done so for longest first."""
    _holder: dict[GpuUuid, LeaseId] = field(default_factory=dict)
    _leased_on: dict[NodeId, set[LeaseId]] = field(default_factory=lambda: defaultdict(set))

    def bid(self, event: BidAccepted | BidWithdrawn) -> None:
        """The node offers what it says from now on, and nothing else."""
        standing = self.bids.pop(event.node, None)
        before = {gpu.uuid for gpu in standing.gpus} if standing else set[GpuUuid]()
        after = {gpu.uuid for gpu in event.gpus} if isinstance(event, BidAccepted) else set[GpuUuid]()
        for uuid in before - after:
            del self._offered[uuid][event.node]
        for uuid in after - before:
            self._offered.setdefault(uuid, {})[event.node] = None
        if isinstance(event, BidAccepted):
            self.bids[event.node] = event

    def see(self, event: NodeEvent) -> None:
        """The node is alive, or not known to be; or some of its GPUs have failed, or are well again."""
        key = (event.account, event.node)
        off = self.quarantined.setdefault(key, {})
        match event:
            case NodeAlive():
                self.reliability_permille[key] = event.reliability_permille
            case NodeUnknown() | NodeLost():
                self.reliability_permille.pop(key, None)
            case NodeRated() | GpuFaulted() | GpuQuarantined() | NodeQuarantined():
                self.reliability_permille[key] = event.reliability_permille
                if not isinstance(event, NodeRated | GpuFaulted):
                    off |= dict.fromkeys(event.gpus, isinstance(event, NodeQuarantined))
            case QuarantineEnded(gpus=gpus):
                for gpu in gpus:
                    off.pop(gpu, None)

    def drain(self, event: NodeDrainAccepted | NodeResumeAccepted) -> None:
        """The node sells nothing from now on, or does again."""
        if isinstance(event, NodeDrainAccepted):
            self.drained.add((event.account, event.node))
        else:
            self.drained.discard((event.account, event.node))

    def lease(self, job: JobId, grant: Grant) -> None:
        """The grant's GPUs are the job's."""
        self.leases[grant.lease] = Held(job, grant.node, frozenset(grant.gpus))
        self._holder |= dict.fromkeys(grant.gpus, grant.lease)
        self._leased_on[grant.node].add(grant.lease)

    def clear(self, lease: LeaseId) -> None:
        """They are nobody's again."""
        held = self.leases.pop(lease, None)
        if held is None:
            return
        self._leased_on[held.node].remove(lease)
        for uuid in held.gpus:
            if self._holder.get(uuid) == lease:
                del self._holder[uuid]

    def holder(self, gpu: GpuUuid) -> LeaseId | None:
        """The lease that the GPU is in."""
        return self._holder.get(gpu)

    def seller(self, gpu: GpuUuid) -> NodeId | None:
        """The node whose GPU it is to sell: the one that has offered it for longest."""
        return next(iter(self._offered.get(gpu, ())), None)

    def jobs_on(self, node: NodeId) -> set[JobId]:
        """Who holds a lease on the node."""
        return {self.leases[lease].job for lease in self._leased_on[node]}

    def missing(self, node: NodeId) -> set[GpuUuid]:
        """GPUs of the node that are leased and that it no longer offers: it has lost them, and has to be looked at."""
        bid = self.bids.get(node)
        offered = {gpu.uuid for gpu in bid.gpus} if bid else set[GpuUuid]()
        return {uuid for lease in self._leased_on[node] for uuid in self.leases[lease].gpus} - offered

    def closing(self, node: NodeId) -> set[GpuUuid]:
        """GPUs that the node offers and on account of which nothing of it may be sold."""
        bid = self.bids.get(node)
        off = self.quarantined.get((bid.account, node), {}) if bid else {}
        return {gpu.uuid for gpu in bid.gpus if off.get(gpu.uuid, False)} if bid else set()

    def free(self, node: NodeId, model: str) -> set[GpuUuid]:
        """The node's GPUs of the model that could be sold, were the node alive."""
        bid = self.bids.get(node)
        if bid is None or self.missing(node) or self.closing(node):
            return set()
        unsold = {gpu.uuid for gpu in bid.gpus if gpu.model == model and self.seller(gpu.uuid) == node}
        return unsold - self._holder.keys() - self.quarantined.get((bid.account, node), {}).keys()


def gpus_of(bid: BidAccepted) -> dict[GpuUuid, Gpu]:
    """What the bid offers, by UUID."""
    return {gpu.uuid: gpu for gpu in bid.gpus}


def domain(place: Place, level: Level) -> str:
    """The domain of this level that the place is in; empty if that is unknown."""
    match level:
        case "fabric" if place.region and place.fabric:
            return f"fabric:{place.region}/{place.fabric}"
        case "site" if place.region and place.site:
            return f"site:{place.region}/{place.site}"
        case "region" if place.region:
            return f"region:{place.region}"
        case _:
            return ""


def common(places: list[Place], level: Level) -> str:
    """The one domain of this level that all places are in; empty if there is none."""
    domains = {domain(place, level) for place in places}
    return domains.pop() if len(domains) == 1 else ""


def narrowest(places: list[Place]) -> str:
    """The narrowest domain that all places are in; empty if there is none."""
    return next((found for level in LEVELS if (found := common(places, level))), "")
