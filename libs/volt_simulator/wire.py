"""Everybody's own way to the bus: it takes time, it can be cut, and an answer can be lost on it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random

from volt.contracts.errors import BusUnavailable
from volt.contracts.streams import StreamSpec
from volt.runtime.memory import MemoryBus
from volt.runtime.ports import Batch, Record, SequenceConflict

REQUEST_SECONDS_MAX = 5.0
"""How long an answer is waited for, as on the real bus."""


class Network:
    """What all ways have in common."""

    def __init__(self, bus: MemoryBus, loop: asyncio.AbstractEventLoop, ack_loss_permyriad: int) -> None:
        self.bus, self.loop = bus, loop
        self.away_until = 0.0
        """The instant of the loop until which nobody reaches the bus."""
        self.ack_loss_permyriad = ack_loss_permyriad
        self.delivered = 0
        """Records that were handed to readers."""
        self.trouble: asyncio.Future[None] = loop.create_future()
        """Gets the first error of whatever goes on by itself."""
        self.arriving: set[asyncio.Task[None]] = set()

    def arrive_later(self, seconds: float, subject: str, data: bytes, expected_seq: int | None) -> None:
        """Lets a message arrive so much later, whoever may hear of it."""
        task = asyncio.create_task(self._arrive(seconds, subject, data, expected_seq))
        self.arriving.add(task)
        task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self.arriving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.trouble.done():
            self.trouble.set_exception(error)

    async def _arrive(self, seconds: float, subject: str, data: bytes, expected_seq: int | None) -> None:
        await asyncio.sleep(seconds)
        try:
            await self.bus.publish(subject, data, expected_seq=expected_seq)
        except SequenceConflict:
            return  # Somebody wrote meanwhile, which is what the sequence is for.


class Link:
    """A `Bus` over one way. `cut_until` is the instant of the loop until which it leads nowhere."""

    def __init__(self, network: Network, chance: Random) -> None:
        self.cut_until = 0.0
        self.reconnects = 0
        """How often it came back after it was away for long enough to be noticed."""
        self._network, self._chance = network, chance

    async def ensure(self, spec: StreamSpec) -> None:
        await self._network.bus.ensure(spec)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        await self._pass()
        bus = self._network.bus
        seq = await bus.publish(subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)
        if self._chance.randrange(10_000) < self._network.ack_loss_permyriad:
            await asyncio.sleep(REQUEST_SECONDS_MAX)
            raise BusUnavailable(f"no acknowledgement for {subject}")
        await self._answered()
        return seq

    async def last(self, stream: str, subject: str) -> Record | None:
        await self._pass()
        record = await self._network.bus.last(stream, subject)
        await self._answered()
        return record

    async def remove(self, stream: str, seq: int) -> None:
        await self._pass()
        await self._network.bus.remove(stream, seq)

    async def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        async for batch in self._network.bus.read(stream, subjects, after_seq=after_seq, from_ms=from_ms):
            await self.until_up()
            self._network.delivered += len(batch.records)
            yield batch

    async def until_up(self) -> None:
        """Waits until the way leads to the bus again."""
        loop, was_down = self._network.loop, False
        while (until := max(self.cut_until, self._network.away_until)) > loop.time():
            was_down = True
            await asyncio.sleep(until - loop.time())
        if was_down:
            self.reconnects += 1
            await asyncio.sleep(self._chance.uniform(0.05, 0.3))

    async def _pass(self) -> None:
        """The time that one request takes. Raises BusUnavailable if it does not arrive."""
        if self._is_down():
            await asyncio.sleep(self._chance.choice((0.01, REQUEST_SECONDS_MAX)))
            raise BusUnavailable("there is no way to the bus")
        draw = self._chance.random()
        # Most messages take a moment; some are held up, and so overtaken by others.
        await asyncio.sleep(0.0002 + 0.003 * draw if draw < 0.995 else 2 * self._chance.random())

    async def _answered(self) -> None:
        """Raises BusUnavailable if the way was cut while the request was on it."""
        if self._is_down():
            await asyncio.sleep(REQUEST_SECONDS_MAX)
            raise BusUnavailable("no answer came")

    def _is_down(self) -> bool:
        return max(self.cut_until, self._network.away_until) > self._network.loop.time()
