"""Replays every transfer, and says which may not have been."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from volt.audit.report import Finding
from volt.audit.story import PENDING
from volt.contracts.ids import AccountId, JobId
from volt.contracts.ledger import (
    CREDIT,
    EXTERNAL,
    FEE,
    AccountCredited,
    ChargesPosted,
    FundsLow,
    HoldAdjusted,
    JobClosed,
    JobFunded,
    LedgerEvent,
    MembersFunded,
    Transfer,
    earned,
    hold,
    wallet,
)

SOURCES = frozenset({CREDIT, EXTERNAL})


@dataclass
class Accounts:
    """The balances as the transfers make them."""

    balances_microusd: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: set[str] = field(default_factory=set)

    def replay(self, seq: int, transfer: Transfer) -> Iterator[Finding]:
        """Moves the money, whatever is wrong with it."""
        if transfer.amount_microusd <= 0:
            message = f"{transfer.id} moves {transfer.amount_microusd} micro-dollars"
            yield Finding("transfer_not_positive", seq, transfer.debit, message)
        if transfer.id in self.seen:
            yield Finding("transfer_repeated", seq, transfer.debit, f"{transfer.id} was made before")
        self.seen.add(transfer.id)
        self.balances_microusd[transfer.debit] -= transfer.amount_microusd
        self.balances_microusd[transfer.credit] += transfer.amount_microusd
        for account in (transfer.debit, transfer.credit):
            if self.balances_microusd[account] < 0 and account not in SOURCES:
                message = f"{transfer.id} leaves {account} at {self.balances_microusd[account]} micro-dollars"
                yield Finding("balance_negative", seq, account, message)


def may_move(event: LedgerEvent, buyer: AccountId, transfer: Transfer) -> bool:
    """Whether an event of this kind, about this buyer's money, moves money between these two accounts."""
    way, own = (transfer.debit, transfer.credit), wallet(buyer)
    match event:
        case AccountCredited():
            return transfer.debit in SOURCES and transfer.credit == own
        case JobFunded(job=job) | MembersFunded(job=job) | FundsLow(job=job):
            return way == (own, hold(job))
        case HoldAdjusted(job=job):
            return way in ((own, hold(job)), (hold(job), own))
        case ChargesPosted(job=job):
            return _is_charge(way, job)
        case JobClosed(job=job):
            return _is_charge(way, job) or way == (hold(job), own) or _is_pay_out(way)
        case _:
            return False


def _is_charge(way: tuple[str, str], job: JobId) -> bool:
    debit, credit = way if way[0] == hold(job) else way[::-1]
    return debit == hold(job) and (credit == FEE or credit.startswith(PENDING))


def _is_pay_out(way: tuple[str, str]) -> bool:
    debit, credit = way
    return debit.startswith(PENDING) and credit == earned(debit.removeprefix(PENDING))
