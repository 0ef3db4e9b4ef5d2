"""The events that the provisioner appends about a cluster, each made from the state that calls for it, at `at_ms`."""

from collections.abc import Iterator, Sequence
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
    Wanted,
)
from volt.contracts.ids import AccountId, JobId, LeaseId
from volt.contracts.timing import Timing
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
        members=(*cluster.crew.members.values(), *_grown_by(cluster)),
        replaces=tuple(loss.member.lease for loss in cluster.crew.lost),
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
        wanted=tuple(Wanted(rank=rank, attempt=cluster.life.attempts + 1 + place) for place, rank in enumerate(ranks)),
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
    head["generation"] -= 1
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


def ended_to_shrink(cluster: Running, at_ms: int) -> GenerationEnded:
    leavers = [member.lease for member in cluster.crew.members.values() if member.rank >= cluster.nodes_wanted]
    return GenerationEnded(**head_of(cluster, at_ms), cause="shrink", leaves=tuple(leavers))


def released(cluster: Open, verdict: Verdict, at_ms: int) -> ClusterReleased:
    return ClusterReleased(
        **head_of(cluster, at_ms),
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        first_cause=verdict.first_cause,
    )


def _next_head_of(cluster: Running | Stopping, at_ms: int) -> Head:
    head = head_of(cluster, at_ms)
    head["generation"] += 1
    return head


def _grown_by(cluster: Stopping) -> Iterator[Member]:
    """Who is prepared, as far as the cluster still wants to grow, at the ranks that follow its own without a gap."""
    first_rank = len(cluster.crew.members) + len(cluster.crew.lost)
    ready = [seat.member for seat in cluster.growth.prepared if seat.member.lease not in cluster.life.doomed]
    for rank, member in enumerate(ready[: max(0, cluster.life.nodes - first_rank)], first_rank):
        yield structs.replace(member, rank=rank)
