"""A log, the provisioner's state folded from it, and the hands of all who write to it."""

from collections.abc import Iterator
from typing import TypedDict, TypeVar

from tests.support.effects import sound
from volt.contracts.bids import NodeDrainAccepted, NodeResumeAccepted
from volt.contracts.clusters import BeatId, ClusterEvent, ClusterForming, Exit, Member, MemberJoined, MembersWanted
from volt.contracts.faults import Fault
from volt.contracts.ids import lease_id
from volt.contracts.jobs import (
    JobAdmitted,
    JobReleaseAccepted,
    JobScaleAccepted,
    JobSpec,
    Recovery,
    Shape,
    Workload,
    WorkloadKind,
)
from volt.contracts.ledger import FundsExhausted
from volt.contracts.log import Entry, decode_event
from volt.contracts.market import Gang, Grant, MarketCleared
from volt.contracts.messages import Asked, Event, encode
from volt.contracts.nodes import (
    Desired,
    FailureStage,
    GpuQuarantined,
    NodeAlive,
    NodeLost,
    QuarantineEnded,
    Report,
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportFrozen,
    ReportPrepared,
    ReportStarted,
)
from volt.contracts.subjects import command_report
from volt.contracts.timing import EMBEDDED
from volt_provisioner.domain import State, decide, desired_of, evolve
from volt_provisioner.effects import effects

T0_MS = 1_700_000_000_000
BUYER = "lab"
JOB = "j1"
TIMING = EMBEDDED
PORT = 29_500
FOLLOWED_MAX = 1_000
TICK_MS = 1_000

E = TypeVar("E", bound=Event)


class Whose(TypedDict):
    """What every report says first."""

    account: str
    node: str
    lease: str
    generation: int


def spec(
    nodes: int = 2,
    *,
    kind: WorkloadKind = "ddp",
    gpus_per_node: int = 2,
    max_duration_seconds: int | None = None,
    recovery: Recovery | None = None,
) -> JobSpec:
    return JobSpec(
        models=("rtx-4090",),
        shapes=(Shape(nodes=nodes, gpus_per_node=gpus_per_node),),
        workload=Workload(kind=kind, command=("python", "train.py")),
        interconnect="any",
        recovery=recovery or Recovery(),
        max_duration_seconds=max_duration_seconds,
    )


def admitted(job: str = JOB, wanted: JobSpec | None = None, at_ms: int = T0_MS) -> JobAdmitted:
    return JobAdmitted(
        account=BUYER, job=job, request_id=job, at_ms=at_ms, request_digest=job, spec=wanted if wanted else spec()
    )


def provider_of(node: str) -> str:
    return f"owner-of-{node}"


def grant(number: int, rank: int, node: str, job: str = JOB) -> Grant:
    return Grant(
        lease=lease_id(job, number), rank=rank, node=node, provider=provider_of(node), gpus=(f"{node}-0", f"{node}-1")
    )


def gang(*grants: Grant, generation: int = 1, attempt: int = 0, job: str = JOB) -> Gang:
    return Gang(
        job=job,
        account=BUYER,
        generation=generation,
        attempt=attempt,
        grants=grants,
        price_microusd_per_gpu_hour=1_000_000,
        domain="fabric:eu/A",
    )


class World:
    """One job's world. Nodes are n0, n1, ... by rank, and whatever a replacement names."""

    def __init__(self, wanted: JobSpec | None = None) -> None:
        self.spec = wanted or spec()
        self.state = State(TIMING)
        self.log: list[Entry] = []
        self.now_ms = T0_MS

    # What the provisioner does.

    def follow(self) -> None:
        """Appends what the state calls for, until it calls for nothing."""
        for _ in range(FOLLOWED_MAX):
            due = self.due()
            if not due:
                return
            self.write(due[0])
        raise AssertionError("the state calls for something for ever")

    def due(self) -> list[Event]:
        return sound(effects(self.state, self.now_ms))

    def report(self, report: Report) -> None:
        self.record(report)
        self.follow()

    def record(self, report: Report) -> tuple[Event, ...]:
        """Appends what is decided about a report, and nothing that follows from it."""
        events = self.decided(report)
        for event in events:
            self.write(event)
        return events

    def decided(self, report: Report) -> tuple[Event, ...]:
        return decide(self.state, report, Asked(command_report(report.account, report.node), 1, 1, self.now_ms))

    def write(self, event: Event) -> None:
        """Appends an event, as bytes would bring it back."""
        entry = Entry(len(self.log) + 1, self.now_ms, decode_event(encode(event)))
        self.log.append(entry)
        evolve(self.state, entry)

    # What others do.

    def happen(self, event: Event) -> None:
        self.write(event)
        self.follow()

    def tick(self, ms: int) -> None:
        """Time goes by, under the eyes of the provisioner."""
        for step_ms in (*[TICK_MS] * (ms // TICK_MS), ms % TICK_MS):
            self.now_ms += step_ms
            self.follow()

    def grant(self) -> None:
        """Admits the job and grants its first gang: lease 1 on node n0 for rank 0, and so on."""
        self.write(admitted(wanted=self.spec, at_ms=self.now_ms))
        self.happen(self.first_gang())

    def first_gang(self) -> MarketCleared:
        return self.cleared(gang(*(grant(rank + 1, rank, f"n{rank}") for rank in range(self.spec.shapes[0].nodes))))

    def cleared(self, *gangs: Gang) -> MarketCleared:
        return MarketCleared(through_seq=len(self.log), at_ms=self.now_ms, gangs=gangs)

    def replacement(self, node: str, number: int, rank: int) -> MarketCleared:
        """The market's answer to the last `MembersWanted` of a rank."""
        event, attempt = next(
            (event, wanted.attempt)
            for event in reversed(self.all(MembersWanted))
            for wanted in event.wanted
            if wanted.rank == rank
        )
        return self.cleared(gang(grant(number, rank, node), generation=event.generation, attempt=attempt))

    def replace(self, node: str, number: int, rank: int) -> None:
        self.happen(self.replacement(node, number, rank))

    def lost(self, node: str, sequence: int | None = None) -> NodeLost:
        return NodeLost(
            account=provider_of(node),
            node=node,
            incarnation="i1",
            at_ms=self.now_ms,
            cause="silent",
            sequence=sequence,
        )

    def lose(self, node: str) -> None:
        self.happen(self.lost(node))

    def lose_after(self, node: str, sequence: int) -> None:
        """The monitor's word on a silence after this beat."""
        self.happen(self.lost(node, sequence))

    def quarantined(self, node: str, *gpus: str) -> GpuQuarantined:
        return GpuQuarantined(
            account=provider_of(node),
            node=node,
            incarnation="i1",
            at_ms=self.now_ms,
            gpus=gpus,
            fault=Fault(kind="xid", xid=48, name="ROBUST_CHANNEL_GPU_ECC_DBE", number=1),
            reliability_permille=900,
        )

    def recovered(self, node: str, *gpus: str) -> QuarantineEnded:
        return QuarantineEnded(account=provider_of(node), node=node, incarnation="i2", at_ms=self.now_ms, gpus=gpus)

    def revive(self, node: str) -> None:
        self.happen(NodeAlive(account=provider_of(node), node=node, incarnation="i2", at_ms=self.now_ms))

    def scale_accepted(self, nodes: int) -> JobScaleAccepted:
        return JobScaleAccepted(
            account=BUYER, job=JOB, request_id="s", at_ms=self.now_ms, request_digest="s", nodes=nodes
        )

    def scale(self, nodes: int) -> None:
        self.happen(self.scale_accepted(nodes))

    def drain_accepted(self, node: str, seconds: int = 600) -> NodeDrainAccepted:
        return NodeDrainAccepted(
            account=provider_of(node),
            node=node,
            request_id="d",
            at_ms=self.now_ms,
            request_digest="d",
            reason="new disks",
            deadline_ms=self.now_ms + seconds * 1_000,
        )

    def drain(self, node: str, seconds: int = 600) -> None:
        self.happen(self.drain_accepted(node, seconds))

    def resume_accepted(self, node: str) -> NodeResumeAccepted:
        return NodeResumeAccepted(account=provider_of(node), node=node, request_id="e", at_ms=self.now_ms)

    def resume(self, node: str) -> None:
        self.happen(self.resume_accepted(node))

    def release_accepted(self) -> JobReleaseAccepted:
        return JobReleaseAccepted(account=BUYER, job=JOB, request_id="r", at_ms=self.now_ms)

    def release(self) -> None:
        self.happen(self.release_accepted())

    def funds_exhausted(self) -> FundsExhausted:
        return FundsExhausted(account=BUYER, job=JOB, at_ms=self.now_ms, exhausted_at_ms=self.now_ms)

    # What agents report; a rank's present member unless a lease is named.

    def prepared(self, rank: int, generation: int | None = None) -> ReportPrepared:
        whose = self._whose(rank, generation)
        return ReportPrepared(**whose, address=f"10.0.0.{rank}", port=PORT + 100 * whose["generation"] + rank)

    def started(self, rank: int, generation: int | None = None) -> ReportStarted:
        return ReportStarted(**self._whose(rank, generation))

    def frozen(self, rank: int, freeze: int, sequence: int, generation: int | None = None) -> ReportFrozen:
        return ReportFrozen(**self._whose(rank, generation), freeze=freeze, beat=beat(sequence))

    def failed(self, rank: int, stage: FailureStage, generation: int | None = None) -> ReportFailed:
        return ReportFailed(**self._whose(rank, generation), stage=stage, message="no")

    def ended(self, rank: int, *exits: Exit, generation: int | None = None) -> ReportEnded:
        return ReportEnded(**self._whose(rank, generation), exits=exits)

    def ended_of(self, node: str, number: int, *exits: Exit, generation: int = 1) -> ReportEnded:
        """By a lease that may have left."""
        return ReportEnded(
            account=provider_of(node), node=node, lease=lease_id(JOB, number), generation=generation, exits=exits
        )

    def stored(self, rank: int, step: int, generation: int | None = None) -> ReportCheckpoint:
        whose = self._whose(rank, generation)
        return ReportCheckpoint(
            **whose, step=step, manifest=manifest_digest(rank, step, whose["generation"]), size_bytes=1_000
        )

    def commit(self, step: int) -> None:
        """Every rank of the generation stores the step."""
        for rank in range(self.spec.shapes[0].nodes):
            self.report(self.stored(rank, step))

    def node_cleared(self, node: str, number: int) -> ReportCleared:
        return ReportCleared(
            account=provider_of(node), node=node, lease=lease_id(JOB, number), generation=self.generation
        )

    def run(self) -> None:
        """Brings the cluster from its forming to running."""
        for rank in range(self.spec.shapes[0].nodes):
            self.report(self.prepared(rank))
        for rank in range(self.spec.shapes[0].nodes):
            self.report(self.started(rank))

    def granted_and_running(self) -> "World":
        self.grant()
        self.run()
        return self

    # What the log says.

    def all(self, kind: type[E]) -> list[E]:
        return [entry.event for entry in self.log if isinstance(entry.event, kind)]

    def last(self, kind: type[E]) -> E:
        return self.all(kind)[-1]

    def names(self) -> list[str]:
        """The cluster's events, by name."""
        return [type(event).__name__ for event in self.all(ClusterEvent)]

    def since(self, seq: int) -> list[str]:
        return [type(entry.event).__name__ for entry in self.log[seq:] if isinstance(entry.event, ClusterEvent)]

    @property
    def generation(self) -> int:
        return max((event.generation for event in self.all(ClusterForming)), default=1)

    def member(self, rank: int) -> Member:
        """The last member that took this rank."""
        return [member for member in self._members() if member.rank == rank][-1]

    def desired(self, node: str) -> Desired:
        return desired_of(self.state, (provider_of(node), node))

    def phases(self, node: str) -> list[tuple[str, int]]:
        """What the node is told of each of its leases: phase and generation."""
        return [(lease.phase, lease.generation) for lease in self.desired(node).leases]

    def _whose(self, rank: int, generation: int | None) -> Whose:
        member = self.member(rank)
        return Whose(
            account=member.provider,
            node=member.node,
            lease=member.lease,
            generation=generation or self.generation,
        )

    def _members(self) -> Iterator[Member]:
        for event in self.all(ClusterEvent):
            if isinstance(event, ClusterForming):
                yield from event.members
            elif isinstance(event, MemberJoined):
                yield event.member


def manifest_digest(rank: int, step: int, generation: int) -> str:
    return f"{generation:02x}{rank:02x}{step:060x}"


def beat(sequence: int) -> BeatId:
    """Of the incarnation whose loss `World.lost` tells."""
    return BeatId(incarnation="i1", sequence=sequence)


def code(value: int, local_rank: int = 0) -> Exit:
    return Exit(local_rank=local_rank, code=value)


def killed(signal: int, local_rank: int = 0) -> Exit:
    return Exit(local_rank=local_rank, signal=signal)
