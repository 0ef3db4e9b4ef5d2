"""How commands are consumed from a real server: in order, one at a time, and none is ever lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from faststream.nats import NatsMessage

from tests.support.buses import Following, NatsWorld, nats_world
from tests.support.nats_server import NatsServer
from tests.unit.runtime.tiny import TICK_MS, WITHOUT_EFFECTS, State, decide, open_account, opened
from volt.contracts.messages import Asked, Command, Event
from volt.contracts.streams import COMMANDS, DEAD_LETTERS, LOG
from volt.contracts.subjects import ACCOUNT_COMMANDS, ALL_ACCOUNTS, command_account
from volt.runtime.broker import (
    DELIVERIES_MAX,
    RETRY_DELAY_SECONDS_MAX,
    RETRY_DELAY_SECONDS_MIN,
    DurableGone,
    answer,
    durable,
    make_broker,
    retry_delay_seconds,
    watch_durable,
)
from volt.runtime.connection import EXIT_BUS_CLOSED
from volt.runtime.dead_letters import letters
from volt.runtime.engine import Definition, Engine, Outcome, Verdict
from volt.runtime.nats import SystemClock, ensure_streams

pytest_plugins = ["tests.support.nats"]

MANY = tuple(f"a{number:02}" for number in range(30))

Handler = Callable[[NatsMessage], Awaitable[None]]


@pytest.fixture
async def world(nats_server: NatsServer) -> AsyncIterator[NatsWorld]:
    """A server with VOLT's streams, all of them empty."""
    async with nats_world(nats_server) as on_nats:
        for spec in (LOG, COMMANDS, DEAD_LETTERS):
            await on_nats.bus.request(f"$JS.API.STREAM.DELETE.{spec.name}", b"")
        await ensure_streams(on_nats.bus)
        yield on_nats


@asynccontextmanager
async def consuming(world: NatsWorld, handler: Handler) -> AsyncIterator[None]:
    """Gives every command to `handler`."""
    broker = make_broker(world.server.url, "tiny")
    broker.subscriber(**durable("tiny", [ACCOUNT_COMMANDS]))(handler)
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


@asynccontextmanager
async def serving(
    world: NatsWorld,
    definition: Definition[State] = WITHOUT_EFFECTS,
    engine: type[Engine[State]] = Engine,
) -> AsyncIterator[None]:
    """The tiny service, as its process would run it."""
    running = engine(definition, world.bus, SystemClock(), TICK_MS)
    task = asyncio.create_task(running.run())

    async def on_command(message: NatsMessage) -> None:
        await answer(running, world.bus, message)

    async with consuming(world, on_command):
        yield
    task.cancel()
    await asyncio.wait([task])


async def ask(world: NatsWorld, *accounts: str) -> None:
    for account in accounts:
        await world.bus.publish(command_account(account), open_account(account))


async def answered(world: NatsWorld, count: int) -> list[str]:
    """The accounts that were opened, in the log's order, once there are `count` of them."""
    following = Following(world.bus, LOG.name, ALL_ACCOUNTS)
    await following.until_seq(count)
    await following.stop()
    return [record.subject.rpartition(".")[2] for record in following.found]


async def test_commands_are_answered_in_the_order_in_which_they_were_sent(world: NatsWorld) -> None:
    await ask(world, *MANY[:10])
    async with serving(world):
        await ask(world, *MANY[10:])
        assert await answered(world, len(MANY)) == list(MANY)


async def test_a_server_that_is_killed_and_comes_back_costs_neither_an_answer_nor_their_order(
    world: NatsWorld,
) -> None:
    await ask(world, *MANY)
    async with serving(world):
        await answered(world, 5)
        await world.go_away()
        await world.come_back()
        assert await answered(world, len(MANY)) == list(MANY)


async def test_what_a_dead_consumer_left_unanswered_comes_again_before_what_was_sent_later(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volt.runtime.broker.ACK_WAIT_SECONDS", 0.3)
    came: list[str] = []
    done = asyncio.Event()

    async def dies_on_the_first(message: NatsMessage) -> None:
        came.append(message.raw_message.subject)
        if len(came) > 1:
            await message.ack()
        if len(came) == 4:
            done.set()

    async with consuming(world, dies_on_the_first):
        await ask(world, "a", "b", "c")
        async with asyncio.timeout(5):
            await done.wait()
    assert came == [command_account(one) for one in ("a", "a", "b", "c")]


async def test_a_command_that_is_retried_keeps_its_place(world: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volt.runtime.broker.RETRY_DELAY_SECONDS_MIN", 0.01)
    failures = ["the first time", "the second time"]

    def fails_at_first(state: State, command: Command, asked: Asked) -> tuple[Event, ...]:
        if failures and asked.subject == command_account("a"):
            raise RuntimeError(failures.pop())
        return decide(state, command, asked)

    await ask(world, "a", "b", "c")
    async with serving(world, replace(WITHOUT_EFFECTS, decide=fails_at_first)):
        assert await answered(world, 3) == ["a", "b", "c"]
    assert failures == []
    assert await letters(world.bus) == []


async def test_a_command_that_never_succeeds_is_buried_after_a_bound(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volt.runtime.broker.DELIVERIES_MAX", 3)
    monkeypatch.setattr("volt.runtime.broker.RETRY_DELAY_SECONDS_MIN", 0.001)
    monkeypatch.setattr("volt.runtime.broker.RETRY_DELAY_SECONDS_MAX", 0.01)

    def fails(state: State, command: Command, asked: Asked) -> tuple[Event, ...]:
        if asked.subject == command_account("poison"):
            raise RuntimeError("always")
        return (opened("b"),)

    await ask(world, "poison", "b")
    async with serving(world, replace(WITHOUT_EFFECTS, decide=fails)):
        assert await answered(world, 1) == ["b"]
    (buried,) = await letters(world.bus)
    assert buried.letter.deliveries == 3
    assert buried.letter.cause == "retries exhausted"
    assert "always" in buried.letter.error


async def test_a_command_that_waits_for_the_bus_is_never_buried(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volt.runtime.broker.DELIVERIES_MAX", 2)
    monkeypatch.setattr("volt.runtime.broker.RETRY_DELAY_SECONDS_MIN", 0.001)
    outages = 5

    class AwayAtFirst(Engine[State]):
        async def handle(self, subject: str, data: bytes, seq: int, at_ms: int) -> Outcome:
            nonlocal outages
            outages -= 1
            return Outcome(Verdict.AWAY, "away") if outages >= 0 else await super().handle(subject, data, seq, at_ms)

    await ask(world, "a", "b")
    async with serving(world, engine=AwayAtFirst):
        assert await answered(world, 2) == ["a", "b"]
    assert outages < 0
    assert await letters(world.bus) == []


@pytest.mark.parametrize("doomed", ["CONSUMER.DELETE.COMMANDS.tiny", "STREAM.DELETE.COMMANDS"])
async def test_a_consumer_that_somebody_deletes_is_missed(
    doomed: str, world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volt.runtime.broker.DURABLE_CHECK_SECONDS", 0.01)
    async with serving(world):
        watch = asyncio.create_task(watch_durable(world.bus, "tiny"))
        await ask(world, "a")
        await answered(world, 1)
        assert not watch.done()
        await world.bus.request(f"$JS.API.{doomed}", b"")
        with pytest.raises(DurableGone, match="COMMANDS has no consumer tiny"):
            await asyncio.wait_for(watch, 5)


async def test_a_command_that_takes_long_to_answer_is_delivered_once(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volt.runtime.broker.ACK_WAIT_SECONDS", 0.3)
    monkeypatch.setattr("volt.runtime.broker.IN_PROGRESS_SECONDS", 0.1)
    handled: list[str] = []

    class Slow(Engine[State]):
        async def handle(self, subject: str, data: bytes, seq: int, at_ms: int) -> Outcome:
            handled.append(subject)
            await world.pass_ms(1_000)
            return await super().handle(subject, data, seq, at_ms)

    await ask(world, "a", "b")
    async with serving(world, engine=Slow):
        assert await answered(world, 2) == ["a", "b"]
    assert handled == [command_account("a"), command_account("b")]


async def test_what_cannot_be_answered_is_kept_with_its_bytes_and_does_not_come_again(world: NatsWorld) -> None:
    await world.bus.publish(command_account("nobody"), b"\x00 no command")
    await ask(world, "a")
    async with serving(world):
        assert await answered(world, 1) == ["a"]
    async with serving(world):
        await ask(world, "b")
        assert await answered(world, 2) == ["a", "b"]
    (buried,) = await letters(world.bus)
    assert buried.letter.payload == b"\x00 no command"
    assert (buried.letter.subject, buried.letter.stream_seq) == (command_account("nobody"), 1)
    assert buried.letter.service == "tiny"
    assert buried.letter.error.startswith("not_json")


async def test_an_answered_command_is_not_delivered_to_the_next_process(world: NatsWorld) -> None:
    await ask(world, "a")
    async with serving(world):
        await answered(world, 1)
    came: list[str] = []
    reached = asyncio.Event()

    async def note(message: NatsMessage) -> None:
        came.append(message.raw_message.subject)
        await message.ack()
        reached.set()

    async with consuming(world, note):
        await ask(world, "b")
        async with asyncio.timeout(5):
            await reached.wait()
    assert came == [command_account("b")]


async def test_the_process_ends_when_a_client_gives_its_connection_up(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr("os._exit", exits.append)
    async with serving(world):
        pass
    assert exits == [], "a stop on purpose is no such case"
    broker = make_broker(world.server.url, "tiny")
    await broker.start()
    assert broker._connection is not None
    await broker._connection.close()
    assert exits == [EXIT_BUS_CLOSED]
    await world.bus.client.close()
    assert exits == [EXIT_BUS_CLOSED] * 2


def test_the_wait_before_a_delivery_doubles_up_to_a_bound() -> None:
    waits = [retry_delay_seconds(deliveries) for deliveries in range(1, DELIVERIES_MAX + 1)]
    assert waits[:3] == [RETRY_DELAY_SECONDS_MIN * factor for factor in (1, 2, 4)]
    assert waits == sorted(waits)
    assert waits[-1] == RETRY_DELAY_SECONDS_MAX
