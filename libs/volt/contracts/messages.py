"""The three kinds of message and how they become bytes.

Every message is a frozen msgspec Struct on JSON, tagged `type` with its name and version (`JobAdmitted.v1`).
A command asks and may be refused, so a field it does not know is an error; an event has happened, so a reader
of today passes over the fields that a writer of tomorrow adds.
"""

from typing import Generic, NamedTuple, TypeVar

import msgspec

from volt.contracts.errors import MalformedMessage

MESSAGE_BYTES_MAX = 256 * 1024


def _version_one(name: str) -> str:
    return f"{name}.v1"


class Command(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag=_version_one
):
    """Something that somebody wants; imperative."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_version_one):
    """Something that has happened; past tense. Lives in `LOG` on the subject it names."""

    def subject(self) -> str:
        """The one subject, and so the one aggregate and writer, that this event belongs to."""
        raise AssertionError(f"{type(self).__name__} names no subject")


class Asked(NamedTuple):
    """How a command arrived: its subject, its place on `COMMANDS`, when that stored it, and the stream's time now."""

    subject: str
    seq: int
    stored_ms: int
    at_ms: int


class Answer(Event, frozen=True, kw_only=True):
    """An event that answers a command. Commands are answered in their order: one that comes after it is answered."""

    command_seq: int = 0
    """Where the command is on `COMMANDS`."""
    command_ms: int = 0
    """When `COMMANDS` stored it."""


class Signal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_version_one):
    """What is said on another stream than `LOG`, and is not a request: a state, a sign of life, output."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A part of messages."""


def encode(message: msgspec.Struct) -> bytes:
    """JSON bytes, keys in declaration order, so that equal messages are equal bytes."""
    return msgspec.json.encode(message)


M = TypeVar("M", bound=msgspec.Struct)


class Decoder(Generic[M]):
    """Decodes one of several message types.

    Raises MalformedMessage with the code that tells why: `not_json`, `unknown_type`, `unknown_version`,
    `invalid_field`, or `too_large` (over `bytes_max` bytes).
    """

    def __init__(self, *types: type[M], bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._base = types
        self._bytes_max = bytes_max
        self._decoder = msgspec.json.Decoder(_union(types))
        self._names = frozenset(one.__name__ for one in types)

    def decode(self, data: bytes) -> M:
        if len(data) > self._bytes_max:
            raise MalformedMessage("too_large", f"{len(data)} bytes; at most {self._bytes_max}")
        try:
            decoded = self._decoder.decode(data)
        except msgspec.ValidationError as error:
            raise MalformedMessage(self._code(data), str(error)) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedMessage("not_json", str(error)) from error
        assert isinstance(decoded, self._base)
        return decoded

    def _code(self, data: bytes) -> str:
        """Tells an unknown type and an unknown version from a field out of range."""
        try:
            head = msgspec.json.decode(data, type=_Head)
        except msgspec.ValidationError:
            return "unknown_type"
        except (msgspec.DecodeError, RecursionError):
            return "not_json"  # A wrong field before the place where it stops to be JSON.
        name, _, version = head.type.partition(".v")
        if name not in self._names:
            return "unknown_type"
        return "invalid_field" if version == "1" else "unknown_version"


class _Head(msgspec.Struct):
    type: str


def _union(types: tuple[type[M], ...]) -> object:
    union: object = types[0]
    for one in types[1:]:
        union = union | one
    return union
