"""What a cluster costs that grows and shrinks: money is set aside first, and each lease counts in its generations."""

import pytest

from tests.unit.billing.builders import (
    DOLLAR,
    HOUR,
    JOB,
    MINUTE,
    START_MS,
    World,
    admitted,
    closed,
    covered,
    dropped,
    ended_to_grow,
    ended_to_shrink,
    forming,
    gang,
    generation,
    generation_ended,
    given_up,
    joined,
    kinds,
    lost,
    opened,
    ready,
    release_accepted,
    released,
    running,
    started,
    wanted,
)
from volt.audit.ledger import audit
from volt.contracts.jobs import WorkloadKind
from volt.contracts.ledger import HoldAdjusted, MembersFunded
from volt_billing.states import Low, Metered

RATE = 600_000
"""Micro-dollars per GPU-hour."""


def at(ms: int) -> int:
    return START_MS + ms


def test_growth_is_funded_at_the_cap_and_then_held_at_its_true_price() -> None:
    world = running("a", price=RATE, gpus=4)
    assert world.held() == 4 * RATE
    (funded,) = world.say(wanted(1, 1, 2, at_ms=START_MS, replaces=None))
    assert isinstance(funded, MembersFunded)
    assert (funded.generation, funded.attempts, funded.cap_microusd_per_gpu_hour) == (1, (1, 2), DOLLAR)
    assert world.held() == 4 * RATE + 2 * 4 * DOLLAR
    world.say(gang("b", price=RATE, gpus=4), gang("c", price=RATE // 2, gpus=4))
    assert world.held() == 4 * RATE + 4 * RATE + 4 * RATE // 2


def test_growth_that_cannot_be_funded_waits_for_money_and_the_job_runs_on() -> None:
    world = World()
    world.say(opened(), admitted("other", cap=50 * DOLLAR), admitted(cap=40 * DOLLAR))
    world.say(gang("a", price=40 * DOLLAR), *generation(1, "a", ready_ms=START_MS))
    assert world.wallet() == 10 * DOLLAR
    assert world.say(wanted(1, 1, at_ms=START_MS, replaces=None)) == []
    assert world.act(at(MINUTE)) == []
    world.restart()
    assert world.act(at(2 * MINUTE)) == []
    assert isinstance(world.state.jobs[JOB], Metered)
    said = world.say(release_accepted(at(3 * MINUTE), "other"))
    assert kinds(said) == ["JobClosed", "MembersFunded"]


def test_a_replacement_is_funded_though_growth_was_not() -> None:
    world = World()
    world.say(opened(), admitted(nodes=2, cap=45 * DOLLAR))
    world.say(gang("a", "b", price=45 * DOLLAR), *generation(1, "a", "b", ready_ms=START_MS))
    assert world.say(wanted(1, 1, at_ms=START_MS, replaces=None)) == []
    world.append(lost(1, "b", at_ms=at(1)), generation_ended(1, "b", at_ms=at(1)), forming(2, "a", at_ms=at(1)))
    (funded,) = world.say(wanted(2, 2, at_ms=at(1), replaces="b"))
    assert isinstance(funded, MembersFunded)
    assert funded.attempts == (2,), "the growth of generation 1 is wanted no more"


def test_growth_given_up_before_it_is_funded_never_is() -> None:
    world = World()
    world.say(opened(), admitted(cap=60 * DOLLAR))
    world.say(gang("a", price=60 * DOLLAR), *generation(1, "a", ready_ms=START_MS))
    assert world.say(wanted(1, 1, at_ms=START_MS, replaces=None)) == []
    world.say(given_up(1, attempts=(1,), at_ms=START_MS))
    job = world.state.jobs[JOB]
    assert isinstance(job, Metered)
    assert job.running.growth == {}


@pytest.mark.parametrize("how", ["dropped", "given up", "did not join"])
def test_what_was_held_for_a_lease_that_does_not_join_goes_back(how: str) -> None:
    world = running("a", price=RATE)
    world.say(wanted(1, 1, at_ms=START_MS, replaces=None))
    world.say(gang("b", price=RATE), joined(2, "b", at_ms=START_MS))
    assert world.held() == 2 * RATE
    match how:
        case "dropped":
            said = world.say(dropped(2, "b", at_ms=START_MS))
        case "given up":
            said = world.say(given_up(1, "b", at_ms=START_MS))
        case _:
            said = world.say(generation_ended(1, "a", at_ms=START_MS), forming(2, "a", at_ms=START_MS))
    assert isinstance(said[-1], HoldAdjusted)
    assert world.held() == RATE


def test_what_is_held_for_growth_that_the_market_does_not_answer_goes_back_when_it_is_given_up() -> None:
    world = running("a", price=RATE)
    world.say(wanted(1, 1, at_ms=START_MS, replaces=None))
    assert world.held() == RATE + DOLLAR
    world.say(given_up(1, attempts=(1,), at_ms=START_MS))
    assert world.held() == RATE


@pytest.mark.parametrize("kind", ["ddp", "batch"])
def test_a_lease_counts_only_in_generations_that_it_is_party_to(kind: WorkloadKind) -> None:
    world = running("a", kind=kind, price=RATE)
    world.say(wanted(1, 1, at_ms=START_MS, replaces=None))
    world.say(gang("b", price=RATE), joined(2, "b", at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(60_000)), ("b", 1, at(0), at(60_000)), complete_to_ms=at(60_000)))
    world.say(ended_to_grow(1, at_ms=at(60_000)), forming(2, "a", "b", at_ms=at(60_001)))
    world.say(started(2, "a", at_ms=at(80_000)), started(2, "b", at_ms=at(80_000)), ready(2, at_ms=at(80_000)))
    spans = [("a", 2, at(70_000), at(120_000)), ("b", 2, at(70_000), at(120_000))]
    world.say(covered(*spans, complete_to_ms=at(100_000)), ended_to_shrink(2, "b", at_ms=at(100_000)))
    world.say(forming(3, "a", at_ms=at(100_001)), started(3, "a", at_ms=at(110_000)), ready(3, at_ms=at(110_000)))
    world.say(
        covered(("a", 3, at(110_000), at(200_000)), ("b", 2, at(120_000), at(200_000)), complete_to_ms=at(150_000))
    )
    world.say(released(3, at_ms=at(130_000)))
    assert closed(world) == {"a": (60_000 + 20_000 + 20_000) * RATE // HOUR, "b": 20_000 * RATE // HOUR}


def test_a_shrinking_cluster_gets_the_hold_of_who_leaves_back() -> None:
    world = running("a", "b", price=RATE)
    assert world.held() == 2 * RATE
    (adjusted,) = world.say(ended_to_shrink(1, "b", at_ms=START_MS))
    assert isinstance(adjusted, HoldAdjusted)
    assert world.held() == RATE
    world.say(*generation(2, "a", ready_ms=START_MS))
    (renewed,) = world.act(at(HOUR - 10 * MINUTE))
    assert [one.amount_microusd for one in renewed.transfers] == [RATE], "only one runs"


def test_a_lease_of_a_gang_that_came_too_late_is_neither_held_nor_billed() -> None:
    world = running("a", price=RATE)
    world.say(wanted(1, 1, at_ms=START_MS, replaces=None))
    world.say(generation_ended(1, "a", at_ms=START_MS), *generation(2, "a", ready_ms=START_MS))
    world.say(gang("b", price=RATE, generation=1))
    world.say(covered(("a", 2, at(0), at(MINUTE)), ("b", 2, at(0), at(MINUTE)), complete_to_ms=at(MINUTE)))
    world.say(released(2, at_ms=at(MINUTE)))
    assert closed(world) == {"a": RATE // 60}
    (job,) = audit(world.entries).jobs
    assert [one.lease for one in job.leases] == ["a"]


def test_growth_while_funds_are_low_waits() -> None:
    world = World()
    world.say(opened(), admitted(cap=40 * DOLLAR))
    world.say(gang("a", price=40 * DOLLAR), *generation(1, "a", ready_ms=START_MS))
    for minute in range(1, 130):
        world.act(at(minute * MINUTE))
    assert isinstance(world.state.jobs[JOB], Low)
    assert world.say(wanted(1, 1, at_ms=world.now_ms, replaces=None)) == []
