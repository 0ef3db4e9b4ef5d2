"""The bus and the clock in memory, with the semantics of JetStream, for simulation and tests."""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from volt.contracts.errors import BusUnavailable
from volt.contracts.streams import StreamSpec
from volt.runtime.ports import READ_BATCH_RECORDS_MAX, Batch, Clock, Record, SequenceConflict, too_large
from volt.runtime.subjects import matches

EPOCH_MS = 1_700_000_000_000


class MemoryClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = 0

    def monotonic_ms(self) -> int:
        return self._now_ms

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._now_ms + round(seconds * 1000), self._order, waiter))
        await waiter

    async def advance(self, ms: int) -> None:
        """Moves on by `ms`, waking each sleeper at its instant and letting it run before the next."""
        until_ms = self._now_ms + ms
        while self._sleepers and self._sleepers[0][0] <= until_ms:
            self._now_ms, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
            await settle()
        self._now_ms = until_ms
        await settle()


SETTLE_TURNS = 40


async def settle() -> None:
    """Gives every ready task its turns."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


class MemoryBus:
    """Streams in memory. `now_ms` of the clock is the stream's time, shifted by `epoch_ms`.

    Faults are the caller's: `outage()` refuses everything, `lost_acks` stores and then claims not to have.
    """

    def __init__(self, clock: Clock, epoch_ms: int = EPOCH_MS) -> None:
        self._clock = clock
        self._epoch_ms = epoch_ms
        self._streams: dict[str, _Stream] = {}
        self._away = False
        self.lost_acks = 0
        """How many of the next publishes are stored but not acknowledged."""

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The bus is away for the time of this context."""
        self._away = True
        try:
            yield
        finally:
            self._away = False
            for stream in self._streams.values():
                stream.wake()

    def now_ms(self) -> int:
        """The stream's time."""
        return self._epoch_ms + self._clock.monotonic_ms()

    async def ensure(self, spec: StreamSpec) -> None:
        self._reach()
        if spec.name in self._streams:
            self._streams[spec.name].spec = spec
        else:
            self._streams[spec.name] = _Stream(spec)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        await asyncio.sleep(0)
        self._reach()
        stream = self._owner(subject)
        if len(data) > stream.spec.message_bytes_max:
            raise too_large(len(data), stream.spec.message_bytes_max)
        last = stream.last_of(subject, self.now_ms())
        last_seq = last.seq if last else 0
        if expected_seq is not None and last_seq != expected_seq:
            raise SequenceConflict(f"{subject}: at {last_seq}, expected {expected_seq}")
        seq, is_new = stream.store(subject, data, message_id, headers or {}, self.now_ms())
        if is_new:
            self.saw(stream.newest())
        if self.lost_acks > 0:
            self.lost_acks -= 1
            raise BusUnavailable(f"no acknowledgement for {subject}")
        return seq

    def saw(self, record: Record) -> None:
        """Called with every record as it is stored, for whoever wants to look at all of them."""

    async def last(self, stream: str, subject: str) -> Record | None:
        await asyncio.sleep(0)
        self._reach()
        return self._streams[stream].last_of(subject, self.now_ms())

    async def remove(self, stream: str, seq: int) -> None:
        await asyncio.sleep(0)
        self._reach()
        self._streams[stream].remove(seq)

    async def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        source = self._streams[stream]
        seen_seq, begun = after_seq, False
        while True:
            if self._away:
                await source.changed(subjects)
                continue
            fresh = source.after(seen_seq, self.now_ms())
            found = [
                record
                for record in fresh
                if (from_ms is None or record.at_ms >= from_ms)
                and any(matches(record.subject, one) for one in subjects)
            ]
            batch, rest = found[:READ_BATCH_RECORDS_MAX], found[READ_BATCH_RECORDS_MAX:]
            if rest:
                seen_seq = batch[-1].seq
            elif fresh:
                seen_seq = fresh[-1].seq
            if batch or not begun:
                begun = True
                yield Batch(batch, len(rest))
            else:
                await source.changed(subjects)

    def _reach(self) -> None:
        if self._away:
            raise BusUnavailable("the bus is away")

    def _owner(self, subject: str) -> "_Stream":
        for stream in self._streams.values():
            if any(matches(subject, one) for one in stream.spec.subjects):
                return stream
        raise BusUnavailable(f"no stream takes {subject}")


class _Stream:
    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self._last: dict[str, Record] = {}
        self._records: deque[Record] = deque()
        self._last_seq = 0
        self._seen: dict[str, tuple[int, int]] = {}
        self._waiters: list[tuple[Sequence[str], asyncio.Future[None]]] = []

    def last_of(self, subject: str, now_ms: int) -> Record | None:
        self._forget(now_ms)
        return self._last.get(subject)

    def newest(self) -> Record:
        return self._records[-1]

    def store(
        self, subject: str, data: bytes, message_id: str | None, headers: Mapping[str, str], at_ms: int
    ) -> tuple[int, bool]:
        """The sequence of the message, and whether it is new."""
        self._forget(at_ms)
        if message_id in self._seen:
            return self._seen[message_id][0], False
        self._last_seq += 1
        record = Record(self._last_seq, at_ms, subject, data, headers)
        if self.spec.messages_per_subject_max == 1 and subject in self._last:
            self._records.remove(self._last[subject])
        self._records.append(record)
        self._last[subject] = record
        if message_id is not None:
            self._seen[message_id] = (record.seq, at_ms)
        self.wake(subject)
        return record.seq, True

    def after(self, seq: int, now_ms: int) -> list[Record]:
        self._forget(now_ms)
        found = []
        for record in reversed(self._records):
            if record.seq <= seq:
                break
            found.append(record)
        return found[::-1]

    def remove(self, seq: int) -> None:
        self._records = deque(record for record in self._records if record.seq != seq)
        self._last = {record.subject: record for record in self._records}

    async def changed(self, subjects: Sequence[str]) -> None:
        """Returns when something on these subjects is new, or when the bus is back."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((subjects, waiter))
        await waiter

    def wake(self, subject: str | None = None) -> None:
        """Wakes who waits for this subject, or everybody."""
        waiters, self._waiters = self._waiters, []
        for subjects, waiter in waiters:
            if waiter.done():
                continue
            if subject is None or any(matches(subject, one) for one in subjects):
                waiter.set_result(None)
            else:
                self._waiters.append((subjects, waiter))

    def _forget(self, now_ms: int) -> None:
        """Drops the records and the message ids that are too old."""
        age_ms_max = self.spec.age_seconds_max * 1000
        while age_ms_max and self._records and self._records[0].at_ms <= now_ms - age_ms_max:
            record = self._records.popleft()
            if self._last[record.subject] is record:
                del self._last[record.subject]
        window_ms = self.spec.duplicate_window_seconds * 1000
        while self._seen:
            message_id, (_, seen_ms) = next(iter(self._seen.items()))
            if seen_ms > now_ms - window_ms:
                break
            del self._seen[message_id]
