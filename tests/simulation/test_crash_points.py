"""Each service dies around each of its writes, in turn, and nobody pays for it; and any prefix of the log will do.

No write is left out: the undisturbed run is counted, and is played again for every append and publication of every
service, dying before it and after it. Time stands still between a death and the next life, so that the bill has to be
the same to the micro-dollar.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.simulation.wire import Crash, Moment
from tests.simulation.world import BUYER, JOB, SERVICES, Outcome, play
from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.contracts.clusters import ClusterReady, ClusterReleased, MemberLost, MembersWanted
from volt.contracts.ledger import BillLine, ChargesPosted, JobClosed, LedgerEvent, hold, wallet
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeLost

E = TypeVar("E", bound=Event)
Movement = tuple[str, str, int]
HOLDS = frozenset({wallet(BUYER), hold(JOB)})


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return asyncio.run(play())


def test_the_undisturbed_run_loses_a_node_replaces_it_and_completes(undisturbed: Outcome) -> None:
    assert set(undisturbed.writes) == set(SERVICES)
    assert all(undisturbed.writes.values())
    assert undisturbed.deaths.total() == 0
    assert list(problems(undisturbed)) == []
    assert [lost.cause for lost in all_of(undisturbed, NodeLost)] == ["silent"]
    assert [lost.cause for lost in all_of(undisturbed, MemberLost)] == ["node_lost"]
    assert len(all_of(undisturbed, ClusterReady)) == 2
    lines = last_lines(undisturbed)
    assert len(lines) == 3
    assert all(line.due_microusd > 0 for line in lines)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_dies_at_any_of_its_writes_changes_no_bill(
    service: str, moment: Moment, undisturbed: Outcome
) -> None:
    found = [
        f"{moment} write {write} to {subject}: {problem}"
        for write, subject in enumerate(undisturbed.writes[service], start=1)
        for problem in _disturbance(Crash(service, write, moment), undisturbed)
    ]
    assert found == []


def _disturbance(crash: Crash, undisturbed: Outcome) -> Iterator[str]:
    """What a run with this crash has that the undisturbed one has not."""
    try:
        outcome = asyncio.run(play(crash))
    except AssertionError as error:
        yield str(error)
        return
    if outcome.deaths != Counter({crash.service: 1}):
        yield f"deaths: {outcome.deaths}"
    yield from problems(outcome)
    bills, expected_bills = bill(outcome), bill(undisturbed)
    if bills != expected_bills:
        yield f"billed {bills}, not {expected_bills}"
    if balances(outcome) != balances(undisturbed):
        yield f"balances {balances(outcome)}, not {balances(undisturbed)}"
    moved, expected = movements(outcome), movements(undisturbed)
    if crash.service == "health-monitor" and loss_after_ready_ms(outcome) != loss_after_ready_ms(undisturbed):
        # A new monitor counts silence afresh, so the loss came later, and what is on hold follows the time it took.
        moved, expected = charged(moved), charged(expected)
    else:
        said, expected_said = facts(outcome), facts(undisturbed)
        if said != expected_said:
            yield f"said {said - expected_said} more and {expected_said - said} less"
    if moved != expected:
        yield f"moved {moved - expected} more and {expected - moved} less"


def problems(outcome: Outcome) -> Iterator[str]:
    """What is wrong with a run by itself."""
    reasons = [released.reason for released in all_of(outcome, ClusterReleased)]
    if reasons != ["completed"]:
        yield f"released: {reasons}"
    if len(all_of(outcome, JobClosed)) != 1:
        yield f"closed {len(all_of(outcome, JobClosed))} times"
    if outcome.stuck or outcome.dead_letters:
        yield f"stuck: {outcome.stuck}, dead: {outcome.dead_letters}"
    yield from (str(finding) for finding in audit(outcome.entries).findings)
    market = audit_market(outcome.entries)
    yield from (str(finding) for finding in market.findings)
    if market.held:
        yield f"{market.held} leases are never cleared"
    yield from _unanswered_losses(outcome)


def _unanswered_losses(outcome: Outcome) -> Iterator[str]:
    lost = [event.lease for event in all_of(outcome, MemberLost)]
    wanted = [one for event in all_of(outcome, MembersWanted) for one in event.wanted]
    if len(lost) != 1 or [one.replaces for one in wanted] != lost:
        yield f"lost {lost}, replaced {wanted}"
    gangs = [gang for event in all_of(outcome, MarketCleared) for gang in event.gangs]
    if [(gang.attempt, len(gang.grants)) for gang in gangs] != [(0, 2), *((one.attempt, 1) for one in wanted)]:
        yield f"granted {gangs}"


def all_of(outcome: Outcome, kind: type[E]) -> list[E]:
    return [entry.event for entry in outcome.entries if isinstance(entry.event, kind)]


def facts(outcome: Outcome) -> Counter[tuple[str, str]]:
    """What happened and to which lease or node, how often."""
    return Counter(
        (type(event).__name__, str(getattr(event, "lease", getattr(event, "node", ""))))
        for event in all_of(outcome, Event)
    )


def movements(outcome: Outcome) -> Counter[Movement]:
    """Every movement of money, without its id, which may bear an instant."""
    return Counter(
        (transfer.debit, transfer.credit, transfer.amount_microusd)
        for event in all_of(outcome, LedgerEvent)
        for transfer in event.transfers
    )


def charged(moved: Counter[Movement]) -> Counter[Movement]:
    """The movements but those between the buyer's wallet and the hold."""
    return Counter({move: count for move, count in moved.items() if {*move[:2]} != HOLDS})


def balances(outcome: Outcome) -> Counter[str]:
    found: Counter[str] = Counter()
    for (debit, credit, amount_microusd), count in movements(outcome).items():
        found[debit] -= amount_microusd * count
        found[credit] += amount_microusd * count
    return found


def bill(outcome: Outcome) -> list[tuple[str, str, int, int, int, int, int]]:
    """What each lease was billed in the end."""
    return sorted(
        (
            line.lease,
            line.provider,
            line.gpus,
            line.price_microusd_per_gpu_hour,
            line.billable_ms,
            line.due_microusd,
            line.fee_microusd,
        )
        for line in last_lines(outcome)
    )


def last_lines(outcome: Outcome) -> list[BillLine]:
    lines: dict[str, BillLine] = {}
    for entry in outcome.entries:
        if isinstance(entry.event, ChargesPosted | JobClosed):
            lines |= {line.lease: line for line in entry.event.lines}
    return list(lines.values())


def loss_after_ready_ms(outcome: Outcome) -> int:
    return all_of(outcome, NodeLost)[0].at_ms - all_of(outcome, ClusterReady)[0].at_ms
