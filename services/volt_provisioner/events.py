"""The events that the provisioner appends about a cluster, each made from the state that calls for it, at `at_ms`."""

from collections.abc import Sequence
from typing import TypedDict

from msgspec import structs

from volt.contracts.clusters import (
    Checkpoint,
    CheckpointCommitted,
    CheckpointPart,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    DropCause,
    GenerationEnded,
    GiveUpCause,
    GrowthGivenUp,
    LossCause,
    Member,
    MemberDropped,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MembersWanted,
    RetryPlanned,
    Wanted,
)
from volt.contracts.ids import AccountId, JobId, LeaseId
from volt.contracts.timing import Timing
from volt_provisioner.causes import (
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    exit_code,
    exit_sentence,
    policy_of,
    retry_cause,
    stand_ins,
)
from volt_provisioner.crew import Forgone, Offered, Sought, Vacant
from volt_provisioner.desired import manifest_of
from volt_provisioner.states import (
    Closed,
    Forming,
    Granted,
    Open,
    Running,
    Starting,
    Stopping,
    Verdict,
    members_of,
    movers,
)

DETAIL_CHARS_MAX = 500


class Head(TypedDict):
    """What every event of a cluster says first."""

    account: AccountId
    job: JobId
    generation: int
    at_ms: int


def head_of(cluster: Open, at_ms: int) -> Head:
    job = cluster.life.job
    return Head(account=job.account, job=job.id, generation=cluster.generation, at_ms=at_ms)


def forming_first(cluster: Granted, timing: Timing, at_ms: int) -> ClusterForming:
    return ClusterForming(
        **head_of(cluster, at_ms), members=cluster.members, prepare_by_ms=at_ms + timing.prepare_ms_max
    )


def forming_again(cluster: Stopping, timing: Timing, at_ms: int) -> ClusterForming:
    return ClusterForming(
        **_next_head_of(cluster, at_ms),
        members=_next_members(cluster),
        replaces=_replaced(cluster),
        shrunk=tuple(loss.member.lease for loss in cluster.crew.lost if loss.member.lease not in _replaced(cluster)),
        prepare_by_ms=at_ms + timing.prepare_ms_max,
    )


def forming_smaller(cluster: Forming, timing: Timing, at_ms: int) -> ClusterForming:
    """In place of a generation that is open and has lost a member."""
    head = head_of(cluster, at_ms)
    head["generation"] += 1
    return ClusterForming(
        **head,
        members=_closed_up(list(members_of(cluster).values())),
        shrunk=tuple(seat.replaces for seat in cluster.seats.values() if isinstance(seat, Vacant)),
        prepare_by_ms=at_ms + timing.prepare_ms_max,
    )


def joined(cluster: Forming | Running, seat: Offered, timing: Timing, at_ms: int) -> MemberJoined:
    return MemberJoined(
        **(head_of(cluster, at_ms) if isinstance(cluster, Forming) else _next_head_of(cluster, at_ms)),
        member=seat.member,
        attempt=seat.attempt,
        prepare_by_ms=at_ms + timing.prepare_ms_max,
    )


def wanted(cluster: Forming, at_ms: int) -> MembersWanted:
    vacant = [(rank, seat) for rank, seat in cluster.seats.items() if isinstance(seat, Vacant)]
    return MembersWanted(
        **head_of(cluster, at_ms),
        wanted=tuple(
            Wanted(rank=rank, attempt=attempt, replaces=seat.replaces)
            for attempt, (rank, seat) in enumerate(vacant, cluster.life.attempts + 1)
        ),
        excluded=cluster.life.failed_nodes,
        within=cluster.life.domain,
    )


def growth_wanted(cluster: Running, ranks: Sequence[int], at_ms: int) -> MembersWanted:
    return MembersWanted(
        **head_of(cluster, at_ms),
        wanted=tuple(
            Wanted(rank=rank, attempt=attempt, relieves=_relieved(cluster, rank))
            for attempt, rank in enumerate(ranks, cluster.life.attempts + 1)
        ),
        excluded=cluster.life.failed_nodes,
        within=cluster.life.domain,
    )


def growth_given_up(cluster: Running, ranks: Sequence[int], cause: GiveUpCause, at_ms: int) -> GrowthGivenUp:
    given_up = [seat for rank, seat in cluster.growth.seats.items() if rank in ranks]
    return GrowthGivenUp(
        **head_of(cluster, at_ms),
        ranks=tuple(ranks),
        attempts=tuple(seat.attempt for seat in given_up if isinstance(seat, Sought)),
        leases=tuple(seat.member.lease for seat in given_up if not isinstance(seat, Sought | Forgone)),
        cause=cause,
        detail=cluster.growth.cause[:DETAIL_CHARS_MAX] if cause == "failed" else "",
    )


def starting(cluster: Forming, timing: Timing, at_ms: int) -> ClusterStarting:
    return ClusterStarting(
        **head_of(cluster, at_ms), manifest=manifest_of(cluster), start_by_ms=at_ms + timing.start_ms_max
    )


def ready(cluster: Starting, at_ms: int) -> ClusterReady:
    return ClusterReady(**head_of(cluster, at_ms))


def ended_unseen(cluster: Forming, lease: LeaseId, at_ms: int) -> MemberEnded:
    """A member prepares only once it has ended what it had, so one that is prepared has, though it did not say so."""
    head = head_of(cluster, at_ms)
    head["generation"] = cluster.ran
    return MemberEnded(**head, lease=lease, exits=())


def lost(cluster: Open, lease: LeaseId, cause: LossCause, at_ms: int, detail: str = "") -> MemberLost:
    node = members_of(cluster)[lease].node
    return MemberLost(**head_of(cluster, at_ms), lease=lease, node=node, cause=cause, detail=detail[:DETAIL_CHARS_MAX])


def dropped(
    cluster: Running | Stopping, lease: LeaseId, cause: DropCause, at_ms: int, detail: str = ""
) -> MemberDropped:
    return MemberDropped(
        **_next_head_of(cluster, at_ms),
        lease=lease,
        node=cluster.growth.members[lease].node,
        cause=cause,
        detail=detail[:DETAIL_CHARS_MAX],
    )


def doomed_lost(cluster: Open, at_ms: int) -> MemberLost | MemberDropped:
    """The record of the first lease whose node is lost or one of whose GPUs has failed; who was only to join is no
    member yet."""
    lease, doom = next(iter(cluster.life.doomed.items()))
    if isinstance(cluster, Running | Stopping) and lease in cluster.growth.members:
        return dropped(cluster, lease, doom.cause, at_ms, doom.detail)
    return lost(cluster, lease, doom.cause, at_ms, doom.detail)


def checkpoint_committed(
    cluster: Closed, step: int, parts: tuple[CheckpointPart, ...], at_ms: int
) -> CheckpointCommitted:
    checkpoint = Checkpoint(generation=cluster.generation, step=step, parts=parts)
    return CheckpointCommitted(**head_of(cluster, at_ms), checkpoint=checkpoint)


def generation_ended(cluster: Starting | Running, lease: LeaseId, at_ms: int) -> GenerationEnded:
    return GenerationEnded(**head_of(cluster, at_ms), lease=lease)


def ended_to_grow(cluster: Running, at_ms: int) -> GenerationEnded:
    return GenerationEnded(**head_of(cluster, at_ms), cause="growth")


def ended_to_drain(cluster: Running, at_ms: int) -> GenerationEnded:
    """Those leave whose ranks others take, and those whose time is over."""
    moving = movers(cluster)
    taken = len(cluster.growth.prepared)
    leavers = [
        member for place, member in enumerate(moving) if place < taken or cluster.life.drains[member.lease] < at_ms
    ]
    return GenerationEnded(**head_of(cluster, at_ms), cause="drain", drains=tuple(member.lease for member in leavers))


def ended_to_shrink(cluster: Running, at_ms: int) -> GenerationEnded:
    leavers = [member.lease for member in cluster.crew.members.values() if member.rank >= cluster.nodes_wanted]
    return GenerationEnded(**head_of(cluster, at_ms), cause="shrink", leaves=tuple(leavers))


def retry_planned(cluster: Stopping, at_ms: int) -> RetryPlanned:
    assert cluster.culprit is not None, "somebody has failed"
    exits = cluster.crew.ended[cluster.culprit]
    retries = cluster.life.retries
    return RetryPlanned(
        **head_of(cluster, at_ms),
        lease=cluster.culprit,
        cause=retry_cause(exits),
        retry=retries + 1,
        begins_ms=at_ms + min(RETRY_MS_MIN << retries, RETRY_MS_MAX),
        exit_code=exit_code(exits),
        detail=exit_sentence(cluster.crew.members[cluster.culprit], exits)[:DETAIL_CHARS_MAX],
    )


def released(cluster: Open, verdict: Verdict, at_ms: int) -> ClusterReleased:
    return ClusterReleased(
        **head_of(cluster, at_ms),
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        first_cause=verdict.first_cause,
    )


def _relieved(cluster: Running, rank: int) -> LeaseId | None:
    """Whose rank the one above all others will take, if it is not to grow by."""
    moving, place = movers(cluster), rank - len(cluster.crew.members)
    return moving[place].lease if place < len(moving) else None


def _replaced(cluster: Stopping) -> tuple[LeaseId, ...]:
    """The lost leases whose ranks others take: all of them, unless the job goes on without them."""
    return () if policy_of(cluster.life) == "shrink" else tuple(loss.member.lease for loss in cluster.crew.lost)


def _next_head_of(cluster: Running | Stopping, at_ms: int) -> Head:
    head = head_of(cluster, at_ms)
    head["generation"] += 1
    return head


def _next_members(cluster: Stopping) -> tuple[Member, ...]:
    """Who is in the next generation: the members, those who are prepared at the ranks of those who move, and what is
    left of them at the ranks that follow, as far as the cluster still wants to grow."""
    ready, replaced = stand_ins(cluster), _replaced(cluster)
    moving = dict(zip((member.lease for member in movers(cluster)), ready, strict=False))
    kept = [
        structs.replace(moving.get(member.lease, member), rank=member.rank)
        for member in cluster.crew.members.values()
        if member.lease not in cluster.left_out
    ]
    if policy_of(cluster.life) == "shrink":
        kept = [*_closed_up(kept)]
    first_rank = len(kept) + len(replaced)
    room = max(0, cluster.life.nodes - len(cluster.crew.lost) + len(replaced) - first_rank)
    joining = ready[len(moving) :][:room]
    return (*kept, *(structs.replace(member, rank=rank) for rank, member in enumerate(joining, first_rank)))


def _closed_up(members: Sequence[Member]) -> tuple[Member, ...]:
    """The same in their order, at ranks without a gap."""
    in_order = sorted(members, key=lambda member: member.rank)
    return tuple(structs.replace(member, rank=rank) for rank, member in enumerate(in_order))
