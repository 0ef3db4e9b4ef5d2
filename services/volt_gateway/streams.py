"""Server-sent events over ASGI: frames from a source, comments while it is silent, and an end that frees everything.

One frame is in flight at a time, so a slow client holds up its own source and fills no buffer of ours.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from typing import TypeVar

import msgspec
import structlog
from litestar.types import HTTPResponseBodyEvent, HTTPResponseStartEvent, Receive, Scope, Send

from volt.contracts.errors import VoltError
from volt.contracts.http import EVENT_STREAM, ErrorBody
from volt.contracts.messages import encode

KEEPALIVE_SECONDS = 10.0
SEND_SECONDS_MAX = 20.0

_KEEPALIVE = b": still here\n\n"
_log = structlog.get_logger("volt.streams")

T = TypeVar("T")


def frame(event: str, data: msgspec.Struct | None = None, seq: int | None = None) -> bytes:
    """One event. `seq` is what a client gives back, as Last-Event-ID, to go on behind it."""
    place = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (place, event.encode(), encode(data) if data is not None else b"{}")


class EventStream:
    """An ASGI response that lasts until its source ends, its client goes away, or the gateway stops."""

    def __init__(
        self, frames: AsyncGenerator[bytes, None], slot: AbstractContextManager[None], stopping: asyncio.Event
    ) -> None:
        self._frames, self._slot, self._stopping = frames, slot, stopping

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            async with aclosing(self._frames):
                await send(_START)
                await self._pump(receive, send)

    async def _pump(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        stopping = asyncio.ensure_future(self._stopping.wait())
        upcoming = asyncio.ensure_future(_next(self._frames))
        try:
            while not gone.done() and not stopping.done():
                await asyncio.wait(
                    {gone, stopping, upcoming}, timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not upcoming.done():
                    await _send(send, _KEEPALIVE)
                    continue
                data = upcoming.result()
                if data is None:
                    break
                await _send(send, data)
                upcoming = asyncio.ensure_future(_next(self._frames))
            await _send(send, b"", more=False)
        except TimeoutError:
            _log.warning("stream_cut", seconds_max=SEND_SECONDS_MAX)
        finally:
            for task in (gone, stopping, upcoming):
                task.cancel()
            await asyncio.gather(gone, stopping, upcoming, return_exceptions=True)


@asynccontextmanager
async def closing(source: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Closes a source that can be closed, at once and not when it is collected."""
    try:
        yield source
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


_START: HTTPResponseStartEvent = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", EVENT_STREAM.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ],
}


async def _send(send: Send, data: bytes, *, more: bool = True) -> None:
    """Hands over bytes once the client has room for them. Raises TimeoutError when it does not make any."""
    body: HTTPResponseBodyEvent = {"type": "http.response.body", "body": data, "more_body": more}
    async with asyncio.timeout(SEND_SECONDS_MAX):
        await send(body)


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next frame; None at the end. What goes wrong is told as a last frame: the status has been sent long ago."""
    try:
        return await anext(frames, None)
    except VoltError as error:
        return frame("error", ErrorBody(code=error.code, message=str(error)))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
