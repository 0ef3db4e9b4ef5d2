"""A hold is renewed in time; where the wallet is short the buyer is warned, and the job ends at a computed instant."""

from tests.unit.billing.builders import (
    DOLLAR,
    HOUR,
    MINUTE,
    START_MS,
    World,
    admitted,
    closed,
    covered,
    forming,
    gang,
    generation,
    generation_ended,
    joined,
    kinds,
    lost,
    opened,
    provider_of,
    ready,
    release_accepted,
    released,
    running,
    started,
)
from volt.contracts.ledger import (
    FIRST_CREDIT_MICROUSD,
    ChargesPosted,
    FundsExhausted,
    FundsLow,
    HoldAdjusted,
    JobClosed,
    LedgerEvent,
    earned,
)
from volt_billing.holds import DEADLINE_GRACE_MS, RENEWAL_MARGIN_MS, RENEWAL_MS

TIGHT = 40 * DOLLAR
"""A price at which the first credit pays for two hours and a half."""
LAST_MS = START_MS + 5 * HOUR // 2


def tight_world() -> World:
    world = World()
    world.say(opened(), admitted(cap=TIGHT))
    world.say(gang("a", price=TIGHT), *generation(1, "a", ready_ms=START_MS))
    return world


def tick(world: World, to_ms: int, step_ms: int = MINUTE) -> list[LedgerEvent]:
    """Time goes by, minute by minute, and billing looks each time."""
    said = []
    for at_ms in range(world.now_ms + step_ms, to_ms + 1, step_ms):
        said += world.act(at_ms)
    return said


def test_a_hold_is_renewed_before_it_runs_out() -> None:
    world = running("a", price=600_000)
    assert world.act(START_MS + HOUR - RENEWAL_MARGIN_MS - 1) == []
    (renewed,) = world.act(START_MS + HOUR - RENEWAL_MARGIN_MS)
    assert isinstance(renewed, HoldAdjusted)
    assert renewed.covers_to_ms == START_MS + HOUR + RENEWAL_MS
    assert world.held() == 2 * 600_000


def test_a_renewal_is_at_the_true_rate_of_the_leases_that_live() -> None:
    world = running("a", "b", price=600_000)
    world.say(lost(1, "b", at_ms=START_MS))
    said = tick(world, START_MS + 3 * HOUR)
    moved = [transfer.amount_microusd for event in said for transfer in event.transfers]
    assert moved == [600_000, 600_000]


def test_low_funds_are_told_and_then_the_job_ends_at_the_computed_instant() -> None:
    world = tight_world()
    said = tick(world, START_MS + 3 * HOUR)
    _, low, exhausted = said
    assert isinstance(said[0], HoldAdjusted)
    assert isinstance(low, FundsLow)
    assert isinstance(exhausted, FundsExhausted)
    assert low.at_ms <= START_MS + 2 * HOUR
    assert low.exhausted_at_ms == exhausted.exhausted_at_ms == LAST_MS
    assert exhausted.at_ms >= LAST_MS
    assert world.wallet() == 0


def test_nothing_behind_the_exhaustion_is_billed_and_every_cent_was() -> None:
    world = tight_world()
    tick(world, START_MS + 3 * HOUR)
    world.say(covered(("a", 1, START_MS, START_MS + 3 * HOUR), complete_to_ms=START_MS + 3 * HOUR))
    assert closed(world)
    assert world.balance(earned(provider_of("a"))) == FIRST_CREDIT_MICROUSD * 95 // 100
    assert (world.wallet(), world.held()) == (0, 0)


def test_a_monitor_that_is_away_cannot_let_a_job_overspend() -> None:
    world = tight_world()
    said = tick(world, START_MS + 3 * HOUR)
    assert isinstance(said[-1], FundsExhausted)
    world.say(released(1, at_ms=START_MS + 3 * HOUR))
    world.say(covered(("a", 1, START_MS + 1, START_MS + 3 * HOUR), complete_to_ms=START_MS + 3 * HOUR))
    assert closed(world)
    assert 0 < world.wallet() < DOLLAR


def test_billing_that_was_away_names_the_same_instant_late() -> None:
    world = tight_world()
    said = world.act(START_MS + 30 * HOUR)
    assert kinds(said) == ["FundsLow", "FundsExhausted"]
    exhausted = said[-1]
    assert isinstance(exhausted, FundsExhausted)
    assert exhausted.exhausted_at_ms == LAST_MS


def test_billing_that_was_away_renews_what_the_wallet_can_pay() -> None:
    world = running("a", price=600_000)
    (renewed,) = world.act(START_MS + 10 * HOUR)
    assert isinstance(renewed, HoldAdjusted)
    assert renewed.covers_to_ms == START_MS + 10 * HOUR + RENEWAL_MS


def test_charges_are_not_posted_behind_what_the_hold_pays_for() -> None:
    world = tight_world()
    world.append(covered(("a", 1, START_MS, START_MS + 30 * HOUR), complete_to_ms=START_MS + 30 * HOUR))
    world.act()
    assert closed(world)
    assert (world.wallet(), world.held()) == (0, 0)


def test_money_that_comes_back_in_time_saves_a_job() -> None:
    world = World()
    world.say(opened(), admitted("other", cap=20 * DOLLAR), admitted(cap=TIGHT))
    world.say(gang("a", price=TIGHT), *generation(1, "a", ready_ms=START_MS))
    assert isinstance(tick(world, START_MS + 110 * MINUTE)[-1], FundsLow)
    assert world.wallet() == 0
    said = world.say(release_accepted(world.now_ms, job="other"))
    assert isinstance(said[0], JobClosed)
    saved = said[-1]
    assert isinstance(saved, FundsLow)
    assert saved.exhausted_at_ms == LAST_MS


def test_a_loss_that_makes_the_hold_last_is_told() -> None:
    world = World()
    world.say(opened(), admitted(nodes=2, cap=TIGHT))
    world.say(gang("a", "b", price=TIGHT), *generation(1, "a", "b", ready_ms=START_MS))
    low = tick(world, START_MS + 55 * MINUTE)[-1]
    assert isinstance(low, FundsLow)
    assert low.exhausted_at_ms == START_MS + 75 * MINUTE
    (again,) = world.say(lost(1, "b", at_ms=START_MS + 55 * MINUTE))
    assert isinstance(again, FundsLow)
    assert again.exhausted_at_ms == START_MS + 95 * MINUTE
    ends = [event for event in tick(world, START_MS + 3 * HOUR) if isinstance(event, FundsExhausted)]
    assert [event.exhausted_at_ms for event in ends] == [START_MS + 95 * MINUTE]


def test_a_hold_is_not_used_up_while_a_gang_recovers() -> None:
    world = running("a", "b", price=TIGHT // 2 // 20)
    world.say(lost(1, "b", at_ms=START_MS + MINUTE), generation_ended(1, "b", at_ms=START_MS + MINUTE))
    assert tick(world, START_MS + 30 * HOUR, HOUR) == []
    back_ms = START_MS + 30 * HOUR
    world.say(forming(2, "a", at_ms=back_ms), gang("c", price=DOLLAR, generation=2), joined(2, "c", at_ms=back_ms))
    starts = [started(2, lease, at_ms=back_ms) for lease in ("a", "c")]
    assert world.say(*starts, ready(2, at_ms=back_ms)) == []
    assert isinstance(tick(world, back_ms + HOUR)[0], HoldAdjusted)


def test_a_job_with_a_duration_holds_no_more_than_it_takes() -> None:
    world = World()
    world.say(opened(), admitted(max_seconds=90 * 60))
    world.say(gang("a", price=DOLLAR), *generation(1, "a", ready_ms=START_MS))
    said = tick(world, START_MS + 90 * MINUTE)
    assert [transfer.amount_microusd for event in said for transfer in event.transfers] == [DOLLAR // 2]


def test_a_job_that_has_just_enough_ends_by_its_duration_and_not_by_exhaustion() -> None:
    world = World()
    world.say(opened(), admitted(cap=100 * DOLLAR, max_seconds=3_600))
    world.say(gang("a", price=100 * DOLLAR), *generation(1, "a", ready_ms=START_MS))
    assert tick(world, START_MS + HOUR) == []
    assert world.act(START_MS + HOUR + DEADLINE_GRACE_MS - 1) == []
    world.append(covered(("a", 1, START_MS, START_MS + HOUR + 100), complete_to_ms=START_MS + HOUR + 100))
    said = world.say(released(1, at_ms=START_MS + HOUR + 100))
    assert kinds(said)[-2:] == ["FundsExhausted", "JobClosed"]
    assert (world.held(), world.balance(earned(provider_of("a")))) == (0, 95 * DOLLAR)


def test_a_release_that_is_read_before_the_hold_was_renewed_is_paid_to_its_instant() -> None:
    world = running("a")
    world.append(release_accepted(START_MS + 2 * HOUR))
    said = world.act(START_MS + 3 * HOUR)
    assert len(said) == 1
    assert isinstance(said[0], HoldAdjusted)
    world.say(covered(("a", 1, START_MS, START_MS + 3 * HOUR), complete_to_ms=START_MS + 3 * HOUR))
    assert world.wallet() == FIRST_CREDIT_MICROUSD - 2 * DOLLAR


def test_a_release_that_is_read_behind_the_end_of_the_money_is_billed_to_that_end() -> None:
    world = tight_world()
    world.append(release_accepted(START_MS + 4 * HOUR))
    said = world.act(START_MS + 5 * HOUR)
    assert kinds(said) == ["HoldAdjusted", "FundsExhausted"]
    world.say(covered(("a", 1, START_MS, START_MS + 5 * HOUR), complete_to_ms=START_MS + 5 * HOUR))
    assert closed(world)
    assert (world.wallet(), world.balance(earned(provider_of("a")))) == (0, 95 * DOLLAR)


def test_a_job_that_overstays_its_duration_without_money_is_exhausted_where_its_hold_ended() -> None:
    world = World()
    world.say(opened(), admitted(cap=100 * DOLLAR, max_seconds=3_600))
    world.say(gang("a", price=100 * DOLLAR), *generation(1, "a", ready_ms=START_MS))
    said = world.act(START_MS + HOUR + DEADLINE_GRACE_MS)
    assert kinds(said) == ["FundsLow", "FundsExhausted"]
    exhausted = said[-1]
    assert isinstance(exhausted, FundsExhausted)
    assert exhausted.exhausted_at_ms == START_MS + HOUR


def late_loss() -> World:
    """Two leases billed for an hour and low on money; only then the log says that one was lost half an hour ago."""
    world = World()
    world.say(opened(), admitted(nodes=2, cap=TIGHT))
    world.say(gang("a", "b", price=TIGHT), *generation(1, "a", "b", ready_ms=START_MS))
    tick(world, START_MS + 55 * MINUTE)
    hour = (START_MS, START_MS + HOUR)
    world.say(covered(("a", 1, *hour), ("b", 1, *hour), complete_to_ms=START_MS + HOUR))
    assert world.held() == 20 * DOLLAR
    world.append(lost(1, "b", at_ms=START_MS + 30 * MINUTE))
    return world


def test_what_goes_back_comes_first_so_that_the_hold_can_pay_the_rest() -> None:
    world = late_loss()
    end_ms = START_MS + 105 * MINUTE
    world.append(release_accepted(end_ms))
    world.say(covered(("a", 1, START_MS + HOUR, end_ms), complete_to_ms=end_ms))
    assert closed(world)
    earnings = [world.balance(earned(provider_of(lease))) for lease in ("a", "b")]
    assert earnings == [70 * DOLLAR * 95 // 100, 20 * DOLLAR * 95 // 100]


def test_a_posting_takes_back_what_turned_out_not_to_be_due() -> None:
    world = late_loss()
    end_ms = START_MS + 105 * MINUTE
    said = world.say(covered(("a", 1, START_MS + HOUR, end_ms), complete_to_ms=end_ms))
    posted = next(event for event in said if isinstance(event, ChargesPosted))
    assert {line.lease: line.due_microusd for line in posted.lines} == {"a": 70 * DOLLAR, "b": 20 * DOLLAR}
    assert world.held() == 10 * DOLLAR
