"""Both buses behind one handle, with what the conformance suite needs to do to them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from tests.support.nats_server import NatsServer
from volt.contracts.streams import StreamSpec
from volt.runtime.memory import MemoryBus, MemoryClock
from volt.runtime.nats import NatsBus
from volt.runtime.ports import Batch, Bus, Record

READ_SECONDS_MAX = 20.0
KIB = 1024

_numbers = itertools.count(1)


class World(Protocol):
    """A bus, its time, and its absence."""

    @property
    def bus(self) -> Bus: ...

    async def pass_ms(self, ms: int) -> None: ...

    async def go_away(self) -> None:
        """The bus is away until `come_back`."""
        ...

    async def come_back(self) -> None: ...


class MemoryWorld:
    """The bus in memory."""

    def __init__(self) -> None:
        self._clock = MemoryClock()
        self.bus = MemoryBus(self._clock)

    async def pass_ms(self, ms: int) -> None:
        await self._clock.advance(ms)

    async def go_away(self) -> None:
        self._outage = self.bus.outage()
        self._outage.__enter__()

    async def come_back(self) -> None:
        self._outage.__exit__(None, None, None)


class NatsWorld:
    """The bus on a real server, whose time is real and whose outages are SIGKILL."""

    def __init__(self, server: NatsServer, bus: NatsBus) -> None:
        self.server = server
        self.bus = bus

    async def pass_ms(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def go_away(self) -> None:
        disconnects = self.bus.disconnects
        self.server.kill()
        while self.bus.disconnects == disconnects:
            await self.pass_ms(1)

    async def come_back(self) -> None:
        reconnects = self.bus.reconnects
        await asyncio.to_thread(self.server.start)
        while self.bus.reconnects == reconnects:
            await self.pass_ms(1)


@asynccontextmanager
async def nats_world(server: NatsServer) -> AsyncIterator[NatsWorld]:
    """A connection of its own to the server."""
    bus = await NatsBus.connect(server.url, "conformance")
    try:
        yield NatsWorld(server, bus)
    finally:
        await bus.close()


def fresh_spec(
    *, message_bytes_max: int = 64 * KIB, messages_per_subject_max: int = 0, duplicate_window_seconds: int = 120
) -> StreamSpec:
    """A stream that no other test uses; `<its name>.a` is one of its subjects."""
    name = f"s{next(_numbers)}"
    return StreamSpec(
        name=name,
        subjects=(f"{name}.>",),
        bytes_max=64 * KIB * KIB,
        message_bytes_max=message_bytes_max,
        messages_per_subject_max=messages_per_subject_max,
        duplicate_window_seconds=duplicate_window_seconds,
    )


async def first_batch(bus: Bus, stream: str, *subjects: str, after_seq: int = 0, from_ms: int | None = None) -> Batch:
    """What a read begins with."""
    async with asyncio.timeout(READ_SECONDS_MAX):
        async for batch in bus.read(stream, subjects, after_seq=after_seq, from_ms=from_ms):
            return batch
    raise AssertionError("a read ended")


async def records(
    bus: Bus, stream: str, *subjects: str, count: int, after_seq: int = 0, from_ms: int | None = None
) -> Sequence[Record]:
    """The first `count` records of a read."""
    found: list[Record] = []
    async with asyncio.timeout(READ_SECONDS_MAX):
        async for batch in bus.read(stream, subjects, after_seq=after_seq, from_ms=from_ms):
            found += batch.records
            if len(found) >= count:
                return found
    raise AssertionError("a read ended")


class Following:
    """A reader that goes on in the background."""

    def __init__(self, bus: Bus, stream: str, *subjects: str, from_ms: int | None = None) -> None:
        self.found: list[Record] = []
        self.batches = 0
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._follow(bus, stream, subjects, from_ms))

    async def until_begun(self) -> None:
        await self._until(lambda: self.batches > 0)

    async def until_seq(self, seq: int) -> list[int]:
        """Waits for a record and returns every sequence read so far."""
        await self._until(lambda: bool(self.found) and self.found[-1].seq >= seq)
        return [record.seq for record in self.found]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(READ_SECONDS_MAX):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    async def _follow(self, bus: Bus, stream: str, subjects: Sequence[str], from_ms: int | None) -> None:
        async for batch in bus.read(stream, subjects, from_ms=from_ms):
            self.batches += 1
            self.found += batch.records
            self._changed.set()
