"""A price is per GPU and hour wherever it goes (dstack#1886, dstack#1890, skypilot#9000)."""

import pytest

from tests.unit.billing.builders import HOUR, START_MS, World, closed, covered, gang, generation, opened, released
from tests.unit.billing.builders import admitted as admitted_job
from volt.contracts.ledger import JobFunded

SHOWN = 980_000
"""Micro-dollars per GPU-hour."""


@pytest.mark.parametrize(("gpus", "due_microusd"), [(1, 980_000), (4, 3_920_000), (8, 7_840_000)])
def test_an_hour_costs_the_price_that_was_shown_times_the_gpus(gpus: int, due_microusd: int) -> None:
    world = World()
    world.say(opened(), admitted_job(nodes=1, gpus_per_node=gpus))
    world.say(gang("a", price=SHOWN, gpus=gpus), *generation(1, "a", ready_ms=START_MS))
    world.append(released(1, at_ms=START_MS + HOUR))
    world.say(covered(("a", 1, START_MS, START_MS + HOUR), complete_to_ms=START_MS + HOUR))
    assert closed(world) == {"a": due_microusd}


def test_a_cap_is_held_for_per_gpu_and_told_to_the_market_per_gpu() -> None:
    world = World()
    world.say(opened(), admitted_job(nodes=2, gpus_per_node=4, cap=1_000_000))
    funded = world.ledger()[-1]
    assert isinstance(funded, JobFunded)
    assert funded.cap_microusd_per_gpu_hour == 1_000_000
    assert world.held() == 8_000_000
