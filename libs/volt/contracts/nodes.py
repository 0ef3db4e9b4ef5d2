"""What a node and the control plane tell each other, and what the health-monitor makes of it."""

from typing import Annotated, Literal

import msgspec

from volt.contracts.clusters import BeatId, Checkpoint, CheckpointBytes, CheckpointStep, Exit, Manifest
from volt.contracts.faults import Fault
from volt.contracts.ids import AccountId, Address, GpuUuid, Incarnation, JobId, LeaseId, NodeId, Port, Sha256
from volt.contracts.jobs import PROCESSES_PER_NODE_MAX, Workload
from volt.contracts.messages import Command, Event, Signal, Value
from volt.contracts.subjects import LOG_COVER, log_node
from volt.contracts.telemetry import GpuReading, Xid

Phase = Literal["prepare", "start", "halt", "stop"]
"""`halt` ends this generation's processes and keeps the lease; `stop` ends them and clears it."""
LeaseState = Literal["prepared", "running", "frozen", "ended"]
FailureStage = Literal["prepare", "start"]
FAILURE_CHARS_MAX = 1_000
LostCause = Literal["silent", "left", "never_beat"]
NO_INCARNATION = "none"
"""Of a node that is lost though it has never beaten."""


class Thaw(Value, frozen=True, kw_only=True):
    """Leave to go on from one freeze, counted by the incarnation that froze."""

    incarnation: Incarnation
    freeze: int


class DesiredLease(Value, frozen=True, kw_only=True):
    """One lease as the node should have it. `stop` stays until the lease is cleared."""

    lease: LeaseId
    job: JobId
    account: AccountId
    """The buyer's, under which output is published."""
    generation: int
    phase: Phase
    node_rank: int
    gpus: tuple[GpuUuid, ...]
    processes: int
    workload: Workload
    manifest: Manifest | None = None
    resume: Checkpoint | None = None
    """Where the generation begins; told until it runs. What has no such place begins with an empty folder."""
    kept: tuple[Checkpoint, ...] = ()
    """The parts that this node has to look after, oldest first: whatever else of its rank is stored may be removed."""
    thaw: Thaw | None = None
    """The last freeze of this generation from which it may go on."""
    grace_ms: int
    store_ms: int = 0
    """For how long its end may wait, once the processes are gone, until the last checkpoint that they completed is
    stored."""


class Desired(Signal, frozen=True, kw_only=True):
    """All that a node should be doing. `log_seq` is the `LOG` sequence it reflects; lower ones are ignored."""

    account: AccountId
    node: NodeId
    log_seq: int
    leases: tuple[DesiredLease, ...]


class Report(Command, frozen=True, kw_only=True):
    """What became of one lease's generation, told by its node's agent. Repeating one changes nothing."""

    account: AccountId
    node: NodeId
    lease: LeaseId
    generation: int


class ReportPrepared(Report, frozen=True, kw_only=True):
    """Everything is there; the address is on the fabric and the port is reserved. `beat` was acknowledged before."""

    address: Address
    port: Port
    beat: BeatId | None = None


class ReportStarted(Report, frozen=True, kw_only=True):
    """Every local process has been executed."""


class ReportFrozen(Report, frozen=True, kw_only=True):
    """The processes stand still since this freeze of the lease, which `beat` told of, and wait to be resumed."""

    freeze: Annotated[int, msgspec.Meta(ge=1)]
    beat: BeatId


class ReportFailed(Report, frozen=True, kw_only=True):
    """The node could not do it, and what it had is undone."""

    stage: FailureStage
    message: Annotated[str, msgspec.Meta(max_length=FAILURE_CHARS_MAX)]


class ReportEnded(Report, frozen=True, kw_only=True):
    """Every local process is gone; output was published to its last line. No exits: nobody saw them end.

    They are in the order in which they came.
    """

    exits: Annotated[tuple[Exit, ...], msgspec.Meta(max_length=PROCESSES_PER_NODE_MAX)]


class ReportCheckpoint(Report, frozen=True, kw_only=True):
    """This rank's part of a step is stored, whole: `manifest` is the digest of the object that names its files."""

    step: CheckpointStep
    manifest: Sha256
    size_bytes: CheckpointBytes


class ReportCleared(Report, frozen=True, kw_only=True):
    """Nothing of the lease is left on the node."""


class LeaseBeat(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A lease as the node has it now. `freeze` counts, within an incarnation, the freezes of one that is frozen."""

    lease: LeaseId
    generation: int
    state: LeaseState
    freeze: int = 0
    step: CheckpointStep | None = None
    """The last step that its workload has finished writing on this node."""
    stored: CheckpointStep | None = None
    """The last step that this node has stored its part of."""


class Heartbeat(Signal, frozen=True, kw_only=True, omit_defaults=True):
    """A sign of life. `sequence` counts within the incarnation, from 1. `leaving`: the last one, on purpose.

    `gpus` are there when they were read since the last acknowledged beat; `xids` are those that no such beat had.
    """

    account: AccountId
    node: NodeId
    incarnation: Incarnation
    sequence: int
    leases: tuple[LeaseBeat, ...] = ()
    leaving: bool = False
    fence_after_ms: int = 0
    """How long the node runs on from the sending of this beat, once it is acknowledged; 0: as its profile says."""
    gpus: tuple[GpuReading, ...] = ()
    xids: tuple[Xid, ...] = ()


class Probe(Signal, frozen=True, kw_only=True):
    """The monitor's own beat: what comes before it on the stream has been read when it is read."""

    monitor: str
    sequence: int


class NodeEvent(Event, frozen=True, kw_only=True):
    """An event of `log.node.<account>.<node>`, written by the health-monitor."""

    account: AccountId
    node: NodeId
    incarnation: Incarnation
    at_ms: int

    def subject(self) -> str:
        return log_node(self.account, self.node)


class NodeAlive(NodeEvent, frozen=True, kw_only=True):
    """Beats of this incarnation arrive (again). The reliability is that of the node's history up to now."""

    reliability_permille: int = 1_000


class NodeUnknown(NodeEvent, frozen=True, kw_only=True):
    """Beats are missing. It says nothing about the node yet, and resets nothing."""


class NodeLost(NodeEvent, frozen=True, kw_only=True):
    """No beat for longer than a fenced node can have run on: its leases are gone. Of `never_beat` there are none."""

    cause: LostCause
    sequence: int | None = None
    """Of the last beat of this incarnation that was known of; None if none was."""


class NodeRated(NodeEvent, frozen=True, kw_only=True):
    """Time has changed how far the node can be relied on, by enough to tell."""

    reliability_permille: int


class FaultEvent(NodeEvent, frozen=True, kw_only=True):
    """Something is wrong with GPUs of the node, and how far it can be relied on by now."""

    gpus: tuple[GpuUuid, ...]
    fault: Fault
    reliability_permille: int


class GpuFaulted(FaultEvent, frozen=True, kw_only=True):
    """A fault of a GPU that does not take it off the market: not yet, if it comes again."""


class GpuQuarantined(FaultEvent, frozen=True, kw_only=True):
    """These GPUs are not sold until their quarantine ends, and the leases that hold them end as lost."""


class NodeQuarantined(FaultEvent, frozen=True, kw_only=True):
    """As `GpuQuarantined`; and no other GPU of the node is sold while it offers one of these."""


class QuarantineEnded(NodeEvent, frozen=True, kw_only=True):
    """A later incarnation of the node has shown these GPUs to be clean: they may be sold again."""

    gpus: tuple[GpuUuid, ...]


class CoverSpan(Value, frozen=True, kw_only=True):
    """Stream time [`from_ms`, `to_ms`) that a lease's beats account for, in one generation."""

    lease: LeaseId
    generation: int
    from_ms: int
    to_ms: int


class BeatsCovered(Event, frozen=True, kw_only=True):
    """Cover found since the last one. Below `complete_to_ms` nothing will be added for any lease."""

    spans: tuple[CoverSpan, ...]
    complete_to_ms: int
    at_ms: int

    def subject(self) -> str:
        return LOG_COVER
