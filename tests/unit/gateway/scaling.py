"""Events of a cluster that is to have another size, beside those of the whole story."""

from tests.unit.gateway.story import BUYER, JOB, REASON, T0_MS
from volt.contracts import clusters, jobs
from volt.contracts.ids import lease_id
from volt.contracts.messages import Event


def wishes() -> list[Event]:
    """A wish that is accepted, and one that is refused."""
    return [
        jobs.JobScaleAccepted(account=BUYER, job=JOB, request_id="s", at_ms=T0_MS, request_digest="s", nodes=3),
        jobs.JobScaleRejected(account=BUYER, job=JOB, request_id="t", at_ms=T0_MS, request_digest="t", reason=REASON),
    ]


def growth_given_up() -> list[Event]:
    """A running cluster that was to grow by a node, which could not prepare."""
    why = "rank 2 on node n4: the node could not prepare"
    return [
        clusters.MemberDropped(
            account=BUYER,
            job=JOB,
            generation=3,
            at_ms=T0_MS + 40,
            lease=lease_id(JOB, 4),
            node="n4",
            cause="prepare_failed",
            detail="no such image",
        ),
        clusters.GrowthGivenUp(
            account=BUYER,
            job=JOB,
            generation=2,
            at_ms=T0_MS + 41,
            ranks=(2, 3),
            attempts=(3,),
            leases=(lease_id(JOB, 5),),
            cause="failed",
            detail=why,
        ),
    ]
