"""Billing in the runtime, over a bus in memory: it acts on the log, and a restart adds nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.billing.builders import (
    BUYER,
    DOLLAR,
    HOUR,
    JOB,
    MINUTE,
    START_MS,
    admitted,
    covered,
    gang,
    generation,
    kinds,
    opened,
    release_accepted,
)
from volt.audit.ledger import audit
from volt.contracts.ledger import FIRST_CREDIT_MICROUSD, LedgerEvent, wallet
from volt.contracts.log import Entry, decode_event
from volt.contracts.messages import Event, encode
from volt.contracts.streams import LOG
from volt.runtime.engine import Engine
from volt.runtime.memory import MemoryBus, MemoryClock, settle
from volt_billing.effects import DEFINITION
from volt_billing.states import State

TICK_MS = 5_000


class Bench:
    """The bus, the clock, and whatever billing runs on them."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.bus = MemoryBus(self.clock, epoch_ms=START_MS)

    async def say(self, *events: Event) -> None:
        for event in events:
            await self.bus.publish(event.subject(), encode(event))
        await settle()
        await self.clock.advance(TICK_MS)

    async def entries(self) -> list[Entry]:
        async for batch in self.bus.read(LOG.name, ["log.>"]):
            return [Entry(record.seq, record.at_ms, decode_event(record.data)) for record in batch.records]
        raise AssertionError("the log ended")

    async def ledger(self) -> list[LedgerEvent]:
        return [entry.event for entry in await self.entries() if isinstance(entry.event, LedgerEvent)]

    @asynccontextmanager
    async def billing(self) -> AsyncIterator[Engine[State]]:
        engine = Engine(DEFINITION, self.bus, self.clock, TICK_MS)
        task = asyncio.create_task(engine.run())
        try:
            await settle()
            await self.clock.advance(TICK_MS)
            yield engine
            assert engine.stuck == {}
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def bench() -> Bench:
    on = Bench()
    await on.bus.ensure(LOG)
    return on


async def test_a_job_is_funded_metered_and_closed_over_restarts_and_the_audit_agrees() -> None:
    on = await bench()
    async with on.billing() as engine:
        await on.say(opened(), admitted())
        await on.say(gang("a", price=DOLLAR // 2), *generation(1, "a", ready_ms=START_MS))
        assert engine.state.balances_microusd[wallet(BUYER)] == FIRST_CREDIT_MICROUSD - DOLLAR // 2
    async with on.billing() as engine:
        await on.clock.advance(2 * MINUTE)
        await on.say(covered(("a", 1, START_MS, START_MS + 2 * MINUTE), complete_to_ms=START_MS + 2 * MINUTE))
        assert list(engine.state.open_jobs) == [JOB]
    async with on.billing() as engine:
        end_ms = START_MS + 3 * MINUTE
        await on.say(release_accepted(end_ms))
        await on.say(covered(("a", 1, START_MS + 2 * MINUTE, end_ms), complete_to_ms=end_ms))
        assert engine.state.open_jobs == {}
    said = await on.ledger()
    assert kinds(said) == ["AccountCredited", "JobFunded", "HoldAdjusted", "ChargesPosted", "JobClosed"]
    async with on.billing():
        await on.clock.advance(10 * MINUTE)
    assert await on.ledger() == said
    report = audit(await on.entries())
    assert report.is_balanced
    assert report.charged_microusd == 3 * MINUTE * (DOLLAR // 2) // HOUR


async def test_an_acknowledgement_that_is_lost_moves_nothing_twice() -> None:
    on = await bench()
    async with on.billing():
        await on.say(opened())
        await on.bus.publish(admitted().subject(), encode(admitted()))
        on.bus.lost_acks = 1
        await on.clock.advance(MINUTE)
    assert kinds(await on.ledger()) == ["AccountCredited", "JobFunded"]


async def test_a_ledger_that_cannot_be_is_stuck_and_nothing_more_is_written_to_it() -> None:
    on = await bench()
    engine = Engine(DEFINITION, on.bus, on.clock, TICK_MS)
    task = asyncio.create_task(engine.run())
    await on.say(opened())
    (credited,) = await on.ledger()
    await on.say(credited, admitted())
    await on.clock.advance(MINUTE)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert list(engine.stuck) == [credited.subject()]
    assert kinds(await on.ledger()) == ["AccountCredited", "AccountCredited"]
