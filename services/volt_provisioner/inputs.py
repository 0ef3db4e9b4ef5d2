"""What others than the provisioner do to a cluster: the market grants, a node is lost, the job is over.

Each of these is written without knowing the cluster's state, so each is answered in every state.
"""

from dataclasses import replace

from volt.contracts.clusters import Member
from volt.contracts.ids import LeaseId
from volt.contracts.market import Gang
from volt_provisioner.crew import Offered, Sought
from volt_provisioner.states import (
    Absent,
    Cleared,
    Cluster,
    Ending,
    Forming,
    Granted,
    Life,
    Released,
    Running,
    Starting,
    Stopping,
    Verdict,
    members_of,
)


def granted(cluster: Cluster, gang: Gang) -> Cluster:
    """The cluster with a gang: its first, or a member for a rank that it seeks. Any other gang is void."""
    match cluster:
        case Absent(job=job):
            return Granted(Life(job, gang.domain, gang.attempt), _members(gang))
        case Forming() if gang.generation == cluster.generation:
            offered = {
                member.rank: Offered(member, gang.attempt)
                for member in _members(gang)
                if cluster.seats.get(member.rank) == Sought(gang.attempt)
            }
            return replace(cluster, seats={**cluster.seats, **offered})
        case Ending(was=Forming() as forming, is_gang_void=False):
            after = granted(forming, gang)
            return replace(cluster, was=after) if isinstance(after, Forming) else cluster
        case _:
            return cluster


def doomed(cluster: Cluster, lease: LeaseId) -> Cluster:
    """The cluster once the node of this lease is known to be lost; of no account if it does not rely on the lease."""
    match cluster:
        case Granted() | Forming() | Starting() | Running() | Stopping():
            if lease not in members_of(cluster) or lease in cluster.life.doomed:
                return cluster
            return replace(cluster, life=replace(cluster.life, doomed=(*cluster.life.doomed, lease)))
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
