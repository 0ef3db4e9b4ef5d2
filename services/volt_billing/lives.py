"""How the life of a cluster changes what is metered."""

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from volt.contracts.clusters import (
    CheckpointCommitted,
    CheckpointStored,
    ClusterForming,
    ClusterReady,
    ClusterStarting,
    GenerationEnded,
    GrowthGivenUp,
    LeaseCleared,
    LeaseResumed,
    MemberDropped,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberPrepared,
    MemberStarted,
    MembersWanted,
    RetryPlanned,
)
from volt.contracts.ids import LeaseId
from volt.contracts.ledger import BillLine
from volt.contracts.market import Gang
from volt_billing.holds import covers_to_ms
from volt_billing.states import NEVER_MS, Forming, Lease, Ready, Running

Life = (
    ClusterForming
    | MembersWanted
    | MemberJoined
    | MemberPrepared
    | ClusterStarting
    | MemberStarted
    | LeaseResumed
    | ClusterReady
    | MemberEnded
    | MemberLost
    | MemberDropped
    | GrowthGivenUp
    | GenerationEnded
    | LeaseCleared
    | CheckpointStored
    | CheckpointCommitted
    | RetryPlanned
)
"""What happens to a cluster that goes on; its release is another matter."""


def granted(running: Running, gang: Gang) -> Running:
    """With the leases of one more gang, each at the gang's own price."""
    leases = {
        grant.lease: Lease(
            BillLine(
                lease=grant.lease,
                provider=grant.provider,
                gpus=len(grant.gpus),
                price_microusd_per_gpu_hour=gang.price_microusd_per_gpu_hour,
                through_ms=0,
                billable_ms=0,
                due_microusd=0,
                fee_microusd=0,
            )
        )
        for grant in gang.grants
    }
    return replace(running, leases={**leases, **running.leases}, is_settled=False)


def lived(running: Running, event: Life) -> Running:
    """After one event of the cluster. One that says nothing about money, or nothing new, changes nothing."""
    match event:
        case ClusterForming(generation=number, members=members):
            wanted, growth = (
                {attempt: of for attempt, of in asked.items() if of >= number}
                for asked in (running.wanted, running.growth)
            )
            forming = Forming(frozenset(member.lease for member in members))
            others = _left(running, running.leases.keys() - forming.members)
            return _formed(replace(others, wanted=wanted, growth=growth, generation=number), number, forming)
        case MemberJoined(generation=number, member=member):
            known = running.forming.get(number, Forming())
            return _formed(running, number, replace(known, members=known.members | {member.lease}))
        case MemberStarted(generation=number, lease=lease):
            known = running.forming.get(number, Forming())
            return _formed(running, number, replace(known, started=known.started | {lease}))
        case MembersWanted(generation=number, wanted=wanted_ranks):
            wanted = {one.attempt: number for one in wanted_ranks if one.replaces is not None}
            growth = {one.attempt: number for one in wanted_ranks if one.replaces is None}
            return replace(running, wanted={**running.wanted, **wanted}, growth={**running.growth, **growth})
        case MemberDropped(lease=lease):
            return _left(running, {lease})
        case GrowthGivenUp(leases=leases, attempts=attempts):
            growth = {attempt: of for attempt, of in running.growth.items() if attempt not in attempts}
            return replace(_left(running, leases), growth=growth, is_settled=False)
        case ClusterReady(generation=number, at_ms=at_ms):
            return _metered(_made_ready(running, number, at_ms))
        case MemberEnded() | MemberLost():
            return _metered(_stopped(running, event))
        case GenerationEnded(leaves=leaves):
            return _metered(_left(_stopped(running, event), leaves))
        case MemberPrepared() | ClusterStarting() | LeaseResumed() | LeaseCleared():
            return running  # Time for which a lease is frozen is not covered; it needs no other word.
        case CheckpointStored() | CheckpointCommitted() | RetryPlanned():
            return running
        case _:
            assert_never(event)


def _formed(running: Running, number: int, forming: Forming) -> Running:
    return replace(running, forming={**running.forming, number: forming})


def _left(running: Running, leases: Collection[LeaseId]) -> Running:
    """Without these leases, as far as they were live: what is held for them may go back."""
    left = {
        lease: replace(known, has_left=True)
        for lease, known in running.leases.items()
        if lease in leases and known.is_live
    }
    return replace(running, leases={**running.leases, **left}, is_settled=running.is_settled and not left)


def _made_ready(running: Running, number: int, at_ms: int) -> Running:
    """From here on the time of the generation's members counts: in a gang, of those that were started."""
    if number in running.ready:
        return running
    forming = running.forming.get(number, Forming())
    members = forming.started if running.terms.is_gang else forming.members
    party = members.intersection(running.leases)
    first_ms = min([at_ms, *(ready.ready_ms for ready in running.ready.values())])
    return replace(
        running,
        ready={**running.ready, number: Ready(party, at_ms, forming.exited)},
        forming={other: known for other, known in running.forming.items() if other > number},
        deadline_ms=min(NEVER_MS, first_ms + running.terms.duration_ms_max),
    )


def _stopped(running: Running, event: MemberEnded | MemberLost | GenerationEnded) -> Running:
    """After something that ends the counting, of a lease or of a generation; the first word on each stands."""
    match event:
        case MemberLost(lease=lease) if lease in running.leases:
            known = running.leases[lease]
            lost = replace(known, lost_ms=min(known.lost_ms, event.at_ms))
            return replace(running, leases={**running.leases, lease: lost})
        case MemberEnded(exits=exits) if exits and all(one.code == 0 for one in exits):
            return _exited(running, event)
        case GenerationEnded(generation=number) if number in running.ready:
            ready = running.ready[number]
            ended = replace(ready, ended_ms=min(ready.ended_ms, event.at_ms))
            return replace(running, ready={**running.ready, number: ended})
        case MemberLost() | MemberEnded() | GenerationEnded():
            return running  # A lease that is none, a failing exit, a generation that never was ready.
        case _:
            assert_never(event)


def _exited(running: Running, event: MemberEnded) -> Running:
    number = event.generation
    ready, forming = running.ready.get(number), running.forming.get(number, Forming())
    if ready is None:
        return _formed(running, number, replace(forming, exited={event.lease: event.at_ms, **forming.exited}))
    exited = replace(ready, exited={event.lease: event.at_ms, **ready.exited})
    return replace(running, ready={**running.ready, number: exited})


def _metered(running: Running) -> Running:
    return replace(running, covers_to_ms=covers_to_ms(running, running.funded_microusd))
