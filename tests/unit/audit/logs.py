"""A log with one eventful job, and ways to change it."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from tests.unit.billing.builders import (
    DOLLAR,
    START_MS,
    World,
    admitted,
    covered,
    ended,
    forming,
    gang,
    generation,
    generation_ended,
    joined,
    lost,
    opened,
    ready,
    released,
    started,
)
from volt.audit.ledger import audit
from volt.audit.report import Code
from volt.contracts.ledger import (
    BillLine,
    ChargesPosted,
    JobClosed,
    LedgerEvent,
    Transfer,
)
from volt.contracts.log import Entry
from volt.contracts.messages import Event

PRICE = 2 * DOLLAR
M = TypeVar("M", bound=Event)


def at(ms: int) -> int:
    return START_MS + ms


def eventful() -> World:
    """Two leases, one lost at 90 s and replaced, charges every minute, all released after three minutes and a half."""
    world = World()
    world.say(opened(), admitted(kind="ddp", nodes=2, cap=PRICE))
    world.say(gang("a", "b", price=PRICE), *generation(1, "a", "b", ready_ms=at(0)))
    world.say(covered(("a", 1, at(0), at(70_000)), ("b", 1, at(0), at(70_000)), complete_to_ms=at(69_000)))
    world.append(covered(("a", 1, at(70_000), at(92_000)), ("b", 1, at(70_000), at(88_000)), complete_to_ms=at(88_000)))
    world.say(lost(1, "b", at_ms=at(90_000)), generation_ended(1, "b", at_ms=at(90_000)))
    world.say(forming(2, "a", at_ms=at(90_001)), gang("c", price=PRICE // 2, generation=2, at_ms=at(91_000)))
    world.say(joined(2, "c", at_ms=at(91_000)), started(2, "a", at_ms=at(95_000)), started(2, "c", at_ms=at(95_000)))
    world.say(ready(2, at_ms=at(95_000)))
    spans = [("a", 2, at(94_000), at(200_000)), ("c", 2, at(94_000), at(220_000))]
    world.say(covered(*spans, complete_to_ms=at(190_000)))
    world.say(ended(2, "a", 0, at_ms=at(200_500)), released(2, at_ms=at(210_000)))
    world.say(covered(complete_to_ms=at(230_000)))
    return world


def codes(entries: list[Entry]) -> set[Code]:
    return {finding.code for finding in audit(entries).findings}


def changed(entries: list[Entry], kind: type[M], change: Callable[[M], Event], which: int = -1) -> list[Entry]:
    """The same log, but for one event of this kind."""
    places = [place for place, entry in enumerate(entries) if isinstance(entry.event, kind)]
    place = places[which]
    event = entries[place].event
    assert isinstance(event, kind)
    return [*entries[:place], entries[place]._replace(event=change(event)), *entries[place + 1 :]]


def with_lines(event: ChargesPosted | JobClosed, of: str, **fields: int | str) -> Event:
    """The bill with other figures in the line of one lease."""
    lines = tuple(msgspec.structs.replace(line, **fields) if line.lease == of else line for line in event.lines)
    return msgspec.structs.replace(event, lines=lines)


def with_transfers(event: LedgerEvent, change: Callable[[Transfer], Transfer | None]) -> Event:
    transfers = tuple(new for transfer in event.transfers if (new := change(transfer)) is not None)
    return msgspec.structs.replace(event, transfers=transfers)


def line_of(world: World, lease: str) -> BillLine:
    closed = world.ledger()[-1]
    assert isinstance(closed, JobClosed)
    return next(line for line in closed.lines if line.lease == lease)


def before_last_bill(world: World, *events: Event) -> list[Entry]:
    """The log with more events just before the last bill."""
    place = max(place for place, entry in enumerate(world.entries) if isinstance(entry.event, JobClosed))
    entries = [*world.entries[:place], *(Entry(0, world.now_ms, event) for event in events), *world.entries[place:]]
    return [entry._replace(seq=seq) for seq, entry in enumerate(entries, 1)]
