"""What the provisioner knows: every cluster, which node holds which lease, and which nodes are lost.

    Absent ──gang──▶ Granted ──ClusterForming──▶ Forming ──ClusterStarting──▶ Starting ──ClusterReady──▶ Running
                                                    ▲                             │                         │
                                                    │                             └─────GenerationEnded─────┤
                                                    └────────ClusterForming, generation + 1──────── Stopping ◀┘

    any of these but Absent ──the end is decided──▶ Ending ──ClusterReleased──▶ Released ──every LeaseCleared──▶ Cleared
    any of these but Absent ──ClusterReleased, at a deadline──▶ Released
    Absent ──the job is over──▶ Cleared

Waiting for a replacement is Forming with a vacant seat. A loss while Forming joins that generation: each lost lease is
named by one `Wanted`, in one generation, or its cluster is released. Starting and Running go to Stopping by their
first loss or failing exit, or Running on purpose. With a loss Stopping forms again at once. Otherwise only when all
have ended: on purpose, and so have stored their last checkpoint; or if their workload was gone without an exit that
anybody saw.

What a loss comes to is the job's to say, once its cluster has been ready: another node takes the rank; or the others go
on without it, at ranks without a gap, in a generation of their own though the one that loses it be still open; or the
cluster ends. Until it is ready for the first time it is completed, whatever the job says.

The log's order decides every race. So what others write (`inputs`) takes effect where it stands: the end is decided
there, a loss is remembered there until it is recorded, and a gang behind the end of its job is void.

A cluster of another size than its buyer wishes for is changed while it is Running, never before: growing members
prepare for the next generation beside it, and when all are prepared it is ended on purpose and forms again with them
(`growth`); to shrink it is ended on purpose at once, and its highest ranks leave. A member whose node is drained is
moved in the same way: another prepares beside it and takes its rank. Whatever ends it first, those who are
prepared join the next generation, and who is not leaves; what is still to be grown by is wanted anew once it runs.

A checkpoint is committed while its generation is the last that has formed, and the next generation begins from it. What
a member of an older one reports still is refused: the next may have begun from an earlier step.

A lease one of whose GPUs is quarantined is lost like one whose node is, but its node lives: the next generation starts
only when it has ended the one before, or had its time.

Every kind of workload is a gang for now: any loss or failing exit, and any change of size, ends the generation for all
of its members, and all of them start again in the next.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from volt.contracts.bids import BidEvent, NodeDrainAccepted, NodeResumeAccepted
from volt.contracts.clusters import BeatId, ClusterEvent, LeaseResumed, MemberPrepared
from volt.contracts.ids import AccountId, GpuUuid, JobId, LeaseId, NodeId
from volt.contracts.jobs import JobAdmitted, JobEvent, JobReleaseAccepted, JobScaleAccepted
from volt.contracts.ledger import FundsExhausted, JobUnfunded, LedgerEvent
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Asked, Command, Event
from volt.contracts.nodes import (
    Desired,
    GpuQuarantined,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    QuarantineEnded,
    Report,
    Thaw,
)
from volt.contracts.timing import Timing
from volt_provisioner.desired import Order, desired_lease, orders
from volt_provisioner.inputs import doomed, drained, ended, granted, scaled
from volt_provisioner.lifecycle import advance
from volt_provisioner.reports import answer
from volt_provisioner.states import Absent, Cluster, Doom, Job, Verdict
from volt_provisioner.steps import next_steps

NodeKey = tuple[AccountId, NodeId]
"""By account too, since a stranger can send beats in the name of any node, under their own account."""


@dataclass(frozen=True)
class Node:
    """A node as its leases make it: those not cleared, in the order of their grants."""

    lost: bool = False
    heard: BeatId | None = None
    """The last of its beats that a cluster's event relies on."""
    faults: Mapping[GpuUuid, str] = field(default_factory=dict)
    """Its GPUs that are quarantined, and why."""
    drain_by_ms: int | None = None
    """By when it is to be empty, if it is drained."""
    leases: tuple[LeaseId, ...] = ()
    changed_seq: int = 0
    """The `LOG` sequence of the last event that changed what the node should be doing."""


@dataclass(frozen=True)
class Watch:
    """Since when this run of the service has been listening without a pause, and when it last looked."""

    began_ms: int
    looked_ms: int


@dataclass
class State:
    """Everything folded so far. Only `evolve` changes what follows from the log."""

    timing: Timing
    clusters: dict[JobId, Cluster] = field(default_factory=dict)
    leases: dict[LeaseId, JobId] = field(default_factory=dict)
    nodes: dict[NodeKey, Node] = field(default_factory=dict)
    agenda: list[tuple[int, JobId]] = field(default_factory=list)
    """Clusters that call for a step, by when it is due."""
    due_ms: dict[JobId, int] = field(default_factory=dict)
    """Where each of them is in the agenda."""
    untold: dict[NodeKey, None] = field(default_factory=dict)
    """Nodes whose desired state changed since `publications` was last asked, in that order; at the start, all."""
    watch: Watch | None = None
    """It follows the clock, not the log."""


def evolve(state: State, entry: Entry) -> None:
    """Takes in one event."""
    match entry.event:
        case JobAdmitted() as event:
            _put(state, entry.seq, event.job, Absent(Job(event.account, event.job, event.spec)))
        case MarketCleared(gangs=gangs, expired=expired):
            for gang in gangs:
                _grant(state, entry.seq, gang)
            for one in expired:
                _end(state, entry.seq, one.job, Verdict("released"))
        case NodeEvent() | BidEvent() as event:
            _hear_of_node(state, entry.seq, event)
        case JobReleaseAccepted(job=job):
            _end(state, entry.seq, job, Verdict("released"))
        case JobScaleAccepted(job=job, nodes=nodes) if job in state.clusters:
            _put(state, entry.seq, job, scaled(state.clusters[job], nodes))
        case FundsExhausted(job=job) | JobUnfunded(job=job):
            _end(state, entry.seq, job, Verdict("exhausted"))
        case ClusterEvent() as event:
            _hear(state, event)
            _put(state, entry.seq, event.job, advance(state.clusters[event.job], event, state.timing))
        case JobEvent() | LedgerEvent():
            pass  # A refusal, or money that ends nothing.
        case other:
            raise AssertionError(f"the provisioner does not read {type(other).__name__}")


def decide(state: State, command: Command, asked: Asked) -> tuple[Event, ...]:
    """The record of a report; empty if it changes nothing."""
    assert isinstance(command, Report), f"the provisioner does not take {type(command).__name__}"
    job = state.leases.get(command.lease)
    event = answer(state.clusters[job], command, asked.at_ms) if job is not None else None
    return () if event is None else (event,)


def desired_of(state: State, key: NodeKey) -> Desired:
    """All that a node should be doing."""
    account, name = key
    node = state.nodes[key]
    leases = (
        desired_lease(state.clusters[state.leases[lease]], lease, state.timing.stop_grace_ms) for lease in node.leases
    )
    return Desired(
        account=account,
        node=name,
        log_seq=node.changed_seq,
        leases=tuple(lease for lease in leases if lease is not None),
    )


def _grant(state: State, seq: int, gang: Gang) -> None:
    """A grant on a node that is lost at the time, or of a quarantined GPU, is seen, and replaced at once; on a node
    that is drained it is moved."""
    if gang.job not in state.clusters:
        return
    _put(state, seq, gang.job, granted(state.clusters[gang.job], gang))
    for grant in gang.grants:
        node = state.nodes.get((grant.provider, grant.node), Node())
        doom = _doom(node, grant.gpus)
        if doom is not None:
            _put(state, seq, gang.job, doomed(state.clusters[gang.job], grant.lease, doom))
        if node.drain_by_ms is not None:
            _put(state, seq, gang.job, drained(state.clusters[gang.job], grant.lease, node.drain_by_ms))


def _hear_of_node(state: State, seq: int, event: NodeEvent | BidEvent) -> None:
    key = (event.account, event.node)
    match event:
        case NodeAlive():
            state.nodes[key] = replace(state.nodes.get(key, Node()), lost=False)
        case NodeLost():
            _lose(state, seq, event)
        case GpuQuarantined() | NodeQuarantined():
            _quarantine(state, seq, event)
        case QuarantineEnded(gpus=gpus):
            node = state.nodes.get(key, Node())
            left = {gpu: why for gpu, why in node.faults.items() if gpu not in gpus}
            state.nodes[key] = replace(node, faults=left)
        case NodeDrainAccepted(deadline_ms=by_ms):
            _drain(state, seq, key, by_ms)
        case NodeResumeAccepted():
            _drain(state, seq, key, None)
        case _:
            pass  # A doubt, an offer, or what ends no lease.


def _hear(state: State, event: ClusterEvent) -> None:
    """A node that was prepared or resumed since was alive, whoever says later that it had been silent before."""
    if isinstance(event, MemberPrepared | LeaseResumed) and event.beat is not None:
        member = orders(state.clusters[event.job])[event.lease].member
        key = (member.provider, member.node)
        state.nodes[key] = replace(state.nodes[key], heard=event.beat)


def _is_void(node: Node, event: NodeLost) -> bool:
    """Whether the node was heard of since its last beat that the loss knows of."""
    if node.heard is None or event.sequence is None or node.heard.incarnation != event.incarnation:
        return False
    return node.heard.sequence > event.sequence


def _lose(state: State, seq: int, event: NodeLost) -> None:
    key = (event.account, event.node)
    node = state.nodes.get(key, Node())
    if _is_void(node, event):
        return
    state.nodes[key] = replace(node, lost=True)
    for lease in node.leases:
        job = state.leases[lease]
        _put(state, seq, job, doomed(state.clusters[job], lease, Doom("node_lost")))


def _quarantine(state: State, seq: int, event: GpuQuarantined | NodeQuarantined) -> None:
    """Of the node's leases only those that hold one of these GPUs end."""
    key = (event.account, event.node)
    node = state.nodes.get(key, Node())
    node = state.nodes[key] = replace(node, faults={**node.faults, **dict.fromkeys(event.gpus, event.fault.words())})
    for lease in node.leases:
        job = state.leases[lease]
        order = orders(state.clusters[job])[lease]
        doom = _doom(node, order.member.gpus)
        if doom is not None and doom.cause == "gpu_fault":
            _put(state, seq, job, doomed(state.clusters[job], lease, doom))


def _doom(node: Node, gpus: Iterable[GpuUuid]) -> Doom | None:
    """Why a lease of these GPUs cannot go on, if it cannot."""
    if node.lost:
        return Doom("node_lost")
    faulty = next((gpu for gpu in gpus if gpu in node.faults), None)
    return None if faulty is None else Doom("gpu_fault", f"{faulty}: {node.faults[faulty]}")


def _drain(state: State, seq: int, key: NodeKey, by_ms: int | None) -> None:
    node = state.nodes.get(key, Node())
    state.nodes[key] = replace(node, drain_by_ms=by_ms)
    for lease in node.leases:
        job = state.leases[lease]
        _put(state, seq, job, drained(state.clusters[job], lease, by_ms))


def _end(state: State, seq: int, job: JobId, verdict: Verdict) -> None:
    if job in state.clusters:
        _put(state, seq, job, ended(state.clusters[job], verdict))


def _put(state: State, seq: int, job: JobId, cluster: Cluster) -> None:
    """Makes it the job's cluster, and brings up to date what follows: leases, nodes, agenda."""
    before = orders(state.clusters[job]) if job in state.clusters else {}
    after = orders(cluster)
    state.clusters[job] = cluster
    for lease in {**before, **after}:
        if before.get(lease) != after.get(lease):
            _follow(state, seq, job, before.get(lease), after.get(lease))
    _schedule(state, job, cluster)


def _follow(state: State, seq: int, job: JobId, before: Order | None, after: Order | None) -> None:
    """One lease's way through its node: held from its grant, told as its cluster says, gone once it is cleared."""
    order = after or before
    assert order is not None
    lease, key = order.member.lease, (order.member.provider, order.member.node)
    node = state.nodes.get(key, Node())
    if before is None:
        state.leases[lease] = job
        node = replace(node, leases=(*node.leases, lease))
    if after is None:
        del state.leases[lease]
        node = replace(node, leases=tuple(other for other in node.leases if other != lease))
    if _told(before) != _told(after):
        node = replace(node, changed_seq=seq)
        state.untold[key] = None
    state.nodes[key] = node


def _told(order: Order | None) -> tuple[int, str, int, int, Thaw | None] | None:
    if order is None or order.phase is None:
        return None
    return order.generation, order.phase, order.member.rank, order.step, order.thaw


def _schedule(state: State, job: JobId, cluster: Cluster) -> None:
    steps = next_steps(cluster, state.timing)
    known_ms, due_ms = state.due_ms.pop(job, None), steps[0].due_ms if steps else None
    if known_ms != due_ms and known_ms is not None:
        del state.agenda[bisect_left(state.agenda, (known_ms, job))]
    if due_ms is None:
        return
    state.due_ms[job] = due_ms
    if known_ms != due_ms:
        insort(state.agenda, (due_ms, job))
