"""How a cluster is brought to another size: the part of its table that is about who is to join it, or leaves.

    Running ──MembersWanted, MemberJoined, MemberPrepared, MemberDropped, GrowthGivenUp──▶ Running
    Running ──GenerationEnded{growth}──▶ Stopping ──ClusterForming──▶ Forming, with those who are prepared
    Running ──GenerationEnded{shrink}──▶ Stopping ──ClusterForming──▶ Forming, without the highest ranks
    Running ──GenerationEnded{drain}───▶ Stopping ──ClusterForming──▶ Forming, others at the ranks of those who move

Who is to join holds a lease and is told of the next generation; no generation has them until it forms. The running
cluster never depends on them: one that is lost or cannot prepare is dropped, and its rank is wanted anew. After too
many failures at a rank the growth is given up, and the cluster stays as large as it is.
"""

from dataclasses import replace
from typing import TypeVar

from volt.contracts.clusters import (
    ClusterEvent,
    ClusterForming,
    GenerationEnded,
    GrowthGivenUp,
    MemberDropped,
    MemberJoined,
    MemberPrepared,
    MembersWanted,
)
from volt_provisioner.causes import BLAMELESS, member_sentence
from volt_provisioner.crew import Forgone, NewSeat, Offered, Prepared, Preparing, Sought
from volt_provisioner.states import Running, Stopping, can_prepare, movers

C = TypeVar("C", Running, Stopping)


def grown(cluster: Running, event: ClusterEvent) -> Running | None:
    """The running cluster after an event about its growth, None if it is none or not possible."""
    match event:
        case MembersWanted(wanted=wanted) if event.generation == cluster.generation:
            if not all(_may_want(cluster, one.rank) for one in wanted):
                return None
            sought = {one.rank: Sought(one.attempt) for one in wanted}
            life = replace(cluster.life, attempts=max(one.attempt for one in wanted))
            return replace(cluster, life=life, growth=cluster.growth.with_seats(sought))
        case GrowthGivenUp() if event.generation == cluster.generation:
            return _given_up(cluster, event)
        case MemberJoined(member=member, prepare_by_ms=by_ms) if _is_of_next(cluster, event):
            if not isinstance(cluster.growth.seats.get(member.rank), Offered):
                return None
            return replace(cluster, growth=cluster.growth.with_seats({member.rank: Preparing(member, by_ms)}))
        case _:
            return prepared_or_dropped(cluster, event)


def prepared_or_dropped(cluster: C, event: ClusterEvent) -> C | None:
    """What may become of who is to join, though the generation may have ended meanwhile."""
    if not _is_of_next(cluster, event):
        return None
    growth = cluster.growth
    match event:
        case MemberPrepared(lease=lease, address=address, port=port) if can_prepare(growth.seats, event):
            member = growth.members[lease]
            seated = growth.with_seats({member.rank: Prepared(member, address, port, event.beat)})
            since_ms = event.at_ms if growth.prepared_ms is None else growth.prepared_ms
            return replace(cluster, growth=replace(seated, prepared_ms=since_ms))
        case MemberDropped(lease=lease) if lease in growth.members:
            return _dropped(cluster, event)
        case _:
            return None


def ended_on_purpose(cluster: Running, event: GenerationEnded, stopping: Stopping) -> Stopping:
    """The ended generation, with those who are not to be in the next one. What shrinks is not lost."""
    overdue = {lease for lease in event.drains if cluster.life.drains.get(lease, event.at_ms) < event.at_ms}
    life, crew = stopping.life, stopping.crew
    for lease in event.leaves:
        doom = life.doomed.get(lease)
        if doom is not None and doom.cause == "node_lost":
            crew = crew.with_ended(lease, (), failed=False)
    doomed = {lease: doom for lease, doom in life.doomed.items() if lease not in event.leaves}
    leavers = frozenset({*event.leaves, *overdue})
    return replace(stopping, life=replace(life, doomed=doomed), crew=crew, growth=cluster.growth, leavers=leavers)


def grown_seats(cluster: Stopping, event: ClusterForming) -> dict[int, Prepared]:
    """The seats of those who join the generation that forms."""
    prepared = {seat.member.lease: seat for seat in cluster.growth.prepared}
    return {
        member.rank: replace(prepared[member.lease], member=member)
        for member in event.members
        if member.lease in prepared
    }


def without_the_rest(cluster: Stopping, event: ClusterForming) -> Stopping:
    """Before the next generation forms, who does not join it leaves: of those who were to, and of the members."""
    joining = {member.lease for member in event.members}
    rest = [member for lease, member in cluster.growth.members.items() if lease not in joining]
    leavers = [member for lease, member in cluster.crew.members.items() if lease not in joining]
    return replace(cluster, life=cluster.life.leaving(rest, event.generation).leaving(leavers, cluster.generation))


def _given_up(cluster: Running, event: GrowthGivenUp) -> Running | None:
    members = cluster.growth.members
    if not members.keys() >= frozenset(event.leases):
        return None
    forgone: dict[int, NewSeat] = {
        rank: Forgone(seat.attempt)
        for rank, seat in cluster.growth.seats.items()
        if isinstance(seat, Sought) and seat.attempt in event.attempts
    }
    life = cluster.life.leaving([members[lease] for lease in event.leases], cluster.generation + 1)
    growth = cluster.growth.without_ranks(event.ranks).with_seats(forgone)
    if event.cause == "failed":
        # The wish counted for as long as it could be tried; another one begins afresh.
        given_up = bool(movers(cluster))
        life = replace(life, nodes=len(cluster.crew.members), is_move_given_up=given_up)
        growth = replace(growth, failures={}, cause="")
    return replace(cluster, life=life, growth=growth)


def _dropped(cluster: C, event: MemberDropped) -> C:
    growth, member = cluster.growth, cluster.growth.members[event.lease]
    is_fault = event.cause not in BLAMELESS
    failures = {**growth.failures, member.rank: growth.failures.get(member.rank, 0) + is_fault}
    return replace(
        cluster,
        life=cluster.life.without(member, event.generation, event.cause),
        growth=replace(
            growth.without_ranks([member.rank]),
            failures=failures,
            cause=member_sentence(member, event.cause, event.detail) if is_fault else growth.cause,
        ),
    )


def _may_want(cluster: Running, rank: int) -> bool:
    """Whether the rank is above the cluster's own and nobody is sought or prepares for it."""
    return rank >= len(cluster.crew.members) and isinstance(cluster.growth.seats.get(rank, Forgone(0)), Forgone)


def _is_of_next(cluster: Running | Stopping, event: ClusterEvent) -> bool:
    return event.generation == cluster.generation + 1
