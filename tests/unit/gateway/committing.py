"""Events of a cluster that stores checkpoints, beside those of the whole story."""

from tests.unit.gateway.story import BUYER, JOB, T0_MS
from volt.contracts import clusters
from volt.contracts.ids import lease_id
from volt.contracts.messages import Event


def part(rank: int) -> clusters.CheckpointPart:
    return clusters.CheckpointPart(rank=rank, manifest="a" * 64, size_bytes=1_000)


def stored(rank: int, step: int) -> Event:
    return clusters.CheckpointStored(
        account=BUYER,
        job=JOB,
        generation=1,
        at_ms=T0_MS + 10,
        lease=lease_id(JOB, rank + 1),
        step=step,
        part=part(rank),
    )


def committed(step: int) -> Event:
    checkpoint = clusters.Checkpoint(generation=1, step=step, parts=(part(0), part(1)))
    return clusters.CheckpointCommitted(account=BUYER, job=JOB, generation=1, at_ms=T0_MS + 11, checkpoint=checkpoint)
