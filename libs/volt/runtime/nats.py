"""The bus on NATS JetStream, and the clock of the machine."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from nats.js.errors import NotFoundError

from volt.contracts.errors import BusUnavailable, Reason
from volt.contracts.streams import ALL, StreamSpec
from volt.runtime.connection import REQUEST_SECONDS_MAX, ApiError, ApiReply, NatsConnection
from volt.runtime.ports import Batch, Record, SequenceConflict, TooLarge, too_large
from volt.runtime.reader import Reader

ENSURE_ATTEMPTS_MAX = 20
ENSURE_RETRY_SECONDS = 0.1
READ_RETRY_SECONDS = 0.1

_WRONG_LAST_SEQUENCE = 10071
_MESSAGE_EXCEEDS_MAXIMUM = 10054
_NO_MESSAGE_FOUND = 10037
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_log = structlog.get_logger("volt.bus")


class SystemClock:
    """Time since boot, which goes on while the machine sleeps."""

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class NatsBus(NatsConnection):
    """A `Bus` on one NATS connection. While it is away everything fails at once, and readers wait."""

    async def ensure(self, spec: StreamSpec) -> None:
        # Services start together and ask for the same streams: while one is being made, the server counts its
        # reserved storage once for each of them, and may refuse for a moment.
        wanted, error = _stream_config(spec), ""
        for _ in range(ENSURE_ATTEMPTS_MAX):
            known = await self.api(f"STREAM.INFO.{spec.name}", b"")
            if wanted.items() <= known.config.items():
                return
            verb = "CREATE" if known.error is not None else "UPDATE"
            reply = await self.api(f"STREAM.{verb}.{spec.name}", msgspec.json.encode(wanted))
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
        ack = msgspec.json.decode(await self.request(subject, data, sent or None), type=ApiReply)
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
        await self.api(f"STREAM.MSG.DELETE.{stream}", msgspec.json.encode({"seq": seq}))

    async def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        seen_seq, begun = after_seq, False
        while True:
            await self.connected()
            reader = Reader(self, stream, subjects)
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
                _log.warning("read_interrupted", stream=stream, reader=self.name, error=str(error))
                await asyncio.sleep(READ_RETRY_SECONDS)
            finally:
                await reader.close()


async def ensure_streams(bus: NatsBus) -> None:
    """Makes every stream that is missing."""
    await asyncio.gather(*(bus.ensure(spec) for spec in ALL))


def _publish_error(subject: str, size_bytes: int, error: ApiError) -> SequenceConflict | TooLarge | BusUnavailable:
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
        "max_bytes": spec.bytes_max or -1,
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
