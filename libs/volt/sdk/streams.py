"""Streams of server-sent events: what arrives as bytes, as values, and where to go on after a break."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec

from volt.contracts import http
from volt.contracts.errors import MalformedMessage, Unavailable
from volt.sdk.calls import Call, get_job, job_path

EVENT_BYTES_MAX = 8 * 1024 * 1024
SILENCE_SECONDS_MAX = 30.0
"""The gateway says something at least every ten seconds."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StreamCall(Generic[T]):
    """One stream: the name of its events, and what each of them is."""

    path: str
    event: str
    item: type[T]
    params: Mapping[str, str] = field(default_factory=dict)


def job_logs(job: str, *, follow: bool = True) -> StreamCall[http.Output]:
    """Output of every node of a job, from the beginning, then as it comes, until the job has ended.

    With `follow=False` it ends with what there is. Raises NotFound, Unauthorized, Refused (too many streams),
    Unavailable when the connection breaks and cannot be taken up again.
    """
    return StreamCall(path=job_path(job) + "/logs", event="output", item=http.Output, params=_follow(follow))


def job_events(job: str, *, follow: bool = True) -> StreamCall[http.JobHappening]:
    """What happened to a job, from the beginning, then as it comes, until it is closed. Ends and raises as `logs`."""
    return StreamCall(path=job_path(job) + "/events", event="happening", item=http.JobHappening, params=_follow(follow))


@dataclass(frozen=True, kw_only=True)
class WaitCall(Generic[T]):
    """A stream that is read to its end, and what is asked then."""

    until: StreamCall[http.JobHappening]
    then: Call[T]


def wait_for_job(job: str) -> WaitCall[http.Job]:
    """Waits until a job is closed, however long that takes, and returns it as it then is. Raises as `logs`."""
    return WaitCall(until=job_events(job), then=get_job(job))


class Reading(Generic[T]):
    """How far a stream has been read, over all of its connections."""

    def __init__(self, call: StreamCall[T]) -> None:
        self.call = call
        self.ended = False
        self._last_id = ""
        self._parser = EventParser()

    def begin(self) -> Mapping[str, str]:
        """The headers of the next connection, which goes on behind the last event that was read."""
        self._parser = EventParser()
        headers = {"Accept": http.EVENT_STREAM}
        return headers | {http.LAST_EVENT_HEADER: self._last_id} if self._last_id else headers

    def feed(self, data: bytes) -> Iterator[T]:
        """The items that these bytes complete. Raises Unavailable if the gateway says so, or MalformedMessage."""
        for event in self._parser.feed(data):
            if event.name == "end":
                self.ended = True
                return
            if event.name == "error":
                raise _told(event.data)
            if event.name == self.call.event:
                yield _read(event.data, self.call.item)
                self._last_id = event.id or self._last_id


class ServerEvent(NamedTuple):
    """One event as it was sent."""

    name: str
    id: str
    data: bytes


class EventParser:
    """Puts lines and events together from bytes that are cut anywhere, as the HTML standard has it."""

    def __init__(self) -> None:
        self._rest = b""
        self._name, self._id = "message", ""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """The events that these bytes complete. Raises MalformedMessage for one over `EVENT_BYTES_MAX`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                yield event
        if len(self._rest) + sum(map(len, self._data)) > EVENT_BYTES_MAX:
            raise MalformedMessage("too_large", f"an event of more than {EVENT_BYTES_MAX} bytes")

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"event":
                self._name = value.decode(errors="replace")
            case b"id":
                self._id = value.decode(errors="replace")
            case b"data":
                self._data.append(value)
        return None

    def _complete(self) -> ServerEvent | None:
        event = ServerEvent(self._name, self._id, b"\n".join(self._data)) if self._data else None
        self._name, self._id, self._data = "message", "", []
        return event


def _follow(follow: bool) -> Mapping[str, str]:
    return {} if follow else {"follow": "false"}


def _read(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise MalformedMessage("unreadable_answer", f"an event that this version cannot read: {error}") from error


def _told(data: bytes) -> Unavailable:
    told = _read(data, http.ErrorBody)
    error = Unavailable(told.message)
    error.code = told.code
    return error
