"""What is posted while a job runs, and its last bill."""

from tests.unit.billing.builders import (
    BUYER,
    HOUR,
    JOB,
    MINUTE,
    SECOND,
    START_MS,
    World,
    admitted,
    closed,
    covered,
    ended,
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
    FEE,
    FIRST_CREDIT_MICROUSD,
    BillLine,
    ChargesPosted,
    JobClosed,
    LedgerEvent,
    earned,
    pending,
)
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt_billing.postings import LINES_PER_MESSAGE_MAX

RATE = 3_600_000
"""Micro-dollars per hour: one a millisecond, so that what is billed can be read as milliseconds."""


def at(ms: int) -> int:
    return START_MS + ms


def bills(event: LedgerEvent) -> dict[str, int]:
    """What each lease owes by this event."""
    assert isinstance(event, ChargesPosted | JobClosed)
    return {line.lease: line.due_microusd for line in event.lines}


def expensive(*leases: str, gang_kind: bool = True) -> World:
    """A job of these leases, ready at START_MS, at one micro-dollar a millisecond each."""
    world = World()
    world.say(opened(), admitted(kind="ddp" if gang_kind else "batch", nodes=len(leases), cap=RATE))
    world.say(gang(*leases, price=RATE), *generation(1, *leases, ready_ms=START_MS))
    return world


def test_charges_are_posted_at_whole_periods_as_far_as_cover_is_complete() -> None:
    world = running("a", price=600_000)
    assert world.say(covered(("a", 1, at(0), at(59_000)), complete_to_ms=at(59_000))) == []
    (posted,) = world.say(covered(("a", 1, at(59_000), at(90_000)), complete_to_ms=at(89_000)))
    assert isinstance(posted, ChargesPosted)
    (line,) = posted.lines
    assert (line.through_ms, line.billable_ms, line.due_microusd, line.fee_microusd) == (
        at(MINUTE),
        MINUTE,
        10_000,
        500,
    )
    assert [(one.id, one.amount_microusd) for one in posted.transfers] == [
        (f"a/{at(MINUTE)}/net", 9_500),
        (f"a/{at(MINUTE)}/fee", 500),
    ]
    assert world.balance(pending(provider_of("a"))) == 9_500


def test_a_posting_is_of_what_became_due_since_the_last_one() -> None:
    world = running("a", price=600_000)
    world.say(covered(("a", 1, at(0), at(MINUTE)), complete_to_ms=at(MINUTE)))
    (posted,) = world.say(covered(("a", 1, at(MINUTE), at(3 * MINUTE)), complete_to_ms=at(3 * MINUTE)))
    assert bills(posted) == {"a": 30_000}
    assert sum(one.amount_microusd for one in posted.transfers) == 20_000


def test_time_that_heartbeats_do_not_cover_is_not_billed() -> None:
    world = running("a", price=RATE // 10)
    (posted,) = world.say(covered(("a", 1, at(10_000), at(20_000)), complete_to_ms=at(MINUTE)))
    assert bills(posted) == {"a": 1_000}


def test_below_the_watermark_nothing_is_added() -> None:
    world = running("a", price=RATE // 10)
    world.say(covered(complete_to_ms=at(30_000)))
    world.append(released(1, at_ms=at(MINUTE)))
    world.say(covered(("a", 1, at(0), at(40_000)), complete_to_ms=at(MINUTE)))
    assert closed(world) == {"a": 1_000}


def test_cover_before_ready_or_of_another_generation_or_of_a_strangers_lease_is_not_billed() -> None:
    world = running("a", price=RATE // 10)
    spans = [("a", 1, at(-5_000), at(10_000)), ("a", 2, at(10_000), at(50_000)), ("z", 1, at(0), at(50_000))]
    world.append(released(1, at_ms=at(MINUTE)))
    world.say(covered(*spans, complete_to_ms=at(MINUTE)))
    assert closed(world) == {"a": 1_000}


def test_a_fraction_of_a_micro_dollar_is_carried_until_it_is_one() -> None:
    world = running("a", price=24)
    """0.4 micro-dollars a minute."""
    posted = [
        world.say(covered(("a", 1, at((n - 1) * MINUTE), at(n * MINUTE)), complete_to_ms=at(n * MINUTE)))
        for n in range(1, 11)
    ]
    dues = [bills(event)["a"] for (event,) in posted]
    assert dues == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]
    assert sum(one.amount_microusd for (event,) in posted for one in event.transfers) == 4


def test_nothing_is_said_while_nothing_can_become_due() -> None:
    world = running("a")
    world.say(generation_ended(1, "a", at_ms=at(10_000)))
    assert len(world.say(covered(complete_to_ms=at(MINUTE)))) == 1
    assert world.say(covered(complete_to_ms=at(5 * MINUTE))) == []


def test_the_last_bill_ends_the_hold_in_one_message_and_nothing_comes_after() -> None:
    world = running("a", price=600_000)
    world.say(covered(("a", 1, at(0), at(150_000)), complete_to_ms=at(120_000)))
    world.say(released(1, at_ms=at(150_000)))
    assert world.held() > 0
    (last,) = world.say(covered(complete_to_ms=at(150_000)))
    assert isinstance(last, JobClosed)
    assert bills(last) == {"a": 25_000}
    assert world.held() == 0
    assert world.balance(pending(provider_of("a"))) == 0
    assert world.balance(earned(provider_of("a"))) == 23_750
    assert world.balance(FEE) == 1_250
    assert world.wallet() == FIRST_CREDIT_MICROUSD - 25_000
    late = covered(("a", 1, at(150_000), at(300_000)), complete_to_ms=at(300_000))
    assert world.say(late, release_accepted(at(310_000)), lost(1, "a", at_ms=at(320_000))) == []
    assert world.act(at(10 * HOUR)) == []


def test_the_bill_stops_at_the_earlier_of_release_and_end() -> None:
    world = expensive("a")
    world.say(released(1, at_ms=at(7_000)))
    world.say(release_accepted(at(6_000)))
    world.say(covered(("a", 1, at(0), at(20_000)), complete_to_ms=at(20_000)))
    assert closed(world) == {"a": 6_000}


def test_the_last_bill_waits_for_cover_to_the_end_of_the_last_generation_and_no_longer() -> None:
    world = expensive("a")
    world.say(generation_ended(1, "a", at_ms=at(8_000)))
    world.say(released(1, at_ms=at(20_000)))
    assert world.say(covered(("a", 1, at(0), at(7_999)), complete_to_ms=at(7_999))) == []
    world.say(covered(("a", 1, at(7_999), at(9_000)), complete_to_ms=at(8_000)))
    assert closed(world) == {"a": 8_000}


def test_what_is_ready_behind_the_release_in_the_log_was_never_ready() -> None:
    world = World()
    world.say(opened(), admitted(kind="ddp", cap=RATE))
    world.say(gang("a", price=RATE), forming(1, "a", at_ms=START_MS), started(1, "a", at_ms=START_MS))
    world.append(covered(("a", 1, at(0), at(10)), complete_to_ms=at(10)))
    world.say(release_accepted(at(10)), ready(1, at_ms=at(9)))
    assert closed(world) == {"a": 0}


def test_a_generation_that_is_ready_behind_the_release_in_the_log_is_not_billed() -> None:
    world = expensive("a")
    world.say(generation_ended(1, "a", at_ms=at(5_000)), forming(2, "a", at_ms=at(5_000)))
    world.say(started(2, "a", at_ms=at(9_000)), release_accepted(at(10_000)), ready(2, at_ms=at(9_000)))
    world.say(opened("somebody"))
    world.say(covered(("a", 1, at(0), at(5_000)), ("a", 2, at(9_000), at(10_000)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 5_000}


def test_a_gang_is_billed_only_while_all_of_its_members_are_covered() -> None:
    world = expensive("a", "b")
    world.say(released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(9_000)), ("b", 1, at(2_000), at(10_000)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 7_000, "b": 7_000}


def test_other_kinds_are_billed_member_by_member() -> None:
    world = expensive("a", "b", gang_kind=False)
    world.say(released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(9_000)), ("b", 1, at(2_000), at(10_000)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 9_000, "b": 8_000}


def test_a_member_that_exited_0_drops_out_and_the_others_are_billed_on() -> None:
    world = expensive("a", "b")
    world.say(ended(1, "b", 0, 0, at_ms=at(4_000)))
    world.say(released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(10_000)), ("b", 1, at(0), at(5_000)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 10_000, "b": 4_000}


def test_a_member_that_was_done_before_the_last_one_started_is_not_waited_for() -> None:
    world = World()
    world.say(opened(), admitted(kind="ddp", nodes=2, cap=RATE))
    world.say(gang("a", "b", price=RATE), forming(1, "a", "b", at_ms=START_MS))
    world.say(started(1, "b", at_ms=START_MS), ended(1, "b", 0, at_ms=at(1_000)))
    world.say(started(1, "a", at_ms=at(2_000)), ready(1, at_ms=at(2_000)), released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(2_000), at(10_000)), ("b", 1, at(0), at(900)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 8_000, "b": 0}


def test_a_member_drops_out_once() -> None:
    world = expensive("a", "b")
    world.say(ended(1, "b", 0, at_ms=at(4_000)), ended(1, "b", 0, at_ms=at(6_000)), released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(10_000)), ("b", 1, at(0), at(6_000)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 10_000, "b": 4_000}


def test_exits_that_nobody_saw_or_that_failed_drop_nobody_out() -> None:
    for codes in [(), (0, 1), (None,)]:
        world = expensive("a", "b")
        world.say(ended(1, "b", *codes, at_ms=at(4_000)), released(1, at_ms=at(10_000)))
        world.say(covered(("a", 1, at(0), at(10_000)), ("b", 1, at(0), at(5_000)), complete_to_ms=at(10_000)))
        assert closed(world) == {"a": 5_000, "b": 5_000}


def test_recovery_is_not_billed_and_the_replacement_has_its_own_price() -> None:
    world = expensive("a", "b")
    world.say(
        lost(1, "b", at_ms=at(5_000)), generation_ended(1, "b", at_ms=at(5_010)), forming(2, "a", at_ms=at(5_020))
    )
    world.say(gang("c", price=RATE // 2, generation=2, at_ms=at(6_000)), joined(2, "c", at_ms=at(6_000)))
    world.say(started(2, "a", at_ms=at(8_000)), started(2, "c", at_ms=at(8_000)), ready(2, at_ms=at(8_000)))
    world.say(released(2, at_ms=at(10_000)))
    spans = [("a", 1, at(0), at(7_000)), ("b", 1, at(0), at(6_000)), ("a", 2, at(7_000), at(10_000))]
    world.say(covered(*spans, ("c", 2, at(7_000), at(10_000)), complete_to_ms=at(10_000)))
    assert closed(world) == {"a": 7_000, "b": 5_000, "c": 1_000}


def test_a_member_lost_before_its_generation_ends_takes_the_gang_with_it_and_other_kinds_run_on() -> None:
    dues = []
    for gang_kind in (True, False):
        world = expensive("a", "b", gang_kind=gang_kind)
        world.say(lost(1, "b", at_ms=at(5_000)), released(1, at_ms=at(10_000)))
        world.say(covered(("a", 1, at(0), at(10_000)), ("b", 1, at(0), at(10_000)), complete_to_ms=at(10_000)))
        dues.append(closed(world))
    assert dues == [{"a": 5_000, "b": 5_000}, {"a": 10_000, "b": 5_000}]


def test_one_provider_is_paid_once_for_all_of_its_leases() -> None:
    world = World()
    world.say(opened(), admitted(nodes=2, cap=RATE))
    world.say(gang("a", "b", price=RATE, provider="p"), *generation(1, "a", "b", ready_ms=START_MS))
    world.say(released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(9_000)), ("b", 1, at(0), at(9_999)), complete_to_ms=at(10_000)))
    assert world.balance(earned("p")) == 9_000 - 450 + 9_999 - 499


def test_a_buyer_may_be_its_own_provider() -> None:
    world = World()
    world.say(opened(), admitted(cap=RATE))
    world.say(gang("a", price=RATE, provider=BUYER), *generation(1, "a", ready_ms=START_MS))
    world.say(released(1, at_ms=at(10_000)))
    world.say(covered(("a", 1, at(0), at(10_000)), complete_to_ms=at(10_000)))
    assert (world.balance(earned(BUYER)), world.wallet()) == (9_500, FIRST_CREDIT_MICROUSD - 10_000)


def test_a_release_that_is_stored_behind_the_posting_it_precedes_gets_the_difference_back() -> None:
    world = expensive("a")
    world.say(covered(("a", 1, at(0), at(MINUTE)), complete_to_ms=at(MINUTE)))
    assert world.balance(pending(provider_of("a"))) == 57_000
    world.say(release_accepted(at(59_000)))
    assert closed(world) == {"a": 59_000}
    assert world.balance(earned(provider_of("a"))) == 59_000 - 2_950
    assert world.wallet() == FIRST_CREDIT_MICROUSD - 59_000


def test_what_becomes_known_at_the_instant_of_a_posting_is_still_posted_under_its_own_id() -> None:
    world = expensive("a", "b")
    world.say(covered(("a", 1, at(0), at(MINUTE)), ("b", 1, at(0), at(30_000)), complete_to_ms=at(MINUTE)))
    world.say(ended(1, "b", 0, at_ms=at(30_000)), release_accepted(at(MINUTE)))
    assert closed(world) == {"a": 60_000, "b": 30_000}


def test_a_job_with_more_leases_than_a_message_takes_is_closed_in_parts() -> None:
    world = World()
    leases = [f"{JOB}-{number:03}" for number in range(LINES_PER_MESSAGE_MAX + 44)]
    world.say(opened(), admitted(nodes=len(leases), cap=1_000))
    world.say(gang(*leases, price=1_000), *generation(1, *leases, ready_ms=START_MS))
    world.append(released(1, at_ms=at(HOUR)))
    spans = [(lease, 1, at(0), at(HOUR)) for lease in leases]
    said = world.say(covered(*spans, complete_to_ms=at(HOUR)))
    assert kinds(said) == ["ChargesPosted", "JobClosed"]
    lines: dict[str, BillLine] = {}
    for event in said:
        assert isinstance(event, ChargesPosted | JobClosed)
        assert len(encode(event)) <= MESSAGE_BYTES_MAX
        lines |= {line.lease: line for line in event.lines}
    assert {lease: line.due_microusd for lease, line in lines.items()} == dict.fromkeys(leases, 1_000)
    assert (world.held(), world.wallet()) == (0, FIRST_CREDIT_MICROUSD - 1_000 * len(leases))


def test_the_longest_posting_fits_a_message() -> None:
    world = World()
    leases = [f"j{'x' * 16}-{number:03}" for number in range(LINES_PER_MESSAGE_MAX)]
    job = "j" + "x" * 16
    world.say(opened(), admitted(job, nodes=len(leases), gpus_per_node=16, cap=10_000))
    granted = gang(*leases, price=10_000, gpus=16, job=job)
    world.say(granted, *generation(1, *leases, ready_ms=START_MS, job=job))
    world.say(release_accepted(at(30 * SECOND), job))
    world.say(covered(*((lease, 1, at(0), at(HOUR)) for lease in leases), complete_to_ms=at(HOUR)))
    event = world.ledger()[-1]
    assert isinstance(event, JobClosed)
    assert len(event.lines) == LINES_PER_MESSAGE_MAX
    assert len(encode(event)) <= MESSAGE_BYTES_MAX
