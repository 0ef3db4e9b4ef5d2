"""What others than the provisioner do to a cluster: a grant, a node lost or drained, another wish, the job's end.

Each of these is written without knowing the cluster's state, so each is answered in every state.
"""

from dataclasses import replace
from typing import TypeVar

from volt.contracts.clusters import Member
from volt.contracts.ids import LeaseId
from volt.contracts.market import Gang
from volt_provisioner.crew import Forgone, Offered, Sought
from volt_provisioner.states import (
    Absent,
    Cleared,
    Cluster,
    Doom,
    Ending,
    Forming,
    Granted,
    Life,
    Open,
    Released,
    Running,
    Starting,
    Stopping,
    Verdict,
    members_of,
)

C = TypeVar("C", bound=Open)


def granted(cluster: Cluster, gang: Gang) -> Cluster:
    """The cluster with a gang: its first, or a member for a rank that it seeks. Any other gang is void.

    What the market was asked and nobody wants any more is not void: the market does not know it, and has leased.
    """
    match cluster:
        case Absent(job=job):
            members = _members(gang)
            return Granted(Life(job, gang.domain, gang.attempt, nodes=len(members)), members)
        case Forming() if gang.generation == cluster.generation:
            offered = {
                member.rank: Offered(member, gang.attempt)
                for member in _members(gang)
                if cluster.seats.get(member.rank) == Sought(gang.attempt)
            }
            return replace(cluster, seats={**cluster.seats, **offered})
        case Running() | Stopping() if gang.generation == cluster.generation:
            joining = {
                member.rank: Offered(member, gang.attempt)
                for member in _members(gang)
                if cluster.growth.seats.get(member.rank) in (Sought(gang.attempt), Forgone(gang.attempt))
            }
            return replace(cluster, growth=cluster.growth.with_seats(joining))
        case Ending(was=Forming() | Running() | Stopping() as was, is_gang_void=False):
            after = granted(was, gang)
            return replace(cluster, was=after) if isinstance(after, Forming | Running | Stopping) else cluster
        case _:
            return cluster


def doomed(cluster: Cluster, lease: LeaseId, doom: Doom) -> Cluster:
    """The cluster once the node of this lease is known to be lost, or a GPU of it to have failed; of no account if it
    does not rely on the lease."""
    match cluster:
        case Forming() if lease in cluster.life.left:
            return gone(cluster, lease) if doom.cause == "node_lost" else cluster
        case Stopping() if lease in cluster.lingering:
            return gone(cluster, lease) if doom.cause == "node_lost" else cluster
        case Stopping() if lease in cluster.left_out:
            # It leaves anyway: this is no loss, and all that its end comes to. On a node that lives it ends by itself.
            is_over = doom.cause == "node_lost" and lease not in cluster.crew.ended
            return replace(cluster, crew=cluster.crew.with_ended(lease, (), failed=False)) if is_over else cluster
        case Granted() | Forming() | Starting() | Running() | Stopping():
            known = cluster.life.doomed.get(lease)
            if lease not in members_of(cluster) or (known is not None and doom.cause != "node_lost"):
                return cluster
            # Behind a lost node nothing is left to wait for, whatever befell it before.
            return replace(cluster, life=replace(cluster.life, doomed={**cluster.life.doomed, lease: doom}))
        case Absent() | Ending() | Released() | Cleared():
            return cluster


def gone(cluster: C, lease: LeaseId) -> C:
    """The cluster once nothing can run any more of a lease that leaves it: nobody waits for its end."""
    match cluster:
        case Forming():
            return replace(cluster, unended=cluster.unended - {lease})
        case Stopping():
            return replace(cluster, crew=cluster.crew.with_gone(lease))
        case _:
            return cluster


def drained(cluster: Cluster, lease: LeaseId, by_ms: int | None) -> Cluster:
    """The cluster that has until then to leave the node of this lease; None: it may stay. Recovery comes first."""
    match cluster:
        case Granted() | Forming() | Starting() | Running() | Stopping():
            if lease in cluster.life.left:
                return cluster
            drains = {other: other_ms for other, other_ms in cluster.life.drains.items() if other != lease}
            if by_ms is not None:
                drains[lease] = by_ms
            return replace(cluster, life=replace(cluster.life, drains=drains, is_move_given_up=False))
        case Absent() | Ending() | Released() | Cleared():
            return cluster


def scaled(cluster: Cluster, nodes: int) -> Cluster:
    """The cluster that shall have so many nodes. It is brought there when it runs: recovery comes first."""
    match cluster:
        case Granted() | Forming() | Starting() | Running() | Stopping():
            return replace(cluster, life=replace(cluster.life, nodes=nodes))
        case Absent() | Ending() | Released() | Cleared():
            return cluster


def ended(cluster: Cluster, verdict: Verdict) -> Cluster:
    """The cluster once its job is over, released or out of money; without a gang there is nothing to end."""
    match cluster:
        case Absent():
            return Cleared()
        case Granted() | Forming() | Starting() | Running() | Stopping():
            return Ending(cluster, verdict, is_gang_void=True)
        case Ending():
            return replace(cluster, is_gang_void=True)
        case Released() | Cleared():
            return cluster


def _members(gang: Gang) -> tuple[Member, ...]:
    return tuple(
        Member(
            lease=grant.lease,
            rank=grant.rank,
            node=grant.node,
            provider=grant.provider,
            gpus=grant.gpus,
            price_microusd_per_gpu_hour=gang.price_microusd_per_gpu_hour,
        )
        for grant in gang.grants
    )
