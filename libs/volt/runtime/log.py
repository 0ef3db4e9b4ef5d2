"""`LOG` as events: appended at the expected sequence, read in one total order."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from volt.contracts.errors import MalformedMessage
from volt.contracts.log import Entry, decode_event
from volt.contracts.messages import MESSAGE_BYTES_MAX, Event, encode
from volt.contracts.streams import LOG
from volt.runtime.ports import Bus, Record, too_large
from volt.runtime.telemetry import trace_headers


class Unreadable(NamedTuple):
    """A record of the log that is no event that this version knows."""

    record: Record
    error: MalformedMessage


class Page(NamedTuple):
    """Consecutive entries of a read; `pending` counts what the log holds beyond them."""

    entries: Sequence[Entry | Unreadable]
    pending: int
    headers: Sequence[Mapping[str, str]]
    """Of each entry: where its trace is found."""


class Log:
    """The one log, over whatever bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def append(self, event: Event, *, expected_seq: int) -> int:
        """Stores an event behind `expected_seq` of its subject and returns its own sequence.

        Raises SequenceConflict, TooLarge (also for what no reader would take), BusUnavailable.
        """
        data = encode(event)
        if len(data) > MESSAGE_BYTES_MAX:
            raise too_large(len(data), MESSAGE_BYTES_MAX)
        return await self._bus.publish(event.subject(), data, expected_seq=expected_seq, headers=trace_headers())

    async def read(self, subjects: Sequence[str], *, after_seq: int = 0) -> AsyncIterator[Page]:
        """Reads these subjects in the log's order, on and on. Begins with a page, empty if nothing is there yet."""
        async for batch in self._bus.read(LOG.name, subjects, after_seq=after_seq):
            headers = [record.headers for record in batch.records]
            yield Page([read_entry(record) for record in batch.records], batch.pending, headers)


def read_entry(record: Record) -> Entry | Unreadable:
    """The event of a record, if this version can read it and it is where it says it belongs."""
    try:
        event = decode_event(record.data)
        if event.subject() != record.subject:
            raise MalformedMessage("wrong_subject", f"{type(event).__name__} of {event.subject()} on {record.subject}")
    except MalformedMessage as error:
        return Unreadable(record, error)
    return Entry(record.seq, record.at_ms, event)
