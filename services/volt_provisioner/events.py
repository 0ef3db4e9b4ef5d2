"""The events that the provisioner appends about a cluster, each made from the state that calls for it, at `at_ms`."""

from typing import TypedDict

from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    LossCause,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MembersWanted,
    Wanted,
)
from volt.contracts.ids import AccountId, JobId, LeaseId
from volt.contracts.timing import Timing
from volt_provisioner.crew import Offered, Vacant
from volt_provisioner.desired import manifest_of
from volt_provisioner.states import Forming, Granted, Open, Running, Starting, Stopping, Verdict, members_of

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
    head = head_of(cluster, at_ms)
    head["generation"] += 1
    return ClusterForming(
        **head,
        members=tuple(cluster.crew.members.values()),
        replaces=tuple(loss.member.lease for loss in cluster.crew.lost),
        prepare_by_ms=at_ms + timing.prepare_ms_max,
    )


def joined(cluster: Forming, seat: Offered, timing: Timing, at_ms: int) -> MemberJoined:
    return MemberJoined(
        **head_of(cluster, at_ms),
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


def generation_ended(cluster: Starting | Running, lease: LeaseId, at_ms: int) -> GenerationEnded:
    return GenerationEnded(**head_of(cluster, at_ms), lease=lease)


def released(cluster: Open, verdict: Verdict, at_ms: int) -> ClusterReleased:
    return ClusterReleased(
        **head_of(cluster, at_ms),
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        first_cause=verdict.first_cause,
    )
