"""One NATS connection that says at once when it cannot answer, and comes back by itself."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client

from volt.contracts.errors import BusUnavailable

CONNECT_SECONDS_MAX = 30.0
RECONNECT_WAIT_SECONDS = 0.1
PING_SECONDS = 5
REQUEST_SECONDS_MAX = 5.0
EXIT_BUS_CLOSED = 70

_log = structlog.get_logger("volt.bus")


class ApiError(msgspec.Struct):
    """Why the server refused."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class ApiReply(msgspec.Struct):
    """What the server answers, as far as it is of use."""

    error: ApiError | None = None
    config: dict[str, object] = {}
    seq: int = 0
    name: str = ""
    num_pending: int = 0


class NatsConnection:
    """A connection that outlives an outage of any length.

    While it is away everything fails at once: nothing is kept back to be sent late. When the client gives it up for
    good the process exits with `EXIT_BUS_CLOSED`: its supervisor starts it afresh, and it recovers from the log.
    """

    def __init__(self, name: str) -> None:
        self.client = Client()
        self.reconnects = 0
        """How often the connection was lost and came back."""
        self.disconnects = 0
        """How often the connection was lost."""
        self.name = name
        self._closing = False
        self._connected = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()

    @classmethod
    async def connect(cls, url: str, name: str, seconds_max: float = CONNECT_SECONDS_MAX) -> Self:
        """Connects within `seconds_max`, or raises BusUnavailable."""
        bus = cls(name)
        try:
            await asyncio.wait_for(bus._connect(url), seconds_max)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            bus._closing = True
            await bus.client.close()
            message = f"no bus at {url} within {seconds_max:.0f} s ({error!r}); `volt up` starts one"
            raise BusUnavailable(message) from error
        return bus

    async def close(self) -> None:
        self._closing = True
        await self.client.close()

    async def connected(self) -> None:
        """Returns once the connection is there."""
        await self._connected.wait()

    async def request(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> bytes:
        """The answer to a request. Raises BusUnavailable."""
        async with self.bounded(subject):
            reply = await self.client.request(subject, data, timeout=REQUEST_SECONDS_MAX, headers=headers)
        return reply.data

    async def api(self, request: str, body: bytes) -> ApiReply:
        """The answer of JetStream's API, which may be an error. Raises BusUnavailable."""
        return msgspec.json.decode(await self.request(f"$JS.API.{request}", body), type=ApiReply)

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
            name=self.name,
            ping_interval=PING_SECONDS,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type]  # it is slept, so a float serves
            reconnected_cb=self._on_reconnected,
            disconnected_cb=self._on_disconnected,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self._connected.set()

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._connected.set()
        _log.info("bus_reconnected", name=self.name)

    async def _on_disconnected(self) -> None:
        self.disconnects += 1
        self._connected.clear()
        # What was in flight will not be answered any more: end those waits now, not at their timeout.
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())
        if not self._closing:
            _log.warning("bus_disconnected", name=self.name)

    async def _on_error(self, error: Exception) -> None:
        _log.debug("bus_error", name=self.name, error=repr(error))

    async def _on_closed(self) -> None:
        if not self._closing:
            _log.error("bus_closed", name=self.name)
            os._exit(EXIT_BUS_CLOSED)
