"""What the state of the money calls for, and billing as the runtime runs it.

All of it goes to the one subject `log.ledger`, so one event is found at a time, the most pressing first.
"""

from collections.abc import Mapping
from typing import assert_never

from volt.contracts.ids import AccountId, JobId
from volt.contracts.ledger import (
    CREDIT,
    FIRST_CREDIT_MICROUSD,
    AccountCredited,
    FundsExhausted,
    FundsLow,
    HoldAdjusted,
    JobFunded,
    JobUnfunded,
    LedgerEvent,
    MembersFunded,
    Transfer,
    hold,
    wallet,
)
from volt.contracts.subjects import (
    ALL_ACCOUNTS,
    ALL_BIDS,
    ALL_CLUSTERS,
    ALL_JOBS,
    LOG_COVER,
    LOG_LEDGER,
    LOG_MARKET,
)
from volt.runtime.engine import Definition
from volt_billing import holds, postings
from volt_billing.domain import evolve
from volt_billing.states import (
    NEVER_MS,
    Closed,
    Closing,
    Dropped,
    Held,
    Low,
    Metered,
    Requested,
    Running,
    State,
    Terms,
    Unfunded,
)


def effects(state: State, at_ms: int) -> tuple[LedgerEvent, ...]:
    """The next event of the ledger, if the state calls for one. Credits come first: they may fund a job."""
    for account in state.uncredited:
        return (_credit(account, at_ms),)
    for job in state.agenda.due(at_ms, state.complete_to_ms):
        event = _due(state, job, at_ms)
        if event is not None:
            return (event,)
    return ()


def _due(state: State, job: JobId, at_ms: int) -> LedgerEvent | None:
    match state.jobs[job]:
        case Requested(terms):
            return _fund(state, job, terms, at_ms)
        case Dropped() as dropped:
            return postings.closing_of_dropped(job, dropped, at_ms)
        case Metered(running):
            return _while_running(state, job, running, at_ms) or _renew(state, job, running, at_ms)
        case Low(running, exhausted_at_ms):
            return _while_running(state, job, running, at_ms) or _run_out(state, job, running, exhausted_at_ms, at_ms)
        case Closing() as closing:
            return _close(state, job, closing, at_ms)
        case Held() | Closed() | Unfunded():
            return None
        case unknown:
            assert_never(unknown)


def _credit(account: AccountId, at_ms: int) -> AccountCredited:
    transfer = Transfer(
        id=f"{account}/first-credit", debit=CREDIT, credit=wallet(account), amount_microusd=FIRST_CREDIT_MICROUSD
    )
    return AccountCredited(account=account, at_ms=at_ms, transfers=(transfer,))


def _fund(state: State, job: JobId, terms: Terms, at_ms: int) -> JobFunded | JobUnfunded:
    cap_microusd = holds.effective_cap(state, terms)
    needed_microusd = holds.cost_microusd(terms.first_period_ms, terms.gpus * cap_microusd)
    balance_microusd = _balance_microusd(state, terms.account)
    if needed_microusd > balance_microusd:
        return JobUnfunded(
            account=terms.account,
            at_ms=at_ms,
            job=job,
            needed_microusd=needed_microusd,
            balance_microusd=balance_microusd,
        )
    return JobFunded(
        account=terms.account,
        at_ms=at_ms,
        job=job,
        cap_microusd_per_gpu_hour=cap_microusd,
        transfers=_set_aside(job, terms.account, 0, needed_microusd),
    )


def _while_running(state: State, job: JobId, running: Running, at_ms: int) -> LedgerEvent | None:
    """What a job needs whether its money is low or not."""
    if not running.is_settled:
        return _settle(job, running, at_ms)
    if running.wanted:
        return _fund_members(state, job, running, running.wanted, at_ms)
    if running.growth and _can_grow(state, running, at_ms):
        return _fund_members(state, job, running, running.growth, at_ms)
    return postings.charges_due(job, running, state.cover, state.complete_to_ms, at_ms)


def _settle(job: JobId, running: Running, at_ms: int) -> HoldAdjusted:
    """Prices are known: what is held beyond a first period at them goes back."""
    spare_microusd = max(0, holds.spare_microusd(running, at_ms))
    return _adjusted(job, running, -spare_microusd, at_ms)


def _can_grow(state: State, running: Running, at_ms: int) -> bool:
    """Whether the wallet pays for all that the cluster is to grow by; if not, the growth waits."""
    lacking_microusd = holds.wanted_microusd(running, at_ms, len(running.growth))
    return lacking_microusd <= _balance_microusd(state, running.terms.account)


def _fund_members(state: State, job: JobId, running: Running, wanted: Mapping[int, int], at_ms: int) -> MembersFunded:
    """Holds at the cap for wanted members; where the wallet is short, they have to do with what is held."""
    generation = min(wanted.values())
    attempts = tuple(attempt for attempt, number in wanted.items() if number == generation)
    account = running.terms.account
    lacking_microusd = holds.wanted_microusd(running, at_ms, len(attempts))
    affordable = lacking_microusd <= _balance_microusd(state, account)
    return MembersFunded(
        account=account,
        at_ms=at_ms,
        job=job,
        generation=generation,
        attempts=attempts,
        cap_microusd_per_gpu_hour=running.cap_microusd_per_gpu_hour,
        transfers=_set_aside(job, account, running.movements, lacking_microusd if affordable else 0),
    )


def _renew(state: State, job: JobId, running: Running, at_ms: int) -> LedgerEvent | None:
    if at_ms < holds.renewal_due_ms(running):
        return None
    top_up = holds.renewal(running, _balance_microusd(state, running.terms.account), at_ms)
    if top_up.is_full:
        return _adjusted(job, running, top_up.amount_microusd, at_ms)
    return _low(job, running, top_up, at_ms)


def _run_out(state: State, job: JobId, running: Running, told_ms: int, at_ms: int) -> LedgerEvent | None:
    """Renews after all, or tells of another instant, or ends the job at the instant that it was told."""
    if running.covers_to_ms == NEVER_MS:
        return None  # While nothing runs, nothing is used up.
    top_up = holds.renewal(running, _balance_microusd(state, running.terms.account), at_ms)
    if top_up.is_full:
        return _adjusted(job, running, top_up.amount_microusd, at_ms)
    if running.covers_to_ms != told_ms or top_up.covers_to_ms - running.covers_to_ms >= holds.RENEWAL_MS_MIN:
        return _low(job, running, top_up, at_ms)
    return _exhausted(job, running, at_ms) if at_ms >= holds.exhausted_ms(running) else None


def _close(state: State, job: JobId, closing: Closing, at_ms: int) -> LedgerEvent | None:
    """Pays what was used before the hold could be renewed, or ends the job where the money did; then the last bill."""
    running = closing.running
    top_up = holds.arrears(running, _balance_microusd(state, running.terms.account), closing.ended_ms)
    if top_up is None:
        return postings.closing_due(job, closing, state.cover, state.complete_to_ms, at_ms)
    if top_up.amount_microusd > 0:
        return _adjusted(job, running, top_up.amount_microusd, at_ms)
    return _exhausted(job, running, at_ms)


def _exhausted(job: JobId, running: Running, at_ms: int) -> FundsExhausted:
    return FundsExhausted(account=running.terms.account, at_ms=at_ms, job=job, exhausted_at_ms=running.covers_to_ms)


def _adjusted(job: JobId, running: Running, amount_microusd: int, at_ms: int) -> HoldAdjusted:
    account = running.terms.account
    return HoldAdjusted(
        account=account,
        at_ms=at_ms,
        job=job,
        covers_to_ms=holds.lasts_to_ms(running, running.funded_microusd + amount_microusd, at_ms),
        transfers=_set_aside(job, account, running.movements, amount_microusd),
    )


def _low(job: JobId, running: Running, top_up: holds.TopUp, at_ms: int) -> FundsLow:
    account = running.terms.account
    return FundsLow(
        account=account,
        at_ms=at_ms,
        job=job,
        exhausted_at_ms=top_up.covers_to_ms,
        transfers=_set_aside(job, account, running.movements, top_up.amount_microusd),
    )


def _set_aside(job: JobId, account: AccountId, movement: int, amount_microusd: int) -> tuple[Transfer, ...]:
    """The job's next movement between wallet and hold; a negative amount goes back to the wallet."""
    if amount_microusd == 0:
        return ()
    debit, credit = wallet(account), hold(job)
    if amount_microusd < 0:
        debit, credit = credit, debit
    name = f"{job}/hold/{movement}"
    return (Transfer(id=name, debit=debit, credit=credit, amount_microusd=abs(amount_microusd)),)


def _balance_microusd(state: State, account: AccountId) -> int:
    return state.balances_microusd.get(wallet(account), 0)


DEFINITION = Definition(
    name="billing",
    reads=(ALL_ACCOUNTS, ALL_JOBS, ALL_BIDS, LOG_MARKET, ALL_CLUSTERS, LOG_COVER, LOG_LEDGER),
    initial=State,
    evolve=evolve,
    effects=effects,
)
