"""The ports: the bus and the clock as the runtime needs them, whoever provides them.

`Bus` has two implementations, on NATS JetStream and in memory, and one conformance suite that both pass.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from volt.contracts.errors import Reason, Refused, VoltError
from volt.contracts.streams import StreamSpec

READ_BATCH_RECORDS_MAX = 512


class Record(NamedTuple):
    """One stored message. `at_ms` is the stream's time, in milliseconds since 1970."""

    seq: int
    at_ms: int
    subject: str
    data: bytes
    headers: Mapping[str, str]


class Batch(NamedTuple):
    """Consecutive records of a read. `pending` counts the matching ones that the stream holds beyond them."""

    records: Sequence[Record]
    pending: int


class SequenceConflict(VoltError):
    """The subject's last sequence is not the expected one: somebody, maybe oneself, wrote first."""

    code = "sequence_conflict"


class TooLarge(Refused):
    """The message is larger than its stream or the bus takes; nothing was stored."""


def too_large(size_bytes: int, bytes_max: int) -> TooLarge:
    """The refusal of a message over the limit."""
    message = f"the message has {size_bytes} bytes; at most {bytes_max} are taken"
    return TooLarge(Reason(code="too_large", message=message, seen=str(size_bytes)))


class Bus(Protocol):
    """Streams of messages, stored before they are acknowledged."""

    async def ensure(self, spec: StreamSpec) -> None:
        """Makes the stream, or brings it to this specification."""
        ...

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Stores a message and returns its stream sequence.

        `expected_seq` is the sequence of the last message on this very subject, 0 for none. A `message_id` that the
        stream has seen within its window returns the sequence of then and stores nothing.
        Raises SequenceConflict, TooLarge, BusUnavailable (it may or may not be stored).
        """
        ...

    async def last(self, stream: str, subject: str) -> Record | None:
        """The last message on a subject, read from the leader. Raises BusUnavailable."""
        ...

    async def remove(self, stream: str, seq: int) -> None:
        """Takes one message out of its stream; one that is gone already is no error. Raises BusUnavailable."""
        ...

    def read(
        self, stream: str, subjects: Sequence[str], *, after_seq: int = 0, from_ms: int | None = None
    ) -> AsyncIterator[Batch]:
        """Reads on and on, in order, without gap or repeat, beginning behind `after_seq` or at stream time `from_ms`.

        Begins with a batch, empty if nothing matches yet, so that the reader learns when it has caught up.
        Outlives reconnects.
        """
        ...


class Clock(Protocol):
    """Time that goes on evenly. It never says what o'clock it is."""

    def monotonic_ms(self) -> int: ...

    async def sleep(self, seconds: float) -> None: ...
