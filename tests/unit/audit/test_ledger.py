"""The audit proves a ledger that is right, and says what each lease owes."""

from tests.unit.audit.logs import PRICE, at, before_last_bill, codes, eventful
from tests.unit.billing.builders import (
    HOUR,
    JOB,
    MINUTE,
    START_MS,
    World,
    admitted,
    covered,
    ended,
    gang,
    generation,
    node_of,
    opened,
    provider_of,
    release_accepted,
    released,
)
from volt.audit.ledger import audit
from volt.contracts.ledger import (
    FIRST_CREDIT_MICROUSD,
    hold,
)
from volt.contracts.log import Entry


def test_a_ledger_that_is_right_is_balanced_and_told_lease_by_lease() -> None:
    report = audit(eventful().entries)
    assert report.is_balanced
    (job,) = report.jobs
    assert job.stage == "closed"
    assert [(one.lease, one.node, one.provider) for one in job.leases] == [
        (lease, node_of(lease), provider_of(lease)) for lease in ("a", "b", "c")
    ]
    billable = {one.lease: one.billable_ms for one in job.leases}
    assert billable == {"a": 88_000 + 105_000, "b": 88_000, "c": 115_000 - 500}
    assert {one.lease: one.covered_ms for one in job.leases} == {"a": 90_000 + 105_000, "b": 88_000, "c": 115_000}
    dues = [one.due_microusd for one in job.leases]
    assert dues == [193_000 * PRICE // HOUR, 88_000 * PRICE // HOUR, 114_500 * PRICE // 2 // HOUR]
    assert dues == [one.posted_microusd for one in job.leases]
    assert report.charged_microusd == sum(dues) == report.paid_microusd + report.fee_microusd
    assert report.covered_ms == 195_000 + 88_000 + 115_000
    assert report.issued_microusd == FIRST_CREDIT_MICROUSD
    assert sum(report.balances_microusd.values()) == 0
    assert report.balances_microusd[hold(JOB)] == 0


def test_an_audit_of_any_beginning_of_a_log_finds_nothing_wrong_and_lists_what_is_open() -> None:
    entries = eventful().entries
    stages = set()
    for length in range(len(entries) + 1):
        report = audit(entries[:length])
        assert report.is_balanced
        stages |= {job.stage for job in report.jobs}
    assert stages == {"open", "ended", "closed"}


def test_an_open_job_owes_what_is_complete_and_was_charged_what_was_posted() -> None:
    world = World()
    world.say(opened(), admitted(cap=PRICE))
    world.say(gang("a", price=PRICE), *generation(1, "a", ready_ms=at(0)))
    world.say(covered(("a", 1, at(0), at(91_000)), complete_to_ms=at(90_000)))
    (job,) = audit(world.entries).jobs
    (lease,) = job.leases
    assert (job.stage, lease.billable_ms, lease.due_microusd, lease.posted_microusd) == ("open", 90_000, 50_000, 33_333)
    assert job.held_microusd == PRICE - 33_333


def test_a_bill_need_not_know_what_was_stored_since_the_ledgers_last_event() -> None:
    exit_that_frees_a = ended(2, "c", 0, at_ms=at(150_000))
    report = audit(before_last_bill(eventful(), exit_that_frees_a))
    assert report.is_balanced
    (job,) = report.jobs
    assert [lease.due_microusd for lease in job.leases] == [lease.posted_microusd for lease in job.leases]


def test_a_bill_has_to_know_what_was_stored_before_the_ledgers_last_event() -> None:
    exit_that_frees_a = ended(2, "c", 0, at_ms=at(150_000))
    other = World()
    other.say(opened("other"))
    account, credited = (entry.event for entry in other.entries)
    assert "billable_wrong" in codes(before_last_bill(eventful(), account, exit_that_frees_a, credited))


def test_void_gangs_and_late_readiness_cost_nothing() -> None:
    world = World()
    world.say(opened(), admitted(cap=PRICE))
    world.append(release_accepted(at(0)), gang("a", price=PRICE), *generation(1, "a", ready_ms=at(0)))
    world.say(covered(("a", 1, at(0), at(MINUTE)), complete_to_ms=at(MINUTE)))
    report = audit(world.entries)
    assert report.is_balanced
    assert [job.leases for job in report.jobs] == [()]


def test_events_of_a_job_that_was_not_admitted_change_nothing() -> None:
    entries = eventful().entries
    strays = [
        released(1, at_ms=at(0), job="another"),
        gang("z", price=PRICE, job="another"),
        covered(("z", 1, at(0), at(MINUTE)), complete_to_ms=at(0)),
    ]
    assert audit([*(Entry(0, START_MS, stray) for stray in strays), *entries]).jobs == audit(entries).jobs
