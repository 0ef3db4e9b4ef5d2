"""Time that goes in steps, and a bus on which a service may die in the middle of a write."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from volt.contracts.streams import StreamSpec
from volt.runtime.memory import MemoryBus, MemoryClock
from volt.runtime.ports import Batch, Bus, Record

STEP_MS = 50
"""Every instant at which anything is due is a multiple of it."""

Moment = Literal["before", "after"]


class Crash(NamedTuple):
    """Where a service dies: around its `write`-th append or publication, counted from 1 over all of its lives."""

    service: str
    write: int
    moment: Moment


class StepClock(MemoryClock):
    """A clock of which all who are due at an instant wake together."""

    def __init__(self) -> None:
        super().__init__()
        self._at_ms = 0
        self._due: dict[int, list[asyncio.Future[None]]] = {}

    def monotonic_ms(self) -> int:
        return self._at_ms

    async def sleep(self, seconds: float) -> None:
        due_ms = self._at_ms + round(seconds * 1000)
        assert due_ms % STEP_MS == 0, f"{due_ms} ms is between two steps"
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._due.setdefault(due_ms, []).append(waiter)
        await waiter

    def step(self) -> None:
        self._at_ms += STEP_MS
        for waiter in self._due.pop(self._at_ms, ()):
            if not waiter.done():
                waiter.set_result(None)


class CountingBus(MemoryBus):
    """Counts what is stored, so that one can see that nothing goes on."""

    stored = 0

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        self.stored += 1
        return await super().publish(subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)


@dataclass
class Writes:
    """What one service wrote over all of its lives, and where it shall die."""

    service: str
    crash: Crash | None
    subjects: list[str] = field(default_factory=list)

    def is_fatal(self, write: int, moment: Moment) -> bool:
        return self.crash == Crash(self.service, write, moment)


class Wire:
    """The bus as one life of a service has it: it may die at a write, and after that nothing leaves it."""

    def __init__(self, bus: Bus, writes: Writes) -> None:
        self.died = asyncio.Event()
        self._bus, self._writes = bus, writes

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        await self._live()
        self._writes.subjects.append(subject)
        write = len(self._writes.subjects)
        await self._die_at(write, "before")
        seq = await self._bus.publish(subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)
        await self._die_at(write, "after")
        await self._live()
        return seq

    async def ensure(self, spec: StreamSpec) -> None:
        await self._bus.ensure(spec)

    async def last(self, stream: str, subject: str) -> Record | None:
        return await self._bus.last(stream, subject)

    async def remove(self, stream: str, seq: int) -> None:
        await self._live()
        await self._bus.remove(stream, seq)

    def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        return self._bus.read(stream, subjects, after_seq=after_seq, from_ms=from_ms)

    async def _die_at(self, write: int, moment: Moment) -> None:
        if self._writes.is_fatal(write, moment):
            self.died.set()
        await self._live()

    async def _live(self) -> None:
        """Returns if the service lives; the dead wait for ever, that is until their tasks are cancelled."""
        if self.died.is_set():
            await asyncio.Event().wait()
