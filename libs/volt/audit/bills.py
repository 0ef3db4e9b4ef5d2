"""Checks what the ledger says of one job against what its story says."""

from collections import defaultdict
from collections.abc import Iterator

from volt.audit.report import Code, Finding
from volt.audit.story import Story
from volt.audit.sweep import LATEST_MS, Tally, due_microusd, fee_microusd, last_instant_ms, tally
from volt.contracts.ids import AccountId
from volt.contracts.ledger import BillLine, ChargesPosted, FundsExhausted, JobClosed
from volt.contracts.units import MS_PER_HOUR


def bill_findings(
    story: Story, seq: int, known_facts: int, complete_to_ms: int, event: ChargesPosted | JobClosed
) -> Iterator[Finding]:
    """What is wrong with a bill, if its writer knew so many facts."""
    tallies: dict[int, dict[str, Tally]] = {}
    for line in event.lines:
        # A job that is closed owes nothing later than its end, so that its last bill has to hold for all time.
        through_ms = line.through_ms if isinstance(event, ChargesPosted) else LATEST_MS
        if through_ms not in tallies:
            tallies[through_ms] = tally(story, known_facts, through_ms)
        for code, message in _line_problems(story, line, tallies[through_ms]):
            yield Finding(code, seq, line.lease, message)
        if isinstance(event, ChargesPosted) and line.through_ms > complete_to_ms:
            message = f"billed to {line.through_ms}; cover is complete to {complete_to_ms}"
            yield Finding("charged_early", seq, line.lease, message)
    if isinstance(event, JobClosed):
        yield from _closing_findings(story, seq, known_facts, complete_to_ms, event)


def total_findings(story: Story, seq: int, event: ChargesPosted | JobClosed) -> Iterator[Finding]:
    """What has moved for the job, against the lines that were posted, this event's included."""
    paid_microusd: dict[AccountId, int] = defaultdict(int)
    for line in story.lines.values():
        paid_microusd[line.provider] += line.due_microusd - line.fee_microusd
    for provider in sorted({*paid_microusd, *story.paid_microusd}):
        moved, owed = story.paid_microusd[provider], paid_microusd[provider]
        if moved != owed:
            message = f"{provider} was paid {moved} of {owed} micro-dollars"
            yield Finding("posted_wrong", seq, event.job, message)
        if isinstance(event, JobClosed) and story.earned_microusd[provider] != owed:
            message = f"{provider} earned {story.earned_microusd[provider]} of {owed} micro-dollars"
            yield Finding("earned_wrong", seq, event.job, message)
    fee = sum(line.fee_microusd for line in story.lines.values())
    if story.fee_microusd != fee:
        yield Finding("posted_wrong", seq, event.job, f"the fee is {story.fee_microusd}, not {fee} micro-dollars")


def exhaustion_findings(story: Story, seq: int, known_facts: int, event: FundsExhausted) -> Iterator[Finding]:
    """The hold must pay for all ready time before the instant of exhaustion, and not for a millisecond more."""
    spent, more = (_ready_cost(story, known_facts, event.exhausted_at_ms + step_ms) for step_ms in (0, 1))
    if not spent <= story.funded_microusd * MS_PER_HOUR < more:
        message = f"{story.funded_microusd} micro-dollars are not used up at {event.exhausted_at_ms}"
        yield Finding("exhaustion_wrong", seq, event.job, message)


def _ready_cost(story: Story, known_facts: int, through_ms: int) -> int:
    """In micro-dollars x milliseconds per hour, which is exact."""
    tallied = tally(story, known_facts, through_ms)
    return sum(
        tallied[lease].ready_ms * leased.gpus * leased.price_microusd_per_gpu_hour
        for lease, leased in story.leases.items()
    )


def _line_problems(story: Story, line: BillLine, tallied: dict[str, Tally]) -> Iterator[tuple[Code, str]]:
    leased = story.leases.get(line.lease)
    if leased is None:
        yield "lease_unknown", f"{line.lease} was never granted to this job"
        return
    granted = (leased.provider, leased.gpus, leased.price_microusd_per_gpu_hour)
    billed = (line.provider, line.gpus, line.price_microusd_per_gpu_hour)
    if billed != granted:
        yield "terms_wrong", f"billed as {billed}, granted as {granted}"
    counted = tallied[line.lease]
    if line.billable_ms > counted.covered_ms:
        yield "charged_without_cover", f"{line.billable_ms} ms billed, {counted.covered_ms} ms covered"
    elif line.billable_ms != counted.billable_ms:
        yield "billable_wrong", f"{line.billable_ms} ms billed, {counted.billable_ms} ms are billable"
    due = due_microusd(leased, line.billable_ms)
    if line.due_microusd != due:
        yield "due_wrong", f"{line.due_microusd} micro-dollars billed, {due} are due"
    fee = fee_microusd(line.due_microusd)
    if line.fee_microusd != fee:
        yield "fee_wrong", f"a fee of {line.fee_microusd} micro-dollars, not {fee}"


def _closing_findings(
    story: Story, seq: int, known_facts: int, complete_to_ms: int, event: JobClosed
) -> Iterator[Finding]:
    last_ms = last_instant_ms(story, known_facts)
    if last_ms > complete_to_ms:
        message = f"closed while cover is complete to {complete_to_ms} of {last_ms}"
        yield Finding("charged_early", seq, event.job, message)
    tallied = tally(story, known_facts, LATEST_MS)
    named = {line.lease for line in event.lines}
    for lease, leased in story.leases.items():
        posted = story.lines[lease].due_microusd if lease in story.lines else 0
        due = due_microusd(leased, tallied[lease].billable_ms)
        if lease not in named and posted != due:
            yield Finding("line_missing", seq, lease, f"{posted} micro-dollars were billed of {due}")
