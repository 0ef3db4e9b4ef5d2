"""What nobody can be answered about: kept with its bytes, its error and its cause."""

from typing import NamedTuple

from volt.contracts.errors import NotFound
from volt.contracts.letters import DeadLetter
from volt.contracts.messages import Decoder, encode
from volt.contracts.streams import DEAD_LETTERS
from volt.contracts.subjects import dead_letter
from volt.runtime.ports import Bus

PAYLOAD_BYTES_MAX = 512 * 1024
ERROR_CHARS_MAX = 2_000

_decoder: Decoder[DeadLetter] = Decoder(DeadLetter, bytes_max=DEAD_LETTERS.message_bytes_max)


class Delivery(NamedTuple):
    """A message as the broker delivered it. `deliveries` counts from 1."""

    stream: str
    stream_seq: int
    subject: str
    data: bytes
    at_ms: int
    deliveries: int


async def bury(bus: Bus, service: str, delivery: Delivery, error: str, cause: str) -> None:
    """Publishes the dead letter of a delivery; the same one twice is kept once. Raises BusUnavailable."""
    letter = DeadLetter(
        service=service,
        stream=delivery.stream,
        stream_seq=delivery.stream_seq,
        subject=delivery.subject,
        payload=delivery.data[:PAYLOAD_BYTES_MAX],
        error=error[:ERROR_CHARS_MAX],
        cause=cause,
        deliveries=delivery.deliveries,
    )
    identity = f"{service}/{delivery.stream}/{delivery.stream_seq}"
    await bus.publish(dead_letter(delivery.subject), encode(letter), message_id=identity)


class StoredLetter(NamedTuple):
    """A dead letter and its number."""

    seq: int
    letter: DeadLetter


async def letters(bus: Bus) -> list[StoredLetter]:
    """Every dead letter that is kept, oldest first."""
    found: list[StoredLetter] = []
    async for batch in bus.read(DEAD_LETTERS.name, DEAD_LETTERS.subjects):
        found += [StoredLetter(record.seq, _decoder.decode(record.data)) for record in batch.records]
        if batch.pending == 0:
            break
    return found


async def letter(bus: Bus, seq: int) -> StoredLetter:
    """The dead letter of this number. Raises NotFound."""
    for one in await letters(bus):
        if one.seq == seq:
            return one
    raise NotFound(f"there is no dead letter {seq}; `volt dlq list` shows them")


async def replay(bus: Bus, seq: int) -> str:
    """Sends a dead letter's message again and takes the letter out; returns the subject. Raises NotFound."""
    found = await letter(bus, seq)
    await bus.publish(found.letter.subject, found.letter.payload)
    await bus.remove(DEAD_LETTERS.name, seq)
    return found.letter.subject
