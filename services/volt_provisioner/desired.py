"""What a node should be doing: for each lease that it has not cleared, what its cluster's state says of it.

    state                      member                     phase     generation
    Granted                    (not told yet)
    Forming                    offered (not told yet)
                               any other                  prepare   this one, though it may still run the one before
    Starting, Running          any                        start     this one
    Stopping                   any                        halt      this one
    Running, Stopping          by whom it grows: offered  (not told yet)
                               by whom it grows: other    prepare   the next one
    Released                   any                        stop      the last
    any                        lost, dropped, left        stop      the one that it was told of last
    Ending                     as in the state before it

`halt` while the cause is undecided: the processes end and the lease lives on, as `prepare` of the next generation or
as `stop`. A lease that is cleared is no longer told at all.
"""

from typing import NamedTuple

from msgspec.structs import replace

from volt.contracts.clusters import Checkpoint, Manifest, ManifestNode, Member
from volt.contracts.ids import LeaseId
from volt.contracts.jobs import Workload
from volt.contracts.nodes import DesiredLease, Phase, Thaw
from volt.contracts.timing import FINAL_STORE_MS_MAX
from volt_provisioner.crew import Offered, Prepared
from volt_provisioner.states import (
    Absent,
    Cleared,
    Cluster,
    Ending,
    Forming,
    Granted,
    Open,
    Released,
    Running,
    Starting,
    Stopping,
    generation_of,
    job_of,
    members_of,
)


class Order(NamedTuple):
    """One lease of a cluster and what its node is told of it; no phase: nothing yet."""

    member: Member
    generation: int
    phase: Phase | None
    step: int = -1
    """The last committed step of the cluster, for who is in a generation of it."""
    thaw: Thaw | None = None


def orders(cluster: Cluster) -> dict[LeaseId, Order]:
    """Every lease of the cluster that its node has not cleared."""
    match cluster:
        case Absent() | Cleared():
            return {}
        case Ending(was=was):
            return orders(was)
        case Released(left=left):
            return {lease: Order(one.member, one.generation, "stop") for lease, one in left.items()}
        case Granted() | Forming() | Starting() | Running() | Stopping():
            lost = {lease: Order(one.member, one.generation, "stop") for lease, one in cluster.life.left.items()}
            return lost | {
                lease: Order(
                    member,
                    generation_of(cluster, lease),
                    _phase(cluster, member),
                    cluster.life.step,
                    _thaw(cluster, lease),
                )
                for lease, member in members_of(cluster).items()
            }


def desired_lease(cluster: Cluster, lease: LeaseId, grace_ms: int) -> DesiredLease | None:
    """The lease as its node should have it, or None if it is not told of it. What is to end gets nothing to run."""
    if isinstance(cluster, Absent | Cleared):
        return None
    job, told = job_of(cluster), cluster.was if isinstance(cluster, Ending) else cluster
    member, generation, phase, _, thaw = orders(cluster)[lease]
    if phase is None:
        return None
    ends = phase in ("halt", "stop")
    workload = job.spec.workload
    return DesiredLease(
        lease=lease,
        job=job.id,
        account=job.account,
        generation=generation,
        phase=phase,
        node_rank=member.rank,
        gpus=member.gpus,
        processes=job.spec.processes_on(len(member.gpus)),
        workload=Workload(kind=workload.kind, command=()) if ends else workload,
        manifest=told.manifest if phase == "start" and isinstance(told, Starting | Running) else None,
        resume=_resume(told) if isinstance(told, Forming | Starting) else None,
        kept=_kept(told, member) if phase == "start" and isinstance(told, Starting | Running) else (),
        thaw=thaw,
        grace_ms=grace_ms,
        store_ms=FINAL_STORE_MS_MAX if phase == "halt" and _is_on_purpose(told) else 0,
    )


def _is_on_purpose(cluster: Open | Released) -> bool:
    """Whether the generation ends though nothing is wrong: what it has done last is worth waiting for."""
    return isinstance(cluster, Stopping) and cluster.cause != "trouble"


def manifest_of(cluster: Forming) -> Manifest:
    """What each member will know of the others. All of them are prepared; rank 0 is the master."""
    prepared = [seat for seat in cluster.seats.values() if isinstance(seat, Prepared)]
    processes = cluster.life.job.spec.processes_on(len(prepared[0].member.gpus))
    return Manifest(
        job=cluster.life.job.id,
        generation=cluster.generation,
        master_address=prepared[0].address,
        master_port=prepared[0].port,
        world_size=processes * len(prepared),
        nodes=tuple(
            ManifestNode(
                node=seat.member.node,
                node_rank=seat.member.rank,
                address=seat.address,
                processes=processes,
                first_rank=place * processes,
            )
            for place, seat in enumerate(prepared)
        ),
    )


def _resume(cluster: Forming | Starting) -> Checkpoint | None:
    """Where all members of this generation begin: the same place, though some commit before others have begun."""
    before = [one for one in cluster.life.committed if one.generation < cluster.generation]
    return before[-1] if before else None


def _kept(cluster: Starting | Running, member: Member) -> tuple[Checkpoint, ...]:
    """What the member has to look after: its own rank's parts, and rank 0 those of ranks that are no more as well."""
    ranks = len(cluster.manifest.nodes)

    def is_its_own(rank: int) -> bool:
        return rank == member.rank or (member.rank == 0 and rank >= ranks)

    return tuple(
        replace(checkpoint, parts=tuple(part for part in checkpoint.parts if is_its_own(part.rank)))
        for checkpoint in cluster.life.committed
    )


def _thaw(cluster: Open, lease: LeaseId) -> Thaw | None:
    return cluster.crew.thaws.get(lease) if isinstance(cluster, Starting | Running) else None


def _phase(cluster: Open, member: Member) -> Phase | None:
    match cluster:
        case Granted():
            return None
        case Forming(seats=seats):
            return None if isinstance(seats[member.rank], Offered) else "prepare"
        case Starting():
            return "start"
        case Running(growth=growth) | Stopping(growth=growth):
            if member.lease in growth.members:
                return None if isinstance(growth.seats[member.rank], Offered) else "prepare"
            return "start" if isinstance(cluster, Running) else "halt"
