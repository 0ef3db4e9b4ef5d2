"""The audit finds whatever was changed in a ledger."""

from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.audit.logs import PRICE, at, changed, codes, eventful, line_of, with_lines, with_transfers
from tests.unit.billing.builders import (
    BUYER,
    DOLLAR,
    HOUR,
    JOB,
    START_MS,
    World,
    admitted,
    gang,
    generation,
    opened,
    provider_of,
)
from tests.unit.billing.histories import History
from volt.audit.ledger import audit
from volt.audit.report import Code
from volt.contracts.ledger import (
    CREDIT,
    EXTERNAL,
    FEE,
    FIRST_CREDIT_MICROUSD,
    AccountCredited,
    ChargesPosted,
    FundsExhausted,
    HoldAdjusted,
    JobClosed,
    JobFunded,
    LedgerEvent,
    Transfer,
    earned,
    hold,
    pending,
    wallet,
)
from volt.contracts.log import Entry
from volt.contracts.messages import Event
from volt.contracts.nodes import BeatsCovered


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("kind", [ChargesPosted, JobClosed])
def test_a_bill_that_is_off_by_one_micro_dollar_is_found(kind: type[ChargesPosted | JobClosed], by: int) -> None:
    entries = eventful().entries

    def off(event: ChargesPosted | JobClosed) -> Event:
        (first, *_) = event.lines
        return with_lines(event, first.lease, due_microusd=first.due_microusd + by)

    assert {"due_wrong", "posted_wrong"} <= codes(changed(entries, kind, off))


@pytest.mark.parametrize("credit", [pending(provider_of("a")), FEE, earned(provider_of("a"))])
def test_a_transfer_that_is_off_by_one_micro_dollar_is_found(credit: str) -> None:
    def off(transfer: Transfer) -> Transfer:
        amount = transfer.amount_microusd + (transfer.credit == credit)
        return msgspec.structs.replace(transfer, amount_microusd=amount)

    found = codes(changed(eventful().entries, JobClosed, lambda event: with_transfers(event, off)))
    assert found & {"posted_wrong", "earned_wrong"}


def test_a_bill_and_its_transfers_that_are_off_together_are_found() -> None:
    def dearer(event: JobClosed) -> Event:
        known = next(line for line in event.lines if line.lease == "a")
        more = with_lines(event, "a", due_microusd=known.due_microusd + 1)
        assert isinstance(more, JobClosed)

        def shifted(transfer: Transfer) -> Transfer:
            by = {pending(provider_of("a")): 1, earned(provider_of("a")): 1, wallet(BUYER): -1}
            amount = transfer.amount_microusd + by.get(transfer.credit, 0)
            return msgspec.structs.replace(transfer, amount_microusd=amount)

        return with_transfers(more, shifted)

    assert codes(changed(eventful().entries, JobClosed, dearer)) == {"due_wrong"}


def test_a_doubled_transfer_is_found() -> None:
    def doubled(event: ChargesPosted) -> Event:
        return msgspec.structs.replace(event, transfers=(*event.transfers, event.transfers[0]))

    assert {"transfer_repeated", "posted_wrong"} <= codes(changed(eventful().entries, ChargesPosted, doubled))


def test_a_posting_that_is_in_the_log_twice_is_found() -> None:
    entries = eventful().entries
    place = next(place for place, entry in enumerate(entries) if isinstance(entry.event, ChargesPosted))
    assert "transfer_repeated" in codes([*entries[: place + 1], *entries[place:]])


def test_a_hold_that_does_not_end_with_its_job_is_found() -> None:
    def kept(transfer: Transfer) -> Transfer | None:
        return None if transfer.credit == wallet(BUYER) else transfer

    found = codes(changed(eventful().entries, JobClosed, lambda event: with_transfers(event, kept)))
    assert found == {"hold_left"}


def test_a_charge_without_cover_is_found() -> None:
    uncovered = changed(
        eventful().entries, BeatsCovered, lambda event: msgspec.structs.replace(event, spans=()), which=0
    )
    assert "charged_without_cover" in codes(uncovered)


def test_a_gang_charged_while_a_member_was_not_covered_is_found() -> None:
    def without_b(event: BeatsCovered) -> Event:
        return msgspec.structs.replace(event, spans=tuple(span for span in event.spans if span.lease != "b"))

    assert "billable_wrong" in codes(changed(eventful().entries, BeatsCovered, without_b, which=1))


def test_time_left_out_of_a_bill_is_found() -> None:
    world = eventful()
    less = line_of(world, "c").billable_ms - 1
    found = codes(changed(world.entries, JobClosed, lambda event: with_lines(event, "c", billable_ms=less)))
    assert "billable_wrong" in found


def test_a_lease_left_out_of_the_last_bill_is_found() -> None:
    def without_c(event: JobClosed) -> Event:
        return msgspec.structs.replace(event, lines=tuple(line for line in event.lines if line.lease != "c"))

    assert "line_missing" in codes(changed(eventful().entries, JobClosed, without_c))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"price_microusd_per_gpu_hour": PRICE + 1}, "terms_wrong"),
        ({"gpus": 2}, "terms_wrong"),
        ({"provider": "somebody"}, "terms_wrong"),
        ({"fee_microusd": 0}, "fee_wrong"),
        ({"lease": "z"}, "lease_unknown"),
    ],
)
def test_a_line_with_other_terms_than_the_grants_is_found(fields: dict[str, int | str], code: Code) -> None:
    assert code in codes(changed(eventful().entries, JobClosed, lambda event: with_lines(event, "a", **fields)))


def test_a_posting_before_cover_is_complete_is_found() -> None:
    entries = eventful().entries
    place = next(place for place, entry in enumerate(entries) if isinstance(entry.event, ChargesPosted))
    early = changed(entries[: place + 1], BeatsCovered, lambda event: msgspec.structs.replace(event, complete_to_ms=0))
    assert codes(early) == {"charged_early"}


def test_a_last_bill_before_cover_is_complete_is_found() -> None:
    early = changed(
        eventful().entries, BeatsCovered, lambda event: msgspec.structs.replace(event, complete_to_ms=at(190_001))
    )
    assert codes(early) == {"charged_early"}


def test_a_last_bill_of_a_job_that_goes_on_is_found() -> None:
    entries = [entry for entry in eventful().entries if type(entry.event).__name__ != "ClusterReleased"]
    assert "closed_before_end" in codes(entries)


def test_whatever_comes_behind_the_last_bill_is_found() -> None:
    world = eventful()
    world.append(HoldAdjusted(account=BUYER, at_ms=world.now_ms, job=JOB, covers_to_ms=0))
    assert codes(world.entries) == {"after_close"}


@pytest.mark.parametrize(
    ("debit", "credit"),
    [
        (wallet("somebody"), hold(JOB)),
        (EXTERNAL, wallet(BUYER)),
        (FEE, wallet(BUYER)),
        (pending(provider_of("a")), earned(provider_of("b"))),
        (wallet(BUYER), earned(provider_of("a"))),
        (hold(JOB), CREDIT),
    ],
)
def test_a_transfer_that_its_event_may_not_make_is_found(debit: str, credit: str) -> None:
    stray = Transfer(id="stray", debit=debit, credit=credit, amount_microusd=1)
    added = changed(
        eventful().entries,
        JobClosed,
        lambda event: msgspec.structs.replace(event, transfers=(stray, *event.transfers)),
    )
    assert "transfer_misplaced" in codes(added)


@pytest.mark.parametrize("amount", [0, -1])
def test_a_transfer_of_nothing_or_less_is_found(amount: int) -> None:
    def of_that(event: JobFunded) -> Event:
        return with_transfers(event, lambda transfer: msgspec.structs.replace(transfer, amount_microusd=amount))

    assert "transfer_not_positive" in codes(changed(eventful().entries, JobFunded, of_that))


def test_an_account_that_owes_is_found() -> None:
    def richer(event: JobFunded) -> Event:
        return with_transfers(
            event, lambda one: msgspec.structs.replace(one, amount_microusd=FIRST_CREDIT_MICROUSD + 1)
        )

    assert "balance_negative" in codes(changed(eventful().entries, JobFunded, richer))


def test_a_credit_that_nobody_asked_for_is_found() -> None:
    world = World()
    gift = Transfer(id="gift", debit=CREDIT, credit=wallet(BUYER), amount_microusd=FIRST_CREDIT_MICROUSD)
    world.append(AccountCredited(account=BUYER, at_ms=START_MS, transfers=(gift,)))
    assert codes(world.entries) == {"credit_unasked"}


def test_a_grant_above_the_cap_or_without_a_hold_is_found() -> None:
    world = World()
    world.say(opened())
    world.append(admitted(cap=PRICE), gang("a", price=PRICE))
    assert codes(world.entries) == {"granted_unfunded"}
    world.act()
    world.append(gang("b", price=PRICE + 1))
    assert "price_above_cap" in codes(world.entries)


def test_the_ledger_of_a_job_that_was_not_admitted_is_found() -> None:
    entries = [entry for entry in eventful().entries if type(entry.event).__name__ != "JobAdmitted"]
    assert "job_unknown" in codes(entries)


@pytest.mark.parametrize("by_ms", [1, -1])
def test_an_instant_of_exhaustion_that_is_off_by_a_millisecond_is_found(by_ms: int) -> None:
    world = World()
    world.say(opened(), admitted(cap=90 * DOLLAR))
    world.say(gang("a", price=90 * DOLLAR), *generation(1, "a", ready_ms=START_MS))
    world.act(START_MS + 2 * HOUR)
    assert isinstance(world.ledger()[-1], FundsExhausted)
    assert audit(world.entries).is_balanced

    def off(event: FundsExhausted) -> Event:
        return msgspec.structs.replace(event, exhausted_at_ms=event.exhausted_at_ms + by_ms)

    assert codes(changed(world.entries, FundsExhausted, off)) == {"exhaustion_wrong"}


def mutations(entries: list[Entry], chance: Random) -> list[Entry]:
    """The log with one amount, or one figure of one line, changed."""
    places = [
        place
        for place, entry in enumerate(entries)
        if isinstance(entry.event, LedgerEvent) and (entry.event.transfers or isinstance(entry.event, ChargesPosted))
    ]
    place = chance.choice(places)
    event = entries[place].event
    assert isinstance(event, LedgerEvent)
    by = chance.choice([-1, 1, 1_000])
    if isinstance(event, ChargesPosted | JobClosed) and event.lines and chance.random() < 0.5:
        line = chance.choice(event.lines)
        field = chance.choice(["billable_ms", "due_microusd", "fee_microusd", "gpus", "price_microusd_per_gpu_hour"])
        new = with_lines(event, line.lease, **{field: getattr(line, field) + by})
    else:
        assume(event.transfers)
        chosen = chance.choice(event.transfers).id
        new = with_transfers(
            event,
            lambda one: msgspec.structs.replace(one, amount_microusd=one.amount_microusd + by * (one.id == chosen)),
        )
    return [*entries[:place], entries[place]._replace(event=new), *entries[place + 1 :]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32).map(Random), st.integers(10, 40))
def test_any_amount_or_figure_that_is_changed_in_any_history_is_found(chance: Random, steps: int) -> None:
    history = History(chance)
    history.run(steps)
    assert codes(mutations(history.world.entries, chance)) != set()
