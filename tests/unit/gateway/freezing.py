"""A lease that goes on after its node had been cut off."""

from tests.unit.gateway.story import BUYER, JOB, T0_MS
from volt.contracts.clusters import BeatId, LeaseResumed
from volt.contracts.ids import lease_id


def resumed(number: int, generation: int = 1) -> LeaseResumed:
    return LeaseResumed(
        account=BUYER,
        job=JOB,
        generation=generation,
        at_ms=T0_MS + 10,
        lease=lease_id(JOB, number),
        node="n1",
        freeze=1,
        beat=BeatId(incarnation="i1", sequence=9),
    )
