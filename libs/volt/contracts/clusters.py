"""The life of a cluster, as the provisioner records it."""

from typing import Annotated, Literal

import msgspec

from volt.contracts.ids import AccountId, GpuUuid, Incarnation, JobId, LeaseId, NodeId, Sha256
from volt.contracts.messages import Event, Value
from volt.contracts.subjects import log_cluster

LossCause = Literal[
    "node_lost",
    "gpu_fault",
    "prepare_failed",
    "prepare_overdue",
    "start_failed",
    "start_overdue",
    "halt_overdue",
    "drained",
]
"""`drained`: its node is emptied, the time for that is over, and no other had taken its rank."""
DropCause = Literal["node_lost", "gpu_fault", "prepare_failed", "prepare_overdue"]
GiveUpCause = Literal["unwanted", "failed"]
"""The buyer wants fewer nodes, or some member has finished; or no node could prepare."""
EndCause = Literal["trouble", "growth", "shrink", "drain"]
RetryCause = Literal["workload_failed", "out_of_memory"]
ReleaseReason = Literal[
    "completed",
    "released",
    "exhausted",
    "workload_failed",
    "restarts_exhausted",
    "no_replacement",
    "member_lost",
    "duration_reached",
]


CHECKPOINTS_KEPT = 2
"""How many committed checkpoints of a job are kept, the last ones."""
STEP_MAX = 10**15
CHECKPOINT_BYTES_MAX = 2**60

CheckpointStep = Annotated[int, msgspec.Meta(ge=0, le=STEP_MAX)]
CheckpointBytes = Annotated[int, msgspec.Meta(ge=0, le=CHECKPOINT_BYTES_MAX)]


class BeatId(Value, frozen=True, kw_only=True):
    """A heartbeat of a node that the bus has stored."""

    incarnation: Incarnation
    sequence: int


class Member(Value, frozen=True, kw_only=True):
    """A node of a cluster, by the lease that makes it one."""

    lease: LeaseId
    rank: int
    node: NodeId
    provider: AccountId
    gpus: tuple[GpuUuid, ...]
    price_microusd_per_gpu_hour: int


class ManifestNode(Value, frozen=True, kw_only=True):
    """A member as its peers see it. `first_rank` is the process rank of its local rank 0."""

    node: NodeId
    node_rank: int
    address: str
    processes: int
    first_rank: int


class Manifest(Value, frozen=True, kw_only=True):
    """What every member of a generation knows of the others."""

    job: JobId
    generation: int
    master_address: str
    master_port: int
    world_size: int
    nodes: tuple[ManifestNode, ...]


class Wanted(Value, frozen=True, kw_only=True):
    """A vacant rank. `attempt` counts over the job's life, so that each is granted once.

    A lost lease is answered once: one `Wanted` names it in `replaces`, or one `ClusterForming` in `shrunk`, or its
    cluster is released. None is for growth, and for who takes the rank of a member whose node is drained.
    """

    rank: int
    attempt: int
    replaces: LeaseId | None = None
    relieves: LeaseId | None = None
    """The member whose rank it is to take, because the node of that is drained. The rank here is above the others."""


class Exit(Value, frozen=True, kw_only=True):
    """How one process ended: its code, or the signal, or neither if nobody saw it end."""

    local_rank: int
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False


class CheckpointPart(Value, frozen=True, kw_only=True):
    """What one rank has stored of a step: the digest of its manifest, and the bytes of its files together."""

    rank: int
    manifest: Sha256
    size_bytes: CheckpointBytes


class Checkpoint(Value, frozen=True, kw_only=True):
    """A step that every rank of a generation has stored. `generation` is that one, under which the parts are stored."""

    generation: int
    step: CheckpointStep
    parts: tuple[CheckpointPart, ...]
    """One of each rank, in their order."""


class ClusterEvent(Event, frozen=True, kw_only=True):
    """An event of `log.cluster.<account>.<job>`."""

    account: AccountId
    job: JobId
    generation: int
    at_ms: int

    def subject(self) -> str:
        return log_cluster(self.account, self.job)


class ClusterForming(ClusterEvent, frozen=True, kw_only=True):
    """A new generation: the members it has, the leases that it replaces, the ranks that it still wants.

    `replaces` names the leases lost before it formed; one lost while it forms joins it by `MembersWanted` alone.
    Either way each lost lease is in one `Wanted`, and so belongs to one generation. Members prepare until
    `prepare_by_ms`; one that is kept ends the generation before, first. Members that the cluster grew by are prepared
    already, and may have moved to a lower rank. A lease of the job that is not among `members` has left it.

    `shrunk` names lost leases that nothing replaces, since the job goes on without them. Those that are left close up:
    their ranks are in the order that they were in, without a gap.
    """

    members: tuple[Member, ...]
    replaces: tuple[LeaseId, ...] = ()
    shrunk: tuple[LeaseId, ...] = ()
    prepare_by_ms: int


class MembersWanted(ClusterEvent, frozen=True, kw_only=True):
    """Ranks for which the market shall lease nodes, none of them in `excluded`.

    They are vacant ranks of an open generation; or, while a generation runs, ranks above its own, by which the cluster
    is to grow: these replace nothing, and the generation runs on meanwhile.
    """

    wanted: tuple[Wanted, ...]
    excluded: tuple[NodeId, ...]
    within: str
    """The domain to look in first, as in `Gang.domain`."""


class MemberJoined(ClusterEvent, frozen=True, kw_only=True):
    """A granted lease takes its rank in the open generation, or prepares for the one that follows the running one."""

    member: Member
    attempt: int
    prepare_by_ms: int


class MemberPrepared(ClusterEvent, frozen=True, kw_only=True):
    """The member can start: what it needs is there, its port is reserved.

    `beat` was stored before; a `NodeLost` that stands later in `LOG` and knows only of older beats is void.
    """

    lease: LeaseId
    address: str
    port: int
    beat: BeatId | None = None


class ClusterStarting(ClusterEvent, frozen=True, kw_only=True):
    """All are prepared; from here on the membership of this generation is closed."""

    manifest: Manifest
    start_by_ms: int


class MemberStarted(ClusterEvent, frozen=True, kw_only=True):
    """Every process of the member has been executed."""

    lease: LeaseId


class LeaseResumed(ClusterEvent, frozen=True, kw_only=True):
    """A lease that its node has frozen goes on: it is still the job's, and nobody has taken its place.

    The node counts the freezes of a lease; `beat` was stored since and said so. It is void behind a `NodeLost`; and a
    `NodeLost` that stands behind it and knows only of older beats is void too.
    """

    lease: LeaseId
    node: NodeId
    freeze: int
    beat: BeatId


class ClusterReady(ClusterEvent, frozen=True, kw_only=True):
    """Every member has started. The buyer pays from `at_ms` on."""


class MemberEnded(ClusterEvent, frozen=True, kw_only=True):
    """The member's processes of this generation are gone, helpers included; `exits` in the order in which they came."""

    lease: LeaseId
    exits: tuple[Exit, ...]


class MemberLost(ClusterEvent, frozen=True, kw_only=True):
    """The member will not come back to this job; its lease ends here."""

    lease: LeaseId
    node: NodeId
    cause: LossCause
    detail: str = ""
    """What the node said of it."""


class MemberDropped(ClusterEvent, frozen=True, kw_only=True):
    """A lease by which the cluster was to grow will not join `generation`, which is the next; it ends here.

    No generation ever had it, so it is no loss that anything has to replace: its rank is wanted again as if for the
    first time, unless the growth is given up.
    """

    lease: LeaseId
    node: NodeId
    cause: DropCause
    detail: str = ""
    """What the node said of it."""


class GrowthGivenUp(ClusterEvent, frozen=True, kw_only=True):
    """The cluster, which runs on, will not grow by these ranks; the leases that were to take them end here.

    Having `failed`, it stays as large as it is until the buyer wishes for another size.
    """

    ranks: tuple[int, ...]
    attempts: tuple[int, ...]
    """Those that the market has not answered. What it grants for them still is given up as soon as it is seen."""
    leases: tuple[LeaseId, ...]
    cause: GiveUpCause
    detail: str = ""


class GenerationEnded(ClusterEvent, frozen=True, kw_only=True):
    """The generation stops at once; nothing after `at_ms` is billed for it.

    Either trouble ends it, its first loss or failing exit; or it is ended on purpose: to grow, to shrink, or because
    nodes of it are drained. Ended on purpose, its members have time to store a last checkpoint.
    """

    cause: EndCause = "trouble"
    lease: LeaseId | None = None
    """The member whose trouble came first; None if it is ended on purpose."""
    leaves: tuple[LeaseId, ...] = ()
    """The highest ranks, whose leases end here because the cluster shrinks."""
    drains: tuple[LeaseId, ...] = ()
    """Members whose nodes are drained. Each leaves when the next generation forms, if another takes its rank there;
    or else it is lost, by its own `MemberLost`."""


class RetryPlanned(ClusterEvent, frozen=True, kw_only=True):
    """The workload has failed, and begins again with the same members at `begins_ms`. Until then nothing is billed."""

    lease: LeaseId
    """The member that failed first."""
    cause: RetryCause
    retry: int
    """Which one it is, from 1."""
    begins_ms: int
    exit_code: int | None
    detail: str


class ClusterReleased(ClusterEvent, frozen=True, kw_only=True):
    """Final. The bill stops at `at_ms`, or at the accepted release before it. `exit_code` is the culprit's."""

    reason: ReleaseReason
    exit_code: int | None = None
    first_cause: str = ""


class LeaseCleared(ClusterEvent, frozen=True, kw_only=True):
    """The node has nothing of the lease left: its GPUs may be sold again."""

    lease: LeaseId
    node: NodeId


class CheckpointStored(ClusterEvent, frozen=True, kw_only=True):
    """A member has stored its part of a step. It counts for nothing until the step is committed."""

    lease: LeaseId
    step: CheckpointStep
    part: CheckpointPart


class CheckpointCommitted(ClusterEvent, frozen=True, kw_only=True):
    """Every rank of the generation has stored its part: the next generation begins from here. Steps only rise."""

    checkpoint: Checkpoint
