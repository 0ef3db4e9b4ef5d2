"""The gateway as one process: connect, bring the views to the end of the log, then serve until told to stop."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator

import structlog
import uvicorn
from redis.asyncio import Redis

from volt.runtime import telemetry
from volt.runtime.nats import NatsBus, SystemClock, ensure_streams
from volt.runtime.readiness import say_ready
from volt.runtime.views import views_at
from volt_gateway.api import make_app
from volt_gateway.effects import Projector
from volt_gateway.feed import Feed
from volt_gateway.gateway import Gateway
from volt_gateway.settings import Settings
from volt_gateway.views import ViewStore

REDIS_CONNECTIONS_MAX = 64
CONNECTIONS_MAX = 1_024
BACKLOG_MAX = 256
STOP_SECONDS_MAX = 0.6
STALLED_CLIENT_MS_MAX = 30_000

_log = structlog.get_logger("volt.gateway")


async def serve(settings: Settings) -> None:
    """Runs the gateway until SIGTERM or SIGINT.

    Ready is said once the views are at the end of the log. Raises BusUnavailable if there is no bus, OSError if the
    port is taken. Any failure ends the process: its supervisor starts it afresh, and it goes on where the views are.
    """
    telemetry.set_up("gateway")
    with _listening(settings.gateway_host, settings.gateway_port) as listener:
        async with _connected(settings) as (bus, redis):
            # Until here a signal ends the process at once: there is nothing to end in order.
            stop = _stop_signal()
            views, feed = ViewStore(redis), Feed()
            gateway = Gateway(bus, views, feed)
            projector = Projector(bus, SystemClock(), views, feed)
            server = _Server(gateway)
            async with asyncio.TaskGroup() as tasks:
                projecting = tasks.create_task(projector.run())
                serving = tasks.create_task(server.serve([listener]))
                await _either(stop.wait(), _ready(projector, server))
                # What was loaded stays: collections pass it over, and the end of the process does not take it apart.
                gc.freeze()
                if not stop.is_set():
                    say_ready(settings.ready_fd)
                    _log.info("ready", url=f"http://{settings.gateway_host}:{listener.getsockname()[1]}")
                await stop.wait()
                _log.info("stopping")
                gateway.stop()
                await server.stop(serving)
                projecting.cancel()


class _Server(uvicorn.Server):
    """Uvicorn without its own handling of signals, which would raise them again when it has stopped."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(gateway),
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                limit_concurrency=CONNECTIONS_MAX,
                backlog=BACKLOG_MAX,
                server_header=False,
            )
        )
        self.accepting = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def stop(self, serving: asyncio.Task[None]) -> None:
        """Ends what is open; clients that do not let go are left after `STOP_SECONDS_MAX`."""
        self.should_exit = True
        await asyncio.wait([serving], timeout=STOP_SECONDS_MAX)
        serving.cancel()


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    # The protocol is named, or asyncio would not see that the connections are TCP, and leave Nagle's delay on.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A client that takes nothing any more is given up by the kernel, with all that was to be sent to it.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_CLIENT_MS_MAX)
        listener.bind((host, port))
        listener.listen(BACKLOG_MAX)
        yield listener


@contextlib.asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[tuple[NatsBus, Redis]]:
    bus = await NatsBus.connect(settings.nats_url, "gateway")
    redis = views_at(settings.redis_url, REDIS_CONNECTIONS_MAX)
    try:
        await ensure_streams(bus)
        yield bus, redis
    finally:
        await redis.aclose()
        await bus.close()
        telemetry.flush()


async def _ready(projector: Projector, server: _Server) -> None:
    await projector.caught_up()
    await server.accepting.wait()


async def _either(*waits: Coroutine[object, object, object]) -> None:
    """Returns at the end of the first, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
