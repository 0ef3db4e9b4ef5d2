"""Whether a job may start, and what is set aside for it."""

import pytest

from tests.unit.billing.builders import (
    BUYER,
    DOLLAR,
    HOUR,
    JOB,
    MINUTE,
    START_MS,
    World,
    admitted,
    bid,
    closed,
    covered,
    forming,
    gang,
    generation,
    kinds,
    lost,
    opened,
    provider_of,
    release_accepted,
    released,
    running,
    wanted,
    withdrawn,
)
from volt.contracts.ledger import (
    FIRST_CREDIT_MICROUSD,
    AccountCredited,
    HoldAdjusted,
    JobClosed,
    JobFunded,
    JobUnfunded,
    MembersFunded,
    earned,
)
from volt.contracts.market import Expired, MarketCleared
from volt.contracts.messages import Event
from volt_billing.holds import DEFAULT_CAP_MICROUSD_PER_GPU_HOUR


def funded_world(*before: Event, cap: int | None = DOLLAR, max_seconds: int | None = None) -> World:
    world = World()
    world.say(opened(), *before)
    world.say(admitted(nodes=2, gpus_per_node=4, cap=cap, max_seconds=max_seconds))
    return world


def test_a_new_account_is_credited_once() -> None:
    world = World()
    (credited,) = world.say(opened())
    assert isinstance(credited, AccountCredited)
    assert world.wallet() == FIRST_CREDIT_MICROUSD
    world.restart()
    assert world.act(START_MS + HOUR) == []


def test_an_hour_at_the_cap_is_set_aside_before_the_market_may_match() -> None:
    world = funded_world()
    funded = world.ledger()[-1]
    assert isinstance(funded, JobFunded)
    assert funded.cap_microusd_per_gpu_hour == DOLLAR
    assert world.held() == 8 * DOLLAR
    assert world.wallet() == FIRST_CREDIT_MICROUSD - 8 * DOLLAR


def test_a_job_asked_before_its_account_is_credited_waits_for_the_credit() -> None:
    world = World()
    said = world.say(opened(), admitted())
    assert kinds(said) == ["AccountCredited", "JobFunded"]


def test_a_shorter_job_has_only_its_own_duration_set_aside() -> None:
    assert funded_world(max_seconds=900).held() == 2 * DOLLAR


def test_what_is_set_aside_is_rounded_up() -> None:
    world = World()
    world.say(opened(), admitted(cap=1, max_seconds=1))
    assert world.held() == 1


def test_without_a_cap_it_is_twice_the_last_price_of_the_model() -> None:
    world = World()
    world.say(opened("other"), opened(), bid("node-of-x", 300_000), bid("node-of-y", 200_000))
    world.say(admitted("first", account="other"), admitted("second", account="other"))
    world.say(gang("x", price=700_000, job="first", account="other"))
    world.say(gang("y", price=600_000, job="second", account="other"))
    world.say(admitted(cap=None))
    assert world.held() == 2 * 600_000


def test_a_void_gang_makes_no_price() -> None:
    world = World()
    world.say(opened(), bid("node-of-x", 300_000), admitted("first"), release_accepted(START_MS, "first"))
    world.say(gang("x", price=700_000, job="first"))
    world.say(admitted(cap=None))
    assert world.held() == 2 * 300_000


def test_without_cap_and_price_it_is_twice_the_lowest_open_ask_for_the_models_asked() -> None:
    asks = [bid("n1", 900_000), bid("n2", 500_000), bid("n3", 100_000), withdrawn("n3"), bid("n4", 50_000, "rtx4090")]
    world = funded_world(*asks, cap=None)
    assert world.held() == 8 * 2 * 500_000


def test_without_any_ask_there_is_a_default_cap() -> None:
    world = funded_world(bid("n4", 50_000, "rtx4090"), cap=None)
    assert world.held() == 8 * DEFAULT_CAP_MICROUSD_PER_GPU_HOUR


def test_a_wallet_that_is_short_ends_the_job_and_moves_nothing() -> None:
    world = funded_world(cap=13 * DOLLAR)
    unfunded = world.ledger()[-1]
    assert isinstance(unfunded, JobUnfunded)
    assert (unfunded.needed_microusd, unfunded.balance_microusd) == (104 * DOLLAR, 100 * DOLLAR)
    assert world.wallet() == FIRST_CREDIT_MICROUSD
    assert world.say(release_accepted(START_MS), gang("a", "b", price=1)) == []


def test_the_whole_wallet_is_enough_if_it_is_just_enough() -> None:
    world = funded_world(cap=FIRST_CREDIT_MICROUSD // 8)
    assert world.wallet() == 0


@pytest.mark.parametrize("is_funded", [False, True])
def test_a_job_released_before_any_gang_closes_at_once_and_gets_its_hold_back(is_funded: bool) -> None:
    world = World()
    world.say(opened())
    world.append(admitted())
    if is_funded:
        world.act()
    world.say(release_accepted(START_MS))
    assert closed(world) == {}
    assert (world.held(), world.wallet()) == (0, FIRST_CREDIT_MICROUSD)
    assert world.say(gang("a", price=DOLLAR), *generation(1, "a", ready_ms=START_MS)) == []


def test_a_job_released_while_its_hold_was_on_the_way_gets_it_back() -> None:
    world = World()
    world.say(opened())
    world.append(admitted())
    world.read()
    world.append(release_accepted(START_MS))
    world.act_unread()
    assert len(world.act()) == 1
    assert closed(world) == {}
    assert (world.held(), world.wallet()) == (0, FIRST_CREDIT_MICROUSD)


def test_the_grant_gives_back_what_the_true_price_does_not_need() -> None:
    world = funded_world()
    (adjusted,) = world.say(gang("a", "b", price=600_000, gpus=4))
    assert isinstance(adjusted, HoldAdjusted)
    assert world.held() == 8 * 600_000
    assert world.wallet() == FIRST_CREDIT_MICROUSD - world.held()
    assert adjusted.covers_to_ms == START_MS + HOUR


def test_a_grant_at_the_cap_moves_nothing_and_is_still_answered() -> None:
    world = funded_world()
    (adjusted,) = world.say(gang("a", "b", price=DOLLAR, gpus=4))
    assert isinstance(adjusted, HoldAdjusted)
    assert adjusted.transfers == ()


def test_a_gang_behind_the_release_is_void_and_nothing_of_it_is_billed() -> None:
    world = funded_world()
    world.append(release_accepted(START_MS), gang("a", "b", price=DOLLAR, gpus=4))
    world.append(*generation(1, "a", "b", ready_ms=START_MS))
    world.append(covered(("a", 1, START_MS, START_MS + MINUTE), complete_to_ms=START_MS + MINUTE))
    world.act()
    assert closed(world) == {}
    assert world.wallet() == FIRST_CREDIT_MICROUSD


def test_a_gang_that_never_was_ready_costs_nothing_and_closes_at_once() -> None:
    world = funded_world()
    world.say(gang("a", "b", price=DOLLAR, gpus=4), forming(1, "a", "b", at_ms=START_MS))
    assert len(world.say(released(1, at_ms=START_MS + MINUTE))) == 1
    assert closed(world) == {"a": 0, "b": 0}
    assert world.wallet() == FIRST_CREDIT_MICROUSD


def test_wanted_members_are_held_for_at_the_cap() -> None:
    world = running("a", "b", price=600_000, gpus=4)
    before = world.held()
    world.append(lost(1, "b", at_ms=START_MS))
    world.append(forming(2, "a", at_ms=START_MS))
    (funded,) = world.say(wanted(2, 2, at_ms=START_MS))
    assert isinstance(funded, MembersFunded)
    assert (funded.generation, funded.attempts, funded.cap_microusd_per_gpu_hour) == (2, (2,), DOLLAR)
    assert world.held() == before + 4 * DOLLAR - 4 * 600_000
    assert world.say(gang("c", price=800_000, gpus=4, generation=2))[-1] == world.ledger()[-1]
    assert world.held() == 4 * 600_000 + 4 * 800_000


def test_where_the_wallet_is_short_wanted_members_have_to_do_with_what_is_held() -> None:
    world = World()
    world.say(opened(), admitted(nodes=2, gpus_per_node=5, cap=10 * DOLLAR))
    world.say(gang("a", "b", price=9 * DOLLAR, gpus=5), *generation(1, "a", "b", ready_ms=START_MS))
    before = world.held()
    (funded,) = world.say(lost(1, "b", at_ms=START_MS), wanted(2, 2, 3, 4, at_ms=START_MS))
    assert isinstance(funded, MembersFunded)
    assert (funded.transfers, world.held()) == ((), before)


def test_members_wanted_for_a_generation_that_is_past_are_not_funded() -> None:
    world = running("a", "b")
    said = world.say(wanted(2, 2, at_ms=START_MS), lost(2, "b", at_ms=START_MS), forming(3, "a", at_ms=START_MS))
    assert said == []


def test_a_closed_job_is_forgotten_but_for_its_end() -> None:
    world = running("a")
    world.say(covered(("a", 1, START_MS, START_MS + HOUR), complete_to_ms=START_MS + HOUR))
    world.say(released(1, at_ms=START_MS + HOUR))
    assert closed(world) == {"a": DOLLAR}
    assert world.balance(earned(provider_of("a"))) == 950_000
    state = world.state
    assert (state.open_jobs, state.cover, JOB in state.transfer_ids) == ({}, {}, False)


def test_a_job_that_waited_out_gets_its_hold_back_and_is_closed_for_nothing() -> None:
    world = funded_world()
    job = Expired(job=JOB, account=BUYER)
    world.say(MarketCleared(through_seq=1, at_ms=START_MS + MINUTE, expired=(job,)))
    last = world.ledger()[-1]
    assert isinstance(last, JobClosed)
    assert last.lines == ()
    assert world.wallet() == FIRST_CREDIT_MICROUSD
