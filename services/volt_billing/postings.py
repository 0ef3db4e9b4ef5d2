"""What is posted, and when: charges at multiples of a period, and the last bill of a job.

A line is cumulative; what moves is the line less what was posted of its lease before. Where an instant became known
late (a release stored after a posting that it precedes), less is due than was posted, and the difference goes back.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from volt.contracts.ids import AccountId, JobId
from volt.contracts.ledger import FEE, BillLine, ChargesPosted, JobClosed, Transfer, earned, hold, pending, wallet
from volt_billing.metering import billable_ms, due_microusd, fee_microusd, windows
from volt_billing.states import NEVER_MS, Closing, Cover, Dropped, Running

POSTING_PERIOD_MS = 60_000
LINES_PER_MESSAGE_MAX = 256
"""Lines with their transfers that surely fit a message. More wait for the next posting."""


def charges_due(job: JobId, running: Running, cover: Cover, complete_to_ms: int, at_ms: int) -> ChargesPosted | None:
    """The posting at the last multiple of the period that is complete, unless nothing could have become due by it."""
    through_ms = min(complete_to_ms, running.covers_to_ms) // POSTING_PERIOD_MS * POSTING_PERIOD_MS
    if through_ms <= running.posted_to_ms:
        return None
    touched = {window.lease for window in windows(running, through_ms) if window.to_ms > running.posted_to_ms}
    if not touched:
        return None
    lines = [
        line
        for line in _lines(running, cover, through_ms)
        if line.lease in touched or line.due_microusd != running.leases[line.lease].line.due_microusd
    ]
    return _charges(job, running, lines, at_ms)


def next_posting_ms(running: Running) -> int:
    """The next multiple of the period by which something can become due, and the hold pays for it."""
    begins_ms = [
        window.from_ms for window in windows(running, running.covers_to_ms) if window.to_ms > running.posted_to_ms
    ]
    if not begins_ms:
        return NEVER_MS
    next_ms = (max(running.posted_to_ms, min(begins_ms)) // POSTING_PERIOD_MS + 1) * POSTING_PERIOD_MS
    return next_ms if next_ms <= running.covers_to_ms else NEVER_MS


def settled_ms(closing: Closing) -> int:
    """The end of all generations, to which cover must be complete; 0 if none was ever ready."""
    return max((window.to_ms for window in windows(closing.running, closing.ended_ms)), default=0)


def closing_due(
    job: JobId, closing: Closing, cover: Cover, complete_to_ms: int, at_ms: int
) -> ChargesPosted | JobClosed | None:
    """The last bill, once cover is complete to the end of every generation; if it is too long, a part before it."""
    running, end_ms = closing.running, settled_ms(closing)
    if complete_to_ms < end_ms:
        return None
    through_ms = end_ms or closing.ended_ms
    lines = _lines(running, cover, through_ms)
    if len(lines) > LINES_PER_MESSAGE_MAX:
        lines = [line for line in lines if _is_news(running, line)]
        early = [line for line in lines if running.leases[line.lease].line.through_ms < through_ms]
        if len(lines) > LINES_PER_MESSAGE_MAX and early:
            return _charges(job, running, early, at_ms)
    return JobClosed(
        account=running.terms.account, at_ms=at_ms, job=job, lines=tuple(lines), transfers=_final(job, running, lines)
    )


def closing_of_dropped(job: JobId, dropped: Dropped, at_ms: int) -> JobClosed:
    """The end of a job that was over before anything was granted: what is held goes back."""
    account = dropped.terms.account
    rest = tuple(_moved(f"{job}/rest", hold(job), wallet(account), dropped.funded_microusd))
    return JobClosed(account=account, at_ms=at_ms, job=job, lines=(), transfers=rest)


def _lines(running: Running, cover: Cover, through_ms: int) -> list[BillLine]:
    """What every lease owes up to `through_ms`."""
    billable = billable_ms(running, cover, through_ms)
    return [_line(lease.line, through_ms, billable[lease_id]) for lease_id, lease in running.leases.items()]


def _line(known: BillLine, through_ms: int, billable_ms: int) -> BillLine:
    due = due_microusd(billable_ms, known.gpus, known.price_microusd_per_gpu_hour)
    return msgspec.structs.replace(
        known, through_ms=through_ms, billable_ms=billable_ms, due_microusd=due, fee_microusd=fee_microusd(due)
    )


def _is_news(running: Running, line: BillLine) -> bool:
    known = running.leases[line.lease].line
    return (known.billable_ms, known.due_microusd) != (line.billable_ms, line.due_microusd)


def _charges(job: JobId, running: Running, lines: list[BillLine], at_ms: int) -> ChargesPosted:
    """As many lines as fit: first those with which money goes back, then those that were posted longest ago."""

    def urgency(line: BillLine) -> tuple[bool, int]:
        known = running.leases[line.lease].line
        return line.due_microusd >= known.due_microusd, known.through_ms

    fitting = sorted(lines, key=urgency)[:LINES_PER_MESSAGE_MAX]
    return ChargesPosted(
        account=running.terms.account,
        at_ms=at_ms,
        job=job,
        lines=tuple(fitting),
        transfers=tuple(_posted(job, running, fitting, "")),
    )


def _final(job: JobId, running: Running, lines: list[BillLine]) -> tuple[Transfer, ...]:
    """The last postings, every provider's share for the whole job, and what is left of the hold."""
    latest = {lease_id: lease.line for lease_id, lease in running.leases.items()}
    latest |= {line.lease: line for line in lines}
    shares_microusd: dict[AccountId, int] = defaultdict(int)
    for line in latest.values():
        shares_microusd[line.provider] += line.due_microusd - line.fee_microusd
    transfers = list(_posted(job, running, lines, "final-"))
    for provider, share_microusd in shares_microusd.items():
        transfers += _moved(f"{job}/earned/{provider}", pending(provider), earned(provider), share_microusd)
    rest_microusd = running.funded_microusd - sum(line.due_microusd for line in latest.values())
    transfers += _moved(f"{job}/rest", hold(job), wallet(running.terms.account), rest_microusd)
    return tuple(transfers)


def _posted(job: JobId, running: Running, lines: Iterable[BillLine], which: str) -> list[Transfer]:
    """What moves for these lines; what goes back to the hold comes first, so that the hold always has it."""
    transfers: list[Transfer] = []
    for line in lines:
        known = running.leases[line.lease].line
        fee = line.fee_microusd - known.fee_microusd
        net = line.due_microusd - known.due_microusd - fee
        name = f"{line.lease}/{line.through_ms}/{which}"
        transfers += _moved(f"{name}net", hold(job), pending(line.provider), net)
        transfers += _moved(f"{name}fee", hold(job), FEE, fee)
    return sorted(transfers, key=lambda transfer: transfer.credit != hold(job))


def _moved(name: str, debit: str, credit: str, amount_microusd: int) -> Iterator[Transfer]:
    """The transfer of an amount, if there is any; a negative one goes the other way."""
    if amount_microusd > 0:
        yield Transfer(id=name, debit=debit, credit=credit, amount_microusd=amount_microusd)
    if amount_microusd < 0:
        yield Transfer(id=f"{name}-back", debit=credit, credit=debit, amount_microusd=-amount_microusd)
