"""A provider's node that is drained and resumed, as bid-intake answers it."""

from tests.unit.gateway.story import BUYER, JOB, PROVIDER, T0_MS
from volt.contracts import bids, clusters
from volt.contracts.ids import lease_id
from volt.contracts.messages import Event


def drain_accepted(node: str, account: str = PROVIDER, request_id: str = "d") -> Event:
    return bids.NodeDrainAccepted(
        account=account,
        node=node,
        request_id=request_id,
        at_ms=T0_MS,
        request_digest="d",
        reason="new disks",
        deadline_ms=T0_MS + 60_000,
    )


def resume_accepted(node: str, account: str = PROVIDER, request_id: str = "e") -> Event:
    return bids.NodeResumeAccepted(account=account, node=node, request_id=request_id, at_ms=T0_MS)


def drained_and_resumed() -> list[Event]:
    return [drain_accepted("n3"), resume_accepted("n3")]


def retry_planned() -> Event:
    return clusters.RetryPlanned(
        account=BUYER,
        job=JOB,
        generation=1,
        at_ms=T0_MS,
        lease=lease_id(JOB, 2),
        cause="workload_failed",
        retry=1,
        begins_ms=T0_MS + 2_000,
        exit_code=3,
        detail="rank 1 on node n2: process 0 exited with 3",
    )
