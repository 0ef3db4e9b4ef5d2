"""The bus on NATS JetStream, and the clock of the machine."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import NotFoundError

from volt.contracts.errors import BusUnavailable, Reason
from volt.contracts.streams import ALL, StreamSpec
from volt.runtime.ports import READ_BATCH_RECORDS_MAX, Batch, Record, SequenceConflict, TooLarge, too_large

CONNECT_SECONDS_MAX = 30.0
RECONNECT_WAIT_SECONDS = 0.1
PING_SECONDS = 5
REQUEST_SECONDS_MAX = 5.0
ENSURE_ATTEMPTS_MAX = 20
ENSURE_RETRY_SECONDS = 0.1
READ_HEARTBEAT_SECONDS = 1.0
READ_SILENCE_SECONDS_MAX = 3.0
READ_RETRY_SECONDS = 0.1
READ_PENDING_BYTES_MAX = 256 * 1024 * 1024
EXIT_BUS_CLOSED = 70

_WRONG_LAST_SEQUENCE = 10071
_MESSAGE_EXCEEDS_MAXIMUM = 10054
_STREAM_EXISTS_DIFFERENTLY = 10058
_NO_MESSAGE_FOUND = 10037
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_log = structlog.get_logger("volt.bus")


class SystemClock:
    """Time since boot, which goes on while the machine sleeps."""

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class NatsBus:
    """A `Bus` on one NATS connection, which comes back by itself after an outage of any length.

    While it is away everything fails at once, and readers wait: nothing is kept back to be sent late. When the client
    gives the connection up for good the process exits with `EXIT_BUS_CLOSED`: its supervisor starts it afresh, and it
    recovers from the log.
    """

    def __init__(self, name: str) -> None:
        self.client = Client()
        self.reconnects = 0
        """How often the connection was lost and came back."""
        self.disconnects = 0
        """How often the connection was lost."""
        self._name = name
        self._closing = False
        self._connected = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()

    @classmethod
    async def connect(cls, url: str, name: str) -> "NatsBus":
        """Connects within `CONNECT_SECONDS_MAX`, or raises BusUnavailable."""
        bus = cls(name)
        try:
            await asyncio.wait_for(bus._connect(url), CONNECT_SECONDS_MAX)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            bus._closing = True
            await bus.client.close()
            raise BusUnavailable(f"no bus at {url} within {CONNECT_SECONDS_MAX:.0f} s: {error!r}") from error
        return bus

    async def close(self) -> None:
        self._closing = True
        await self.client.close()

    async def ensure(self, spec: StreamSpec) -> None:
        # Services start together and ask for the same streams: while one is being made, the server counts its
        # reserved storage once for each of them, and may refuse for a moment.
        wanted, error = _stream_config(spec), ""
        for _ in range(ENSURE_ATTEMPTS_MAX):
            known = await self._api(f"STREAM.INFO.{spec.name}", b"")
            if wanted.items() <= known.config.items():
                return
            verb = "CREATE" if known.error is not None else "UPDATE"
            reply = await self._api(f"STREAM.{verb}.{spec.name}", msgspec.json.encode(wanted))
            if reply.error is None:
                return
            error = reply.error.description
            await asyncio.sleep(ENSURE_RETRY_SECONDS)
        raise BusUnavailable(f"stream {spec.name}: {error}")

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        sent = dict(headers or {})
        if expected_seq is not None:
            sent["Nats-Expected-Last-Subject-Sequence"] = str(expected_seq)
        if message_id is not None:
            sent["Nats-Msg-Id"] = message_id
        # A server that is sent more than it takes does not refuse the message: it closes the connection.
        size_bytes = len(data) + _header_bytes(sent)
        if size_bytes > self.client.max_payload:
            raise too_large(size_bytes, self.client.max_payload)
        reply = await self.request(subject, data, sent or None)
        ack = msgspec.json.decode(reply, type=_Reply)
        if ack.error is not None:
            raise _publish_error(subject, len(data), ack.error)
        return ack.seq

    async def last(self, stream: str, subject: str) -> Record | None:
        js = self.client.jetstream(timeout=REQUEST_SECONDS_MAX)
        async with self.bounded(f"{stream} {subject}"):
            try:
                message = await js.get_last_msg(stream, subject)
            except NotFoundError as error:
                if error.err_code != _NO_MESSAGE_FOUND:
                    raise
                return None
        assert message.seq is not None
        assert message.time is not None
        at_ms = (message.time - _EPOCH) // timedelta(milliseconds=1)
        return Record(message.seq, at_ms, subject, message.data or b"", message.headers or {})

    async def remove(self, stream: str, seq: int) -> None:
        await self._api(f"STREAM.MSG.DELETE.{stream}", msgspec.json.encode({"seq": seq}))

    async def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        seen_seq, begun = after_seq, False
        while True:
            await self._connected.wait()
            reader = _Reader(self, stream, subjects)
            try:
                # A start by time holds until there is a sequence to go on from.
                pending = await reader.open(seen_seq, from_ms if seen_seq == after_seq else None)
                if pending == 0 and not begun:
                    begun = True
                    yield Batch((), 0)
                while True:
                    batch = await reader.next_batch()
                    begun, seen_seq = True, batch.records[-1].seq
                    yield batch
            except BusUnavailable as error:
                _log.warning("read_interrupted", stream=stream, reader=self._name, error=str(error))
                await asyncio.sleep(READ_RETRY_SECONDS)
            finally:
                await reader.close()

    async def request(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> bytes:
        """The answer to a request. Raises BusUnavailable."""
        async with self.bounded(subject):
            reply = await self.client.request(subject, data, timeout=REQUEST_SECONDS_MAX, headers=headers)
        return reply.data

    @asynccontextmanager
    async def bounded(self, what: str, seconds_max: float = REQUEST_SECONDS_MAX) -> AsyncIterator[None]:
        """Bounds a wait for the server, and ends it when the connection is lost. Raises BusUnavailable."""
        if not self._connected.is_set():
            raise BusUnavailable(f"not connected: {what}")
        wait = asyncio.timeout(seconds_max)
        self._waits.add(wait)
        try:
            async with wait:
                yield
        except (TimeoutError, nats.errors.Error, ConnectionError) as error:
            raise BusUnavailable(f"no answer about {what}: {error!r}") from error
        finally:
            self._waits.discard(wait)

    async def _connect(self, url: str) -> None:
        await self.client.connect(
            url,
            name=self._name,
            ping_interval=PING_SECONDS,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type]  # it is slept, so a float serves
            reconnected_cb=self._on_reconnected,
            disconnected_cb=self._on_disconnected,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self._connected.set()

    async def _api(self, request: str, body: bytes) -> "_Reply":
        return msgspec.json.decode(await self.request(f"$JS.API.{request}", body), type=_Reply)

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._connected.set()
        _log.info("bus_reconnected", name=self._name)

    async def _on_disconnected(self) -> None:
        self.disconnects += 1
        self._connected.clear()
        # What was in flight will not be answered any more: end those waits now, not at their timeout.
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())
        if not self._closing:
            _log.warning("bus_disconnected", name=self._name)

    async def _on_error(self, error: Exception) -> None:
        _log.debug("bus_error", name=self._name, error=repr(error))

    async def _on_closed(self) -> None:
        if not self._closing:
            _log.error("bus_closed", name=self._name)
            os._exit(EXIT_BUS_CLOSED)


async def ensure_streams(bus: NatsBus) -> None:
    """Makes every stream that is missing."""
    await asyncio.gather(*(bus.ensure(spec) for spec in ALL))


class _Reader:
    """One ephemeral ordered consumer. It ends, by raising, at the first gap or silence; the caller begins another."""

    def __init__(self, bus: NatsBus, stream: str, subjects: Sequence[str]) -> None:
        self._bus = bus
        self._stream = stream
        self._subjects = list(subjects)
        self._queue: asyncio.Queue[Msg] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._disconnects = bus.disconnects
        self._consumer = ""
        self._consumer_seq = 0

    async def open(self, after_seq: int, from_ms: int | None) -> int:
        """Makes the consumer and returns how many records it has to deliver. Raises BusUnavailable."""
        inbox = self._bus.client.new_inbox()
        async with self._bus.bounded(inbox):
            self._subscription = await self._bus.client.subscribe(
                inbox, cb=self._queue.put, pending_msgs_limit=-1, pending_bytes_limit=READ_PENDING_BYTES_MAX
            )
        config = _consumer_config(inbox, self._subjects, after_seq, from_ms)
        body = msgspec.json.encode({"stream_name": self._stream, "config": config})
        reply = await self._bus.request(f"$JS.API.CONSUMER.CREATE.{self._stream}", body)
        answer = msgspec.json.decode(reply, type=_Reply)
        if answer.error is not None:
            raise BusUnavailable(f"consumer on {self._stream}: {answer.error.description}")
        self._consumer = answer.name
        return answer.num_pending

    async def next_batch(self) -> Batch:
        """The next records, at least one. Raises BusUnavailable at a gap, at silence and after a lost connection."""
        records: list[Record] = []
        pending = 0
        while not records or (len(records) < READ_BATCH_RECORDS_MAX and not self._queue.empty()):
            message = await self._next_message()
            if message.reply.startswith("$JS.ACK."):
                record, pending = self._accept(message)
                records.append(record)
            elif message.reply:
                await self._bus.client.publish(message.reply)
            elif _is_silent_about(message, self._consumer_seq):
                raise BusUnavailable("deliveries are missing before a heartbeat")
        return Batch(records, pending)

    async def close(self) -> None:
        if self._bus.client.is_closed:
            return
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        if self._consumer and self._bus.disconnects == self._disconnects:
            await self._bus.client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")

    async def _next_message(self) -> Msg:
        if self._bus.disconnects != self._disconnects:
            raise BusUnavailable("the connection was lost")
        if not self._queue.empty():
            return self._queue.get_nowait()
        async with self._bus.bounded(f"deliveries of {self._stream}", READ_SILENCE_SECONDS_MAX):
            return await self._queue.get()

    def _accept(self, message: Msg) -> tuple[Record, int]:
        place = parse_place(message.reply)
        if place.consumer_seq != self._consumer_seq + 1:
            raise BusUnavailable(f"delivery {place.consumer_seq} follows {self._consumer_seq}")
        self._consumer_seq = place.consumer_seq
        record = Record(place.stream_seq, place.at_ms, message.subject, message.data, message.headers or {})
        return record, place.pending


class Place(NamedTuple):
    """Where a delivered message stands, as its reply subject tells."""

    deliveries: int
    stream_seq: int
    consumer_seq: int
    at_ms: int
    pending: int


def parse_place(reply: str) -> Place:
    """Reads `$JS.ACK.…`, in its form of nine tokens and in the one with domain and account before them."""
    tokens = reply.split(".")
    first = 4 if len(tokens) < 11 else 6
    deliveries, stream_seq, consumer_seq, at_ns, pending = (int(token) for token in tokens[first : first + 5])
    return Place(deliveries, stream_seq, consumer_seq, at_ns // 1_000_000, pending)


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Reply(msgspec.Struct):
    error: _Error | None = None
    config: dict[str, object] = {}
    seq: int = 0
    name: str = ""
    num_pending: int = 0


def _publish_error(subject: str, size_bytes: int, error: _Error) -> SequenceConflict | TooLarge | BusUnavailable:
    if error.err_code == _WRONG_LAST_SEQUENCE:
        return SequenceConflict(f"{subject}: {error.description}")
    if error.err_code == _MESSAGE_EXCEEDS_MAXIMUM:
        return TooLarge(Reason(code="too_large", message=f"{subject}: {error.description}", seen=str(size_bytes)))
    return BusUnavailable(f"{subject}: {error.description} ({error.err_code})")


def _header_bytes(headers: Mapping[str, str]) -> int:
    """The size of headers on the wire, which the server counts as part of the message."""
    lines = sum(len(name.encode()) + len(value.encode()) + len(": \r\n") for name, value in headers.items())
    return lines + len("NATS/1.0\r\n\r\n") if headers else 0


def _stream_config(spec: StreamSpec) -> dict[str, object]:
    config: dict[str, object] = {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": "limits",
        "storage": "file",
        "discard": spec.discard,
        "max_bytes": spec.bytes_max,
        "max_age": spec.age_seconds_max * 1_000_000_000,
        "max_msgs": -1,
        "max_msgs_per_subject": spec.messages_per_subject_max or -1,
        "max_msg_size": spec.message_bytes_max,
        "max_consumers": -1,
        "num_replicas": 1,
        "duplicate_window": spec.duplicate_window_seconds * 1_000_000_000,
        "allow_direct": True,
    }
    if spec.persist_async:
        config["persist_mode"] = "async"
    return config


def _consumer_config(inbox: str, subjects: list[str], after_seq: int, from_ms: int | None) -> dict[str, object]:
    config: dict[str, object] = {
        "deliver_subject": inbox,
        "filter_subjects": subjects,
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": int(READ_HEARTBEAT_SECONDS * 1e9),
        "inactive_threshold": int(READ_SILENCE_SECONDS_MAX * 1e9),
        "mem_storage": True,
        "num_replicas": 1,
        "deliver_policy": "all",
    }
    if from_ms is not None:
        instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(from_ms // 1000)) + f".{from_ms % 1000:03d}Z"
        config |= {"deliver_policy": "by_start_time", "opt_start_time": instant}
    elif after_seq:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after_seq + 1}
    return config


def _is_silent_about(message: Msg, consumer_seq: int) -> bool:
    """Whether an idle heartbeat tells of a delivery that never came."""
    last = (message.headers or {}).get("Nats-Last-Consumer")
    return last is not None and int(last) != consumer_seq
