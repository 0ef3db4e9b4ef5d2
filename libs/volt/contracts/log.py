"""The events of `LOG`, all of them, and how to read one."""

from typing import NamedTuple

from volt.contracts import bids, clusters, fleet, jobs, ledger, market, nodes
from volt.contracts.messages import Decoder, Event

EVENT_TYPES: tuple[type[Event], ...] = (
    jobs.AccountOpened,
    jobs.CommandRejected,
    jobs.JobAdmitted,
    jobs.JobRejected,
    jobs.JobReleaseAccepted,
    jobs.JobScaleAccepted,
    jobs.JobScaleRejected,
    jobs.QuoteAdmitted,
    jobs.QuoteRejected,
    bids.BidAccepted,
    bids.BidRejected,
    bids.BidWithdrawn,
    bids.NodeDrainAccepted,
    bids.NodeResumeAccepted,
    market.MarketCleared,
    clusters.ClusterForming,
    clusters.MembersWanted,
    clusters.RetryPlanned,
    clusters.MemberJoined,
    clusters.MemberPrepared,
    clusters.ClusterStarting,
    clusters.MemberStarted,
    clusters.LeaseResumed,
    clusters.ClusterReady,
    clusters.MemberEnded,
    clusters.MemberLost,
    clusters.MemberDropped,
    clusters.GrowthGivenUp,
    clusters.GenerationEnded,
    clusters.ClusterReleased,
    clusters.LeaseCleared,
    clusters.CheckpointStored,
    clusters.CheckpointCommitted,
    nodes.NodeAlive,
    nodes.NodeUnknown,
    nodes.NodeLost,
    nodes.NodeRated,
    nodes.GpuFaulted,
    nodes.GpuQuarantined,
    nodes.NodeQuarantined,
    nodes.QuarantineEnded,
    nodes.BeatsCovered,
    fleet.LossesHeld,
    fleet.LossesReleased,
    fleet.PaceSet,
    ledger.AccountCredited,
    ledger.JobFunded,
    ledger.JobUnfunded,
    ledger.MembersFunded,
    ledger.HoldAdjusted,
    ledger.FundsLow,
    ledger.FundsExhausted,
    ledger.ChargesPosted,
    ledger.JobClosed,
)

_decoder: Decoder[Event] = Decoder(*EVENT_TYPES)


class Entry(NamedTuple):
    """An event at its place in the log. `at_ms` is the stream's time of storing it, milliseconds since 1970."""

    seq: int
    at_ms: int
    event: Event


def decode_event(data: bytes) -> Event:
    """The event in these bytes. Raises MalformedMessage."""
    return _decoder.decode(data)
