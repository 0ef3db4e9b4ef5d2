"""What becomes of a report: the event that records it, or nothing.

A report counts for the generation that it names, in a state that waits for it. Any other is late or said before and
changes nothing: its node converges to what is desired of it, which says what to undo.
"""

from volt.contracts.clusters import (
    BeatId,
    CheckpointPart,
    CheckpointStored,
    ClusterEvent,
    LeaseCleared,
    LeaseResumed,
    Member,
    MemberEnded,
    MemberPrepared,
    MemberStarted,
)
from volt.contracts.ids import LeaseId
from volt.contracts.nodes import (
    Report,
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportFrozen,
    ReportPrepared,
    ReportStarted,
    Thaw,
)
from volt_provisioner.events import Head, dropped, head_of, lost
from volt_provisioner.states import (
    Absent,
    Cleared,
    Closed,
    Cluster,
    Ending,
    Forming,
    Granted,
    Open,
    Released,
    Running,
    Starting,
    Stopping,
    can_prepare,
    can_store,
    job_of,
    left_of,
    members_of,
)


def answer(cluster: Cluster, report: Report, at_ms: int) -> ClusterEvent | None:
    """The event that records a report, None if it changes nothing."""
    match cluster:
        case Absent() | Cleared():
            return None
        case _ if isinstance(report, ReportCleared):
            return _cleared(cluster, report, at_ms)
        case Granted() | Ending() | Released():
            return None
        case Forming() | Starting() | Running() | Stopping():
            member = members_of(cluster).get(report.lease) or _leaver(cluster, report.lease)
            is_its_own = member and (member.provider, member.node) == (report.account, report.node)
            if not is_its_own or report.lease in cluster.life.doomed:
                return None
            if isinstance(cluster, Forming):
                return _formed(cluster, report, at_ms)
            if isinstance(cluster, Running | Stopping) and report.lease in cluster.growth.members:
                return _joining(cluster, report, at_ms)
            return _crewed(cluster, report, at_ms)


def _cleared(cluster: Open | Ending | Released, report: ReportCleared, at_ms: int) -> LeaseCleared | None:
    """Only a lease that is lost or released can be cleared; it is, whatever generation its node remembers."""
    left = left_of(cluster).get(report.lease)
    if left is None or (left.member.provider, left.member.node) != (report.account, report.node):
        return None
    job = job_of(cluster)
    return LeaseCleared(
        account=job.account,
        job=job.id,
        generation=left.generation,
        at_ms=at_ms,
        lease=report.lease,
        node=report.node,
    )


def _leaver(cluster: Open, lease: LeaseId) -> Member | None:
    """Who has left or is lost on a node that lives, and has not ended the generation that it was in."""
    match cluster:
        case Forming() if lease in cluster.leavers:
            return cluster.life.left[lease].member
        case Stopping() if lease in cluster.lingering:
            return cluster.life.left[lease].member
        case _:
            return None


def _joining(cluster: Running | Stopping, report: Report, at_ms: int) -> ClusterEvent | None:
    """Who is to join prepares for the next generation."""
    head, lease, seats = head_of(cluster, at_ms), report.lease, cluster.growth.seats
    head["generation"] += 1
    if report.generation != head["generation"]:
        return None
    match report:
        case ReportPrepared() if can_prepare(seats, report):
            return _prepared(head, report)
        case ReportFailed(stage="prepare", message=message):
            return dropped(cluster, lease, "prepare_failed", at_ms, message)
        case _:
            return None


def _formed(cluster: Forming, report: Report, at_ms: int) -> ClusterEvent | None:
    """Members prepare in this generation, and end the one before."""
    head, lease = head_of(cluster, at_ms), report.lease
    if lease in cluster.unended and cluster.ran <= report.generation < cluster.generation:
        # One that had given up a generation between the two has surely ended this one.
        head["generation"] = cluster.ran
        match report:
            case ReportEnded(exits=exits):
                return MemberEnded(**head, lease=lease, exits=exits)
            case ReportFailed():
                return MemberEnded(**head, lease=lease, exits=())
    if report.generation != cluster.generation:
        return None
    match report:
        case ReportPrepared() if can_prepare(cluster.seats, report):
            return _prepared(head, report)
        case ReportFailed(stage="prepare", message=message):
            return lost(cluster, lease, "prepare_failed", at_ms, message)
        case _:
            return None


def _prepared(head: Head, report: ReportPrepared) -> MemberPrepared:
    return MemberPrepared(**head, lease=report.lease, address=report.address, port=report.port, beat=report.beat)


def _crewed(cluster: Closed, report: Report, at_ms: int) -> ClusterEvent | None:
    """Members start once and end once, and store checkpoints; what one has stored counts though it has ended."""
    crew, lease = cluster.crew, report.lease
    if report.generation != cluster.generation:
        return None
    if isinstance(report, ReportCheckpoint):
        return _stored(cluster, report, at_ms)
    if lease in crew.ended:
        return None
    match report:
        case ReportStarted() if isinstance(cluster, Starting) and lease not in crew.started:
            return MemberStarted(**head_of(cluster, at_ms), lease=lease)
        case ReportFrozen(freeze=freeze, beat=beat) if not isinstance(cluster, Stopping):
            return _resumed(cluster, report, freeze, beat, at_ms)
        case ReportFailed() if isinstance(cluster, Stopping) and lease in cluster.left_out:
            return MemberEnded(**head_of(cluster, at_ms), lease=lease, exits=())
        case ReportFailed(stage="start", message=message) if not isinstance(cluster, Running):
            return lost(cluster, lease, "start_failed", at_ms, message)
        case ReportEnded(exits=exits):
            return MemberEnded(**head_of(cluster, at_ms), lease=lease, exits=exits)
        case _:
            return None


def _resumed(
    cluster: Starting | Running, report: ReportFrozen, freeze: int, beat: BeatId, at_ms: int
) -> LeaseResumed | None:
    """Leave to go on, once for each freeze: nobody has taken the place of a member that is not lost."""
    if cluster.crew.thaws.get(report.lease) == Thaw(incarnation=beat.incarnation, freeze=freeze):
        return None
    return LeaseResumed(**head_of(cluster, at_ms), lease=report.lease, node=report.node, freeze=freeze, beat=beat)


def _stored(cluster: Closed, report: ReportCheckpoint, at_ms: int) -> CheckpointStored | None:
    """A part of a checkpoint. The first that a rank reports of a step stands."""
    if not can_store(cluster, report.lease, report.step):
        return None
    rank = cluster.crew.members[report.lease].rank
    part = CheckpointPart(rank=rank, manifest=report.manifest, size_bytes=report.size_bytes)
    return CheckpointStored(**head_of(cluster, at_ms), lease=report.lease, step=report.step, part=part)
