"""One service as one process: connect, recover from the log, then answer and act until told to stop."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from faststream.nats import NatsBroker

from volt.runtime import telemetry
from volt.runtime.broker import make_broker, watch_durable
from volt.runtime.engine import Definition, Engine
from volt.runtime.nats import NatsBus, SystemClock, ensure_streams
from volt.runtime.readiness import say_ready
from volt.runtime.settings import BusSettings

S = TypeVar("S")
Task = Callable[[], Coroutine[None, None, None]]
_log = structlog.get_logger("volt.host")


@dataclass(frozen=True)
class Host(Generic[S]):
    """What a running service has at hand."""

    engine: Engine[S]
    bus: NatsBus
    broker: NatsBroker


async def serve(
    definition: Definition[S], settings: BusSettings, attach: Callable[[Host[S]], tuple[Task, ...]]
) -> None:
    """Runs a service until SIGTERM or SIGINT.

    `attach` registers the handlers and returns what else should run beside the engine. Ready is said when the log
    has been folded and commands are being consumed. Any failure ends the process: its supervisor starts it afresh,
    and it recovers from the log. Raises BusUnavailable if there is no bus.
    """
    telemetry.set_up(definition.name)
    async with _hosting(definition, settings) as host, asyncio.TaskGroup() as tasks:
        stop = _stop_signal()
        running = [tasks.create_task(host.engine.run())]
        running += [tasks.create_task(task()) for task in attach(host)]
        stopping = asyncio.ensure_future(stop.wait())
        caught_up = asyncio.ensure_future(host.engine.caught_up())
        await asyncio.wait({stopping, caught_up}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            await host.broker.start()
            if definition.commands:
                running.append(tasks.create_task(watch_durable(host.bus, definition.name)))
            say_ready(settings.ready_fd)
            _log.info("ready", seq=host.engine.folded_seq)
        await stopping
        _log.info("stopping")
        # First no more commands, then no more engine: one in hand still needs the fold to be answered.
        await host.broker.stop()
        for task in (caught_up, *running):
            task.cancel()


@asynccontextmanager
async def _hosting(definition: Definition[S], settings: BusSettings) -> AsyncIterator[Host[S]]:
    bus = await NatsBus.connect(settings.nats_url, definition.name)
    broker = make_broker(settings.nats_url, definition.name)
    try:
        await ensure_streams(bus)
        yield Host(Engine(definition, bus, SystemClock(), settings.timing.tick_ms), bus, broker)
    finally:
        await broker.stop()
        await bus.close()
        telemetry.flush()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
