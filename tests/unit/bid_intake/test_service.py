"""Bid-intake as its process runs it, over a bus in memory, killed and started again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.unit.bid_intake.build import bid, open_account, release, request, subject_of, withdraw
from volt.contracts.ids import job_id
from volt.contracts.log import decode_event
from volt.contracts.messages import Command, Event, encode
from volt.contracts.streams import COMMANDS, LOG
from volt.contracts.timing import EMBEDDED
from volt.runtime.engine import Engine, Verdict
from volt.runtime.memory import MemoryBus, MemoryClock, settle
from volt_bid_intake.domain import State
from volt_bid_intake.effects import DEFINITION

SCRIPT: tuple[Command, ...] = (
    open_account(),
    bid(node="n1"),
    request(),
    bid(node="n1", request_id="b2", ask_microusd=3),
    request(request_id="r2", count=0),
    release(job_id("lab", "r1")),
    withdraw(node="n1"),
    release("jnone"),
)


@asynccontextmanager
async def running(bus: MemoryBus, clock: MemoryClock) -> AsyncIterator[Engine[State]]:
    engine = Engine(DEFINITION, bus, clock, EMBEDDED.tick_ms)
    task = asyncio.create_task(engine.run())
    await settle()
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.wait([task])


async def a_bus() -> tuple[MemoryBus, MemoryClock]:
    clock = MemoryClock()
    bus = MemoryBus(clock)
    for spec in (LOG, COMMANDS):
        await bus.ensure(spec)
    return bus, clock


async def log_of(bus: MemoryBus) -> Sequence[Event]:
    async for batch in bus.read(LOG.name, LOG.subjects):
        return [decode_event(record.data) for record in batch.records]
    raise AssertionError("a read ended")


async def deliver(engine: Engine[State], bus: MemoryBus, command: Command, seq: int) -> Verdict:
    outcome = await engine.handle(subject_of(command), encode(command), seq, bus.now_ms())
    return outcome.verdict


async def test_every_command_of_a_script_is_answered_in_the_log() -> None:
    bus, clock = await a_bus()
    async with running(bus, clock) as engine:
        verdicts = [await deliver(engine, bus, command, seq) for seq, command in enumerate(SCRIPT, start=1)]
    assert verdicts == [Verdict.DONE] * len(SCRIPT)
    assert [type(event).__name__ for event in await log_of(bus)] == [
        "AccountOpened",
        "BidAccepted",
        "JobAdmitted",
        "BidAccepted",
        "JobRejected",
        "JobReleaseAccepted",
        "BidWithdrawn",
        "CommandRejected",
    ]


async def test_a_kill_after_any_command_and_its_redelivery_change_no_answer() -> None:
    bus, clock = await a_bus()
    async with running(bus, clock) as engine:
        for seq, command in enumerate(SCRIPT, start=1):
            await deliver(engine, bus, command, seq)
    expected = await log_of(bus)

    for killed_after in range(len(SCRIPT)):
        bus, clock = await a_bus()
        async with running(bus, clock) as engine:
            for seq, command in enumerate(SCRIPT[: killed_after + 1], start=1):
                await deliver(engine, bus, command, seq)
        async with running(bus, clock) as engine:
            # Nothing was acknowledged before the kill: everything comes again, in order.
            for seq, command in enumerate(SCRIPT, start=1):
                assert await deliver(engine, bus, command, seq) is Verdict.DONE
            assert engine.stuck == {}
        assert await log_of(bus) == expected


async def test_who_has_no_account_is_for_the_dead_letters() -> None:
    bus, clock = await a_bus()
    async with running(bus, clock) as engine:
        assert await deliver(engine, bus, request(account="nobody"), 1) is Verdict.DEAD
    assert await log_of(bus) == []
