"""Ordered reading of a stream: ephemeral consumers, one after another, that notice whatever goes missing."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from volt.contracts.errors import BusUnavailable
from volt.runtime.connection import NatsConnection
from volt.runtime.ports import READ_BATCH_RECORDS_MAX, Batch, Record

READ_HEARTBEAT_SECONDS = 1.0
READ_SILENCE_SECONDS_MAX = 3.0


class Reader:
    """One ephemeral ordered consumer. It ends, by raising, at the first gap or silence; the caller begins another."""

    def __init__(self, connection: NatsConnection, stream: str, subjects: Sequence[str]) -> None:
        self._connection = connection
        self._stream = stream
        self._subjects = list(subjects)
        self._queue: asyncio.Queue[Msg] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._disconnects = connection.disconnects
        self._consumer = ""
        self._consumer_seq = 0

    async def open(self, after_seq: int, from_ms: int | None) -> int:
        """Makes the consumer and returns how many records it has to deliver. Raises BusUnavailable."""
        inbox = self._connection.client.new_inbox()
        async with self._connection.bounded(inbox):
            # What waits here is bounded by the server: its requests of flow control are answered as they are read.
            self._subscription = await self._connection.client.subscribe(
                inbox, cb=self._queue.put, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        config = _consumer_config(inbox, self._subjects, after_seq, from_ms)
        body = msgspec.json.encode({"stream_name": self._stream, "config": config})
        answer = await self._connection.api(f"CONSUMER.CREATE.{self._stream}", body)
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
                await self._connection.client.publish(message.reply)
            elif _is_silent_about(message, self._consumer_seq):
                raise BusUnavailable("deliveries are missing before a heartbeat")
        return Batch(records, pending)

    async def close(self) -> None:
        if self._connection.client.is_closed:
            return
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        if self._consumer and self._connection.disconnects == self._disconnects:
            await self._connection.client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")

    async def _next_message(self) -> Msg:
        if self._connection.disconnects != self._disconnects:
            raise BusUnavailable("the connection was lost")
        if not self._queue.empty():
            return self._queue.get_nowait()
        async with self._connection.bounded(f"deliveries of {self._stream}", READ_SILENCE_SECONDS_MAX):
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
