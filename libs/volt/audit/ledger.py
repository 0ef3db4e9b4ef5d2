"""Proves the ledger from the log alone: every movement, every bill, the end of every hold.

    >>> report = audit(entries)
    >>> report.is_balanced, report.charged_microusd == report.paid_microusd + report.fee_microusd
    (True, True)

It shares nothing with billing: it keeps what was said of each job, and reckons each bill anew where it was posted. The
ledger has one writer, which knows at least the ledger when it appends; so a bill has to follow from the log up to some
place behind the ledger's last event before it.
"""

from collections.abc import Callable, Iterable, Iterator

from volt.audit.accounts import SOURCES, Accounts, may_move
from volt.audit.bills import bill_findings, exhaustion_findings, total_findings
from volt.audit.report import Finding, JobBill, LeaseBill, LedgerReport, Stage
from volt.audit.story import Story
from volt.audit.sweep import LATEST_MS, due_microusd, tally
from volt.contracts.clusters import ClusterEvent
from volt.contracts.ids import AccountId, JobId
from volt.contracts.jobs import AccountOpened, JobAdmitted, JobReleaseAccepted
from volt.contracts.ledger import (
    FIRST_CREDIT_MICROUSD,
    AccountCredited,
    ChargesPosted,
    FundsExhausted,
    FundsLow,
    HoldAdjusted,
    JobClosed,
    JobFunded,
    JobUnfunded,
    LedgerEvent,
    MembersFunded,
    hold,
)
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.nodes import BeatsCovered

JobMoney = (
    JobFunded | JobUnfunded | MembersFunded | HoldAdjusted | FundsLow | FundsExhausted | ChargesPosted | JobClosed
)


def audit(entries: Iterable[Entry]) -> LedgerReport:
    """Replays the log from its beginning, in order, as far as it goes; jobs may still be open at its end."""
    auditor = _Auditor()
    for entry in entries:
        auditor.findings.extend(auditor.read(entry))
    return auditor.report()


class _Auditor:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._accounts = Accounts()
        self._stories: dict[JobId, Story] = {}
        self._by_lease: dict[str, Story] = {}
        self._uncredited: set[AccountId] = set()
        self._complete_to_ms = 0
        self._ledger_seq = 0

    def read(self, entry: Entry) -> Iterator[Finding]:
        """Takes in one entry, and says what is wrong with it."""
        match entry.event:
            case AccountOpened(account=account):
                self._uncredited.add(account)
            case JobAdmitted(job=job) as admitted:
                self._stories.setdefault(job, Story.of(admitted))
            case JobReleaseAccepted(job=job) | ClusterEvent(job=job) as fact:
                if job in self._stories:
                    self._stories[job].learn(entry.seq, fact)
            case MarketCleared(gangs=gangs, expired=expired):
                for gang in gangs:
                    yield from self._grant(entry.seq, gang)
                for one in expired:
                    if one.job in self._stories:
                        self._stories[one.job].is_over = True
            case BeatsCovered() as covered:
                self._cover(covered)
            case LedgerEvent() as money:
                yield from self._money(entry.seq, money)
                self._ledger_seq = entry.seq
            case _:
                pass  # What neither costs nor moves anything.

    def report(self) -> LedgerReport:
        """What is known so far."""
        balances = dict(self._accounts.balances_microusd)
        return LedgerReport(
            jobs=tuple(self._job_bill(job, story) for job, story in self._stories.items()),
            balances_microusd=balances,
            issued_microusd=-sum(balances.get(source, 0) for source in SOURCES),
            findings=tuple(self.findings),
        )

    def _grant(self, seq: int, gang: Gang) -> Iterator[Finding]:
        story = self._stories.get(gang.job)
        if story is None or story.is_over:
            return  # A gang behind the end of its job in the log is void.
        cap_microusd = story.cap_microusd_per_gpu_hour
        if cap_microusd is None:
            yield Finding("granted_unfunded", seq, gang.job, "leases were granted before money was on hold")
            return
        if gang.price_microusd_per_gpu_hour > cap_microusd:
            message = f"granted at {gang.price_microusd_per_gpu_hour}, above its cap of {cap_microusd}"
            yield Finding("price_above_cap", seq, gang.job, message)
        story.grant(gang)
        self._by_lease |= {grant.lease: story for grant in gang.grants}

    def _cover(self, event: BeatsCovered) -> None:
        for span in event.spans:
            if span.lease in self._by_lease:
                self._by_lease[span.lease].see(span, self._complete_to_ms)
        self._complete_to_ms = max(self._complete_to_ms, event.complete_to_ms)

    def _money(self, seq: int, event: LedgerEvent) -> Iterator[Finding]:
        for transfer in event.transfers:
            yield from self._accounts.replay(seq, transfer)
        if isinstance(event, AccountCredited):
            yield from self._credit(seq, event)
        elif isinstance(event, JobMoney) and event.job in self._stories:
            story = self._stories[event.job]
            yield from _misplaced(seq, event, story.account)
            yield from self._job_money(seq, event, story)
        else:
            yield Finding("job_unknown", seq, event.account, f"{type(event).__name__} of a job that was not admitted")

    def _credit(self, seq: int, event: AccountCredited) -> Iterator[Finding]:
        yield from _misplaced(seq, event, event.account)
        amount_microusd = sum(transfer.amount_microusd for transfer in event.transfers)
        if event.account not in self._uncredited or amount_microusd != FIRST_CREDIT_MICROUSD:
            yield Finding("credit_unasked", seq, event.account, f"{amount_microusd} micro-dollars were not to be given")
        self._uncredited.discard(event.account)

    def _job_money(self, seq: int, event: JobMoney, story: Story) -> Iterator[Finding]:
        if story.closed_seq or story.is_unfunded:
            yield Finding("after_close", seq, event.job, f"{type(event).__name__} behind the end of the account")
        for transfer in event.transfers:
            story.move(event.job, transfer)
        match event:
            case JobFunded(cap_microusd_per_gpu_hour=cap_microusd):
                story.cap_microusd_per_gpu_hour = cap_microusd
            case JobUnfunded():
                story.is_unfunded = True
            case FundsExhausted() as exhausted:
                _, findings = self._likeliest(story, lambda known: exhaustion_findings(story, seq, known, exhausted))
                yield from findings
                story.learn(seq, exhausted)
            case ChargesPosted() | JobClosed() as bill:
                yield from self._bill(seq, bill, story)
            case MembersFunded() | HoldAdjusted() | FundsLow():
                pass

    def _bill(self, seq: int, event: ChargesPosted | JobClosed, story: Story) -> Iterator[Finding]:
        known, findings = self._likeliest(
            story, lambda known: bill_findings(story, seq, known, self._complete_to_ms, event)
        )
        yield from findings
        story.lines |= {line.lease: line for line in event.lines}
        yield from total_findings(story, seq, event)
        if isinstance(event, ChargesPosted):
            return
        if not story.is_over:
            yield Finding("closed_before_end", seq, event.job, "the last bill of a job that goes on")
        left_microusd = self._accounts.balances_microusd[hold(event.job)]
        if left_microusd != 0:
            yield Finding("hold_left", seq, event.job, f"{left_microusd} micro-dollars are still on hold")
        story.closed_seq, story.facts_billed = seq, known

    def _likeliest(self, story: Story, findings_by: Callable[[int], Iterable[Finding]]) -> tuple[int, list[Finding]]:
        """How many facts the writer knew, and what is wrong then: nothing, or what is wrong had it known all."""
        readings = [(known, list(findings_by(known))) for known in story.readings(self._ledger_seq)]
        return next((reading for reading in readings if not reading[1]), readings[0])

    def _job_bill(self, job: JobId, story: Story) -> JobBill:
        is_closed = bool(story.closed_seq)
        tallied = tally(
            story,
            story.facts_billed if is_closed else len(story.facts),
            LATEST_MS if is_closed else self._complete_to_ms,
        )
        return JobBill(
            job=job,
            account=story.account,
            stage=_stage(story),
            leases=tuple(
                LeaseBill(
                    lease=lease,
                    node=leased.node,
                    provider=leased.provider,
                    gpus=leased.gpus,
                    price_microusd_per_gpu_hour=leased.price_microusd_per_gpu_hour,
                    covered_ms=tallied[lease].covered_ms,
                    billable_ms=tallied[lease].billable_ms,
                    due_microusd=due_microusd(leased, tallied[lease].billable_ms),
                    posted_microusd=story.lines[lease].due_microusd if lease in story.lines else 0,
                )
                for lease, leased in story.leases.items()
            ),
            charged_microusd=sum(line.due_microusd for line in story.lines.values()),
            paid_microusd=sum(story.paid_microusd.values()),
            fee_microusd=story.fee_microusd,
            held_microusd=self._accounts.balances_microusd[hold(job)],
        )


def _misplaced(seq: int, event: LedgerEvent, buyer: AccountId) -> Iterator[Finding]:
    for transfer in event.transfers:
        if not may_move(event, buyer, transfer):
            message = f"{transfer.id}: {type(event).__name__} may not move {transfer.debit} to {transfer.credit}"
            yield Finding("transfer_misplaced", seq, transfer.debit, message)


def _stage(story: Story) -> Stage:
    if story.closed_seq:
        return "closed"
    if story.is_unfunded:
        return "unfunded"
    return "ended" if story.is_over else "open"
