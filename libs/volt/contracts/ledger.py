"""Money. One subject, one writer; every event carries the balanced transfers that it is about."""

from volt.contracts.ids import AccountId, JobId, LeaseId
from volt.contracts.messages import Event, Value
from volt.contracts.subjects import LOG_LEDGER

FEE_BASIS_POINTS = 500
FIRST_CREDIT_MICROUSD = 100_000_000
FIRST_HOLD_SECONDS = 3_600
EXTERNAL = "external"
FEE = "platform_fee"
CREDIT = "credit_grant"


def wallet(account: str) -> str:
    return f"wallet/{account}"


def hold(job: str) -> str:
    return f"hold/{job}"


def pending(account: str) -> str:
    return f"pending/{account}"


def earned(account: str) -> str:
    return f"earned/{account}"


class Transfer(Value, frozen=True, kw_only=True):
    """Moves `amount_microusd` (more than zero) between two ledger accounts. The id is derived from what it is for,
    so that the same movement cannot be made twice."""

    id: str
    debit: str
    """Where it comes from."""
    credit: str
    """Where it goes to."""
    amount_microusd: int


class BillLine(Value, frozen=True, kw_only=True):
    """What a lease owes up to an instant, cumulative.

    `billable_ms` counts node-milliseconds; due = floor(billable ms x GPUs x price / 3,600,000).
    """

    lease: LeaseId
    provider: AccountId
    gpus: int
    price_microusd_per_gpu_hour: int
    through_ms: int
    billable_ms: int
    due_microusd: int
    fee_microusd: int
    """The platform's part of what is due."""


class LedgerEvent(Event, frozen=True, kw_only=True):
    """An event of `log.ledger`."""

    account: AccountId
    """Whose money it is about."""
    at_ms: int
    transfers: tuple[Transfer, ...] = ()

    def subject(self) -> str:
        return LOG_LEDGER


class AccountCredited(LedgerEvent, frozen=True, kw_only=True):
    """A new account's first credit."""


class JobFunded(LedgerEvent, frozen=True, kw_only=True):
    """A first period is on hold at the effective cap, which matcher and hold alike go by. The job may be matched."""

    job: JobId
    cap_microusd_per_gpu_hour: int


class JobUnfunded(LedgerEvent, frozen=True, kw_only=True):
    """The wallet does not hold a first period; the job ends here."""

    job: JobId
    needed_microusd: int
    balance_microusd: int


class MembersFunded(LedgerEvent, frozen=True, kw_only=True):
    """The wanted members of a generation may be matched, at the job's cap."""

    job: JobId
    generation: int
    attempts: tuple[int, ...]
    cap_microusd_per_gpu_hour: int


class HoldAdjusted(LedgerEvent, frozen=True, kw_only=True):
    """The hold follows the true price, or was renewed. `covers_to_ms` is when it would be used up."""

    job: JobId
    covers_to_ms: int


class FundsLow(LedgerEvent, frozen=True, kw_only=True):
    """The hold cannot be renewed in full; at `exhausted_at_ms` it is used up."""

    job: JobId
    exhausted_at_ms: int


class FundsExhausted(LedgerEvent, frozen=True, kw_only=True):
    """The hold was used up at the computed instant `exhausted_at_ms`; nothing after it is billed."""

    job: JobId
    exhausted_at_ms: int


class ChargesPosted(LedgerEvent, frozen=True, kw_only=True):
    """What became due since the last posting."""

    job: JobId
    lines: tuple[BillLine, ...]


class JobClosed(LedgerEvent, frozen=True, kw_only=True):
    """The final posting and the end of the hold, in one. Nothing is posted or held for the job after it."""

    job: JobId
    lines: tuple[BillLine, ...]
