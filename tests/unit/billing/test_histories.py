"""Whatever happens, in whatever order the log shows it: no money appears, vanishes or moves twice."""

from collections import Counter
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.billing.builders import kinds
from tests.unit.billing.histories import History, refolded
from volt.audit.ledger import audit
from volt.contracts.ledger import (
    CREDIT,
    FEE,
    FEE_BASIS_POINTS,
    BillLine,
    ChargesPosted,
    JobClosed,
    JobUnfunded,
    earned,
    hold,
    pending,
)
from volt.contracts.units import BASIS_POINTS
from volt_billing.states import Closed, Unfunded

chances = st.integers(0, 2**32).map(Random)
thorough = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(chances, st.integers(1, 60))
def test_the_audit_finds_nothing_wrong_and_every_account_of_a_job_is_closed(chance: Random, steps: int) -> None:
    history = History(chance)
    history.run(steps)
    world = history.world
    report = audit(world.entries)
    assert report.findings == ()
    assert report.charged_microusd == report.paid_microusd + report.fee_microusd
    assert {job.stage for job in report.jobs} <= {"closed", "unfunded"}
    assert all(isinstance(job, Closed | Unfunded) for job in world.state.jobs.values())
    assert all(world.balance(hold(cluster.job)) == 0 for cluster in history.clusters)
    assert all(world.balance(account) == amount for account, amount in report.balances_microusd.items())


@thorough
@given(chances, st.integers(1, 60))
def test_money_is_conserved_and_nobody_owes_at_any_place_in_the_log(chance: Random, steps: int) -> None:
    history = History(chance)
    history.run(steps)
    balances: Counter[str] = Counter()
    for event in history.world.ledger():
        for transfer in event.transfers:
            balances[transfer.debit] -= transfer.amount_microusd
            balances[transfer.credit] += transfer.amount_microusd
            assert all(amount >= 0 for account, amount in balances.items() if account != CREDIT)
    assert balances.total() == 0


@thorough
@given(chances, st.integers(1, 60))
def test_what_buyers_are_charged_is_what_providers_get_and_the_fee_bill_by_bill(chance: Random, steps: int) -> None:
    """Budget balance: nothing is left over and nothing is missing, not even by rounding."""
    history = History(chance)
    history.run(steps)
    lines: dict[str, BillLine] = {}
    got: Counter[str] = Counter()
    for event in history.world.ledger():
        if isinstance(event, ChargesPosted | JobClosed):
            lines |= {line.lease: line for line in event.lines}
        for transfer in event.transfers:
            got[transfer.credit] += transfer.amount_microusd
            got[transfer.debit] -= transfer.amount_microusd
        providers = sum(amount for account, amount in got.items() if account.startswith((pending(""), earned(""))))
        assert providers + got[FEE] == sum(line.due_microusd for line in lines.values())
        assert got[FEE] == sum(line.due_microusd * FEE_BASIS_POINTS // BASIS_POINTS for line in lines.values())


@thorough
@given(chances, st.integers(1, 60))
def test_a_billing_that_starts_afresh_knows_the_same_and_has_nothing_to_add(chance: Random, steps: int) -> None:
    history = History(chance)
    history.run(steps)
    assert refolded(history) == history.world.state
    history.world.restart()
    assert history.world.act(history.world.now_ms + 10**9) == []


@thorough
@given(chances, st.integers(1, 60))
def test_every_job_ends_its_account_once_and_nothing_comes_after(chance: Random, steps: int) -> None:
    history = History(chance)
    history.run(steps)
    for cluster in history.clusters:
        of_job = [event for event in history.world.ledger() if getattr(event, "job", None) == cluster.job]
        assert isinstance(of_job[-1], JobClosed | JobUnfunded)
        names = kinds(of_job)
        assert names.count("JobClosed") + names.count("JobUnfunded") == 1
