"""What a job may say about losses and failures, and what contradicts itself."""

import pytest
from msgspec.structs import replace

from tests.unit.bid_intake.build import request
from volt.contracts.errors import Reason
from volt.contracts.jobs import RETRIES_MAX, JobSpec, Recovery
from volt_bid_intake.rules import specify


def test_what_a_request_says_of_its_recovery_is_admitted_as_it_is() -> None:
    recovery = Recovery(on_loss="shrink", min_nodes=4, retries=RETRIES_MAX)
    spec = specify(replace(request(count=8, nodes=4), recovery=recovery))
    assert isinstance(spec, JobSpec)
    assert spec.recovery == recovery
    plain = specify(request())
    assert isinstance(plain, JobSpec)
    assert plain.recovery == Recovery(on_loss="replace", min_nodes=1, retries=0)


@pytest.mark.parametrize(
    ("recovery", "code", "field"),
    [
        (Recovery(on_loss="shrink", min_nodes=5), "min_nodes_out_of_range", "recovery.min_nodes"),
        (Recovery(on_loss="shrink", min_nodes=0), "min_nodes_out_of_range", "recovery.min_nodes"),
        (Recovery(on_loss="stop", min_nodes=2), "contradictory_recovery", "recovery.min_nodes"),
        (Recovery(min_nodes=2), "contradictory_recovery", "recovery.min_nodes"),
        (Recovery(retries=-1), "retries_out_of_range", "recovery.retries"),
        (Recovery(retries=RETRIES_MAX + 1), "retries_out_of_range", "recovery.retries"),
    ],
)
def test_a_recovery_that_cannot_be_meant_is_refused(recovery: Recovery, code: str, field: str) -> None:
    reason = specify(replace(request(count=8, nodes=4), recovery=recovery))
    assert isinstance(reason, Reason)
    assert (reason.code, reason.field) == (code, field)
