"""The states of a cluster, one class each with only the fields valid in it. `domain` draws how they follow each other.

A mapping in here is never changed in place: the next state gets another.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from volt.contracts.clusters import (
    CHECKPOINTS_KEPT,
    Checkpoint,
    EndCause,
    LossCause,
    Manifest,
    Member,
    MemberPrepared,
    ReleaseReason,
)
from volt.contracts.ids import AccountId, JobId, LeaseId, NodeId
from volt.contracts.jobs import JobSpec
from volt.contracts.nodes import ReportPrepared
from volt_provisioner.crew import Crew, Growth, NewSeat, Prepared, Preparing, Seat, Setback, Sought, Vacant

DoomCause = Literal["node_lost", "gpu_fault"]
FAILED_NODES_MAX = 1_024
"""How many of the nodes that failed a job are kept away from it, the last ones; it bounds `MembersWanted`."""


@dataclass(frozen=True)
class Job:
    """The job that the cluster serves, as admitted."""

    account: AccountId
    id: JobId
    spec: JobSpec


@dataclass(frozen=True)
class Doom:
    """Why a lease ends that its cluster still relies on."""

    cause: DoomCause
    detail: str = ""


@dataclass(frozen=True)
class Left:
    """A lease that its cluster has done with and that its node has not cleared. Its generation is the last it saw."""

    member: Member
    generation: int


@dataclass(frozen=True)
class Life:
    """What a cluster carries from generation to generation."""

    job: Job
    domain: str
    attempts: int
    """The last attempt that the market was asked for."""
    nodes: int
    """How many nodes the cluster shall have, by the last wish. It is brought there only from `Running`."""
    ready_ms: int | None = None
    """When the cluster was first ready."""
    restarts: int = 0
    """Generations begun for another reason than a lost node, since the last checkpoint was committed."""
    retries: int = 0
    """How often it began again after its workload had failed."""
    first_cause: str = ""
    committed: tuple[Checkpoint, ...] = ()
    """The last checkpoints, oldest first. Their steps rise."""
    failed_nodes: tuple[NodeId, ...] = ()
    """Nodes that are not wanted again: they could not do their part, or were lost to the job for the second time."""
    lost_nodes: tuple[NodeId, ...] = ()
    """Nodes that were lost to the job; one that is back and clear may serve it again."""
    doomed: Mapping[LeaseId, Doom] = field(default_factory=dict)
    """Leases whose node is known to be lost, or one of whose GPUs has failed, in the log's order; the record of it is
    yet to be appended."""
    left: Mapping[LeaseId, Left] = field(default_factory=dict)
    drains: Mapping[LeaseId, int] = field(default_factory=dict)
    """Leases whose node is drained, each with the instant by which it has to be off it."""
    is_move_given_up: bool = False
    """No node could take the place of those: they wait for their instant."""

    @property
    def step(self) -> int:
        """The last committed one, -1 if there is none."""
        return self.committed[-1].step if self.committed else -1

    def with_checkpoint(self, checkpoint: Checkpoint) -> "Life":
        """A newer checkpoint is progress: what went wrong before it is made good."""
        committed = (*self.committed, checkpoint)[-CHECKPOINTS_KEPT:]
        return replace(self, committed=committed, restarts=0, first_cause="")

    def without(self, member: Member, generation: int, cause: LossCause) -> "Life":
        """The member is lost: its lease waits to be cleared. A node with a faulty GPU may serve the job by others."""
        if cause == "gpu_fault":
            return self.leaving((member,), generation)
        may_return = cause == "node_lost" and member.node not in self.lost_nodes
        lost, failed = (self.lost_nodes, self.failed_nodes)
        if cause == "drained":
            pass  # Nothing is wrong with the node, and while it is drained nobody gets it.
        elif may_return:
            lost = (*lost, member.node)[-FAILED_NODES_MAX:]
        elif member.node not in failed:
            failed = (*failed, member.node)[-FAILED_NODES_MAX:]
        return replace(
            self,
            failed_nodes=failed,
            lost_nodes=lost,
        ).leaving((member,), generation)

    def leaving(self, members: Collection[Member], generation: int) -> "Life":
        """These leases end; nothing more has to be recorded of them than that they are cleared."""
        left = {member.lease: Left(member, generation) for member in members}
        return replace(
            self,
            doomed={lease: doom for lease, doom in self.doomed.items() if lease not in left},
            left={**self.left, **left},
            drains={lease: by_ms for lease, by_ms in self.drains.items() if lease not in left},
        )


@dataclass(frozen=True)
class Absent:
    """The job is admitted and has no gang."""

    job: Job


@dataclass(frozen=True)
class Granted:
    """The first gang is in the log; its forming is yet to be appended."""

    life: Life
    members: tuple[Member, ...]

    @property
    def generation(self) -> int:
        return 1


@dataclass(frozen=True)
class Forming:
    """The members of this generation prepare; it is open, so that a loss is answered within it."""

    life: Life
    generation: int
    seats: Mapping[int, Seat]
    """By rank, in order."""
    unended: frozenset[LeaseId]
    """Who has not ended the generation before: members, who do so before they are prepared, and so in time; and those
    who leave because the cluster shrinks or a GPU of theirs has failed."""
    setbacks: Mapping[int, Setback]
    ran: int = 0
    """The generation that those are in: the last that was started."""
    unended_by_ms: int = 0
    """For how long to wait for those who leave."""

    @property
    def leavers(self) -> frozenset[LeaseId]:
        """Who leaves and has not ended the generation before."""
        return self.unended & self.life.left.keys()


@dataclass(frozen=True)
class Starting:
    """All are prepared and told to start."""

    life: Life
    generation: int
    manifest: Manifest
    start_by_ms: int
    crew: Crew


@dataclass(frozen=True)
class Running:
    """All have started. Others may prepare for the next generation meanwhile."""

    life: Life
    generation: int
    manifest: Manifest
    crew: Crew
    growth: Growth = field(default_factory=Growth)

    @property
    def nodes_wanted(self) -> int:
        """How large the cluster should be. One of which some member has finished is left as it is."""
        return len(self.crew.members) if self.crew.ended else self.life.nodes

    @property
    def seats_wanted(self) -> int:
        """Up to which rank there should be members or others who prepare: those who stand in for the members whose
        nodes are drained, first; and only then those by which it grows."""
        members, nodes = len(self.crew.members), self.nodes_wanted
        if nodes < members or self.crew.ended or self.life.is_move_given_up or not self.life.drains:
            return nodes
        stand_ins = len(movers(self))
        return members + stand_ins if stand_ins else nodes


@dataclass(frozen=True)
class Stopping:
    """The generation has ended. By its first loss or failing exit: why is decided when nobody of it runs any more.
    On purpose: when all have ended, and so have stored their last checkpoint."""

    life: Life
    generation: int
    crew: Crew
    culprit: LeaseId | None
    """None: it was ended on purpose."""
    halt_by_ms: int
    growth: Growth = field(default_factory=Growth)
    cause: EndCause = "trouble"
    retry_at_ms: int | None = None
    """When the workload, which has failed, begins again; None: nothing is planned."""
    leavers: frozenset[LeaseId] = frozenset()
    """Who cannot be in the next generation: the highest ranks, because it shrinks; or whose time on a node that is
    drained is over."""

    @property
    def left_out(self) -> frozenset[LeaseId]:
        """The members that leave because the cluster shrinks."""
        return self.leavers if self.cause == "shrink" else frozenset()

    @property
    def lingering(self) -> frozenset[LeaseId]:
        """Who is lost, on a node that lives, and has not ended this generation."""
        lost = (loss.member.lease for loss in self.crew.lost if loss.lingers)
        return frozenset(lease for lease in lost if lease in self.life.left)


Closed = Starting | Running | Stopping
"""Those whose generation has all of its members."""
Open = Granted | Forming | Closed


@dataclass(frozen=True)
class Verdict:
    """How a cluster ends, as `ClusterReleased` will say it."""

    reason: ReleaseReason
    exit_code: int | None = None
    first_cause: str = ""


@dataclass(frozen=True)
class Ending:
    """The end is decided and yet to be appended. Until then nodes see the state that it was in."""

    was: Open
    verdict: Verdict
    is_gang_void: bool
    """Whether the log already says that the job is over, so that a later gang counts for nobody."""


@dataclass(frozen=True)
class Released:
    """Final. What its nodes have not cleared is left."""

    job: Job
    left: Mapping[LeaseId, Left]


@dataclass(frozen=True)
class Cleared:
    """Nothing is left, on any node."""


Cluster = Absent | Open | Ending | Released | Cleared


def members_of(cluster: Open) -> dict[LeaseId, Member]:
    """The members that hold a lease and are not lost, those included that are yet to join."""
    match cluster:
        case Granted(members=members):
            return {member.lease: member for member in members}
        case Forming(seats=seats):
            return {seat.member.lease: seat.member for seat in seats.values() if not isinstance(seat, Vacant | Sought)}
        case Starting(crew=crew):
            return dict(crew.members)
        case Running(crew=crew, growth=growth) | Stopping(crew=crew, growth=growth):
            return {**crew.members, **growth.members}


def generation_of(cluster: Open, lease: LeaseId) -> int:
    """The generation that a member is told of: by whom the cluster grows, of the next one."""
    is_new = isinstance(cluster, Running | Stopping) and lease in cluster.growth.members
    return cluster.generation + is_new


def movers(cluster: Running | Stopping) -> list[Member]:
    """The members whose nodes are drained, the most urgent first."""
    drained = [member for lease, member in cluster.crew.members.items() if lease in cluster.life.drains]
    return sorted(drained, key=lambda member: (cluster.life.drains[member.lease], member.rank))


def can_prepare(seats: Mapping[int, Seat] | Mapping[int, NewSeat], report: ReportPrepared | MemberPrepared) -> bool:
    """Whether it is news that the lease is prepared: its agent may have begun again, or been fenced meanwhile."""
    for seat in seats.values():
        match seat:
            case Preparing(member=member) if member.lease == report.lease:
                return True
            case Prepared(member=member) if member.lease == report.lease:
                return (seat.address, seat.port, seat.beat) != (report.address, report.port, report.beat)
            case _:
                continue
    return False


def can_store(cluster: Closed, lease: LeaseId, step: int) -> bool:
    """Whether it is news that this member has stored a step; one up to the last committed is of no use any more."""
    member = cluster.crew.members.get(lease)
    return member is not None and step > cluster.life.step and not cluster.crew.progress.has(member.rank, step)


def are_prepared(cluster: Forming) -> bool:
    """Whether every rank has a member that can start."""
    return all(isinstance(seat, Prepared) for seat in cluster.seats.values())


def left_of(cluster: Open | Ending | Released) -> Mapping[LeaseId, Left]:
    """The leases that the cluster has done with and that only their nodes can clear."""
    match cluster:
        case Released(left=left):
            return left
        case Ending(was=was):
            return was.life.left
        case _:
            return cluster.life.left


def job_of(cluster: Open | Ending | Released) -> Job:
    """The job that the cluster serves."""
    match cluster:
        case Released(job=job):
            return job
        case Ending(was=was):
            return was.life.job
        case _:
            return cluster.life.job
