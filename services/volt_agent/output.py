"""A workload's output on its way to `LOGS`: in order, in bounded batches, to the last line."""

import asyncio

import structlog

from volt.contracts import letters
from volt.contracts.errors import BusUnavailable
from volt.contracts.messages import encode
from volt.contracts.nodes import DesiredLease
from volt.contracts.subjects import logs
from volt.runtime.ports import Bus, TooLarge
from volt_agent.runtimes import LogLine

QUEUE_LINES_MAX = 4_096
BATCH_LINES_MAX = 256
BATCH_BYTES_MAX = 128 * 1024
BATCH_WAIT_SECONDS = 0.02
PUBLISH_ATTEMPTS_MAX = 600
PUBLISH_RETRY_SECONDS = 0.5

_log = structlog.get_logger("volt.output")


class Output:
    """The output of one generation of a lease. While the bus is away the queue fills, and then the workload waits."""

    def __init__(self, bus: Bus, node: str, desired: DesiredLease) -> None:
        assert desired.manifest is not None, "output begins when a lease starts"
        self._bus = bus
        self._subject = logs(desired.account, desired.job, node)
        self._identity = f"{desired.lease}/{desired.generation}"
        self._generation = desired.generation
        self._node_rank = desired.node_rank
        self._first_rank = desired.manifest.nodes[desired.node_rank].first_rank
        self._queue: asyncio.Queue[letters.LogLine | None] = asyncio.Queue(QUEUE_LINES_MAX)
        self._batches = 0

    async def take(self, line: LogLine) -> None:
        """Takes a line of a local process, waiting while the queue is full."""
        rank = self._first_rank + line.local_rank
        await self._queue.put(
            letters.LogLine(generation=self._generation, rank=rank, stream=line.stream, text=line.text)
        )

    async def end(self) -> None:
        """No line follows."""
        await self._queue.put(None)

    async def publish(self) -> None:
        """Publishes until the end, and then says that it was the end."""
        last = False
        while not last:
            batch, last = await self._next_batch()
            await self._store(letters.LogLines(node_rank=self._node_rank, lines=batch, last=last))

    async def _next_batch(self) -> tuple[tuple[letters.LogLine, ...], bool]:
        """The next lines, as many as came within a moment of the first, and whether they were the last."""
        line = await self._queue.get()
        await asyncio.sleep(BATCH_WAIT_SECONDS)
        batch: list[letters.LogLine] = []
        size_bytes = 0
        while line is not None:
            batch.append(line)
            size_bytes += len(encode(line))
            if self._queue.empty() or len(batch) >= BATCH_LINES_MAX or size_bytes >= BATCH_BYTES_MAX:
                return tuple(batch), False
            line = self._queue.get_nowait()
        return tuple(batch), True

    async def _store(self, lines: letters.LogLines) -> None:
        self._batches += 1
        for _ in range(PUBLISH_ATTEMPTS_MAX):
            try:
                await self._bus.publish(self._subject, encode(lines), message_id=f"{self._identity}/{self._batches}")
                return
            except BusUnavailable:
                await asyncio.sleep(PUBLISH_RETRY_SECONDS)
            except TooLarge as error:
                _log.error("output_too_large", subject=self._subject, error=str(error))
                return
        _log.error("output_lost", subject=self._subject, lines=len(lines.lines), attempts=PUBLISH_ATTEMPTS_MAX)
