"""A service as small as can be: it opens accounts on command and credits each, once, as an effect."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from volt.contracts.errors import Reason, Refused
from volt.contracts.jobs import AccountOpened, CommandRejected, OpenAccount
from volt.contracts.ledger import AccountCredited
from volt.contracts.log import Entry, decode_event
from volt.contracts.messages import Asked, Command, Event, encode
from volt.contracts.streams import COMMANDS, DESIRED, LOG
from volt.contracts.subjects import ALL_ACCOUNTS, LOG_LEDGER, command_account, sender
from volt.runtime.engine import Definition, Engine, Outcome
from volt.runtime.memory import MemoryBus, MemoryClock, settle
from volt.runtime.ports import Batch

TICK_MS = 100


@dataclass
class State:
    """Who was opened, credited and refused."""

    opened: dict[str, AccountOpened] = field(default_factory=dict)
    credited: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def decide(state: State, command: Command, asked: Asked) -> tuple[Event, ...]:
    assert isinstance(command, OpenAccount)
    if command.account == "banned":
        raise Refused(Reason(code="banned", message="never"))
    if command.account == "bug":
        raise KeyError("no such thing")
    return () if command.account in state.opened else (opened(command.account, at_ms=asked.at_ms),)


def refuse(state: State, reason: Reason, asked: Asked) -> tuple[Event, ...]:
    account, _ = sender(asked.subject)
    if account not in state.opened:
        raise Refused(reason)
    return (
        CommandRejected(
            account=account, at_ms=asked.at_ms, command_subject=asked.subject, command_seq=asked.seq, reason=reason
        ),
    )


def evolve(state: State, entry: Entry) -> None:
    match entry.event:
        case AccountOpened(account=account) as event:
            assert account not in state.opened, "opened twice"
            state.opened[account] = event
        case AccountCredited(account=account):
            state.credited.append(account)
        case CommandRejected(account=account):
            state.refused.append(account)
        case _:
            raise AssertionError(f"not one of its own: {entry.event}")


def effects(state: State, at_ms: int) -> list[Event]:
    return [AccountCredited(account=one, at_ms=at_ms) for one in state.opened if one not in state.credited]


def no_effects(_state: State, _at_ms: int) -> list[Event]:
    return []


DEFINITION = Definition(
    name="tiny",
    reads=(ALL_ACCOUNTS, LOG_LEDGER),
    initial=State,
    evolve=evolve,
    effects=effects,
    commands=(OpenAccount,),
    decide=decide,
    refuse=refuse,
)
WITHOUT_EFFECTS = replace(DEFINITION, effects=no_effects)


def opened(account: str, at_ms: int = 0, request_id: str = "r") -> AccountOpened:
    return AccountOpened(account=account, at_ms=at_ms, request_id=request_id, key_sha256="k")


def open_account(account: str) -> bytes:
    return encode(OpenAccount(account=account, request_id="r", key_sha256="k"))


class RivalBus(MemoryBus):
    """A bus on which somebody else may write between a decision and its append."""

    def __init__(self, clock: MemoryClock) -> None:
        super().__init__(clock)
        self.rivals: list[Event] = []
        """Each is stored just before one of the next publishes."""
        self.publishes = 0
        self._readers_may = asyncio.Event()
        self._readers_may.set()

    @contextmanager
    def readers_held(self) -> Iterator[None]:
        """Nothing is read for the time of this context."""
        self._readers_may.clear()
        try:
            yield
        finally:
            self._readers_may.set()

    def store_at_once(self, event: Event) -> None:
        """Stores without giving any task a turn."""
        self._streams[LOG.name].store(event.subject(), encode(event), None, {}, self.now_ms())

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        self.publishes += 1
        if self.rivals:
            self.store_at_once(self.rivals.pop(0))
        return await super().publish(subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)

    async def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        async for batch in super().read(stream, subjects, after_seq=after_seq, from_ms=from_ms):
            await self._readers_may.wait()
            yield batch


@dataclass
class Bench:
    """A bus and a clock, and an engine at work on them."""

    bus: RivalBus
    clock: MemoryClock
    engine: Engine[State]
    deliveries: int = 0

    async def open(self, account: str, *, seq: int | None = None) -> Outcome:
        """Delivers the command to open an account."""
        return await self.deliver(command_account(account), open_account(account), seq=seq)

    async def deliver(self, subject: str, data: bytes, *, seq: int | None = None) -> Outcome:
        self.deliveries += 1
        outcome = await self.engine.handle(subject, data, self.deliveries if seq is None else seq, self.bus.now_ms())
        await settle()
        return outcome

    async def events(self) -> Sequence[Event]:
        """All that the log holds and this version can read."""
        async for batch in self.bus.read(LOG.name, ["log.>"]):
            return [decode_event(record.data) for record in batch.records if record.data.startswith(b"{")]
        raise AssertionError("a read ended")


@asynccontextmanager
async def bench(definition: Definition[State] = DEFINITION) -> AsyncIterator[Bench]:
    """An engine that has caught up with an empty log."""
    clock = MemoryClock()
    bus = RivalBus(clock)
    for spec in (LOG, COMMANDS, DESIRED):
        await bus.ensure(spec)
    async with running(definition, bus, clock) as engine:
        yield Bench(bus, clock, engine)


@asynccontextmanager
async def running(definition: Definition[State], bus: MemoryBus, clock: MemoryClock) -> AsyncIterator[Engine[State]]:
    """An engine at work, killed at the end."""
    engine = Engine(definition, bus, clock, TICK_MS)
    task = asyncio.create_task(engine.run())
    await settle()
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.wait([task])
