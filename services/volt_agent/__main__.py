"""`python -m volt_agent`: one node's agent, until SIGTERM or SIGINT."""

import asyncio
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import structlog

from volt.contracts.bids import Gpu
from volt.contracts.errors import Unavailable, VoltError
from volt.runtime import telemetry
from volt.runtime.nats import NatsBus
from volt.runtime.readiness import say_ready
from volt.runtime.settings import from_environment
from volt_agent.beat import EXIT_IDENTITY_TAKEN
from volt_agent.checkpoints.lease import SharedStore
from volt_agent.gauge import Gauge
from volt_agent.gpus import find_gpus
from volt_agent.handlers import Agent
from volt_agent.heart import Heart, HeartStopped
from volt_agent.identity import held_identity, new_incarnation
from volt_agent.kernel import boot_ms
from volt_agent.meters import measure
from volt_agent.process import ProcessRuntime
from volt_agent.processes import become_subreaper
from volt_agent.settings import Settings, declared_gpus
from volt_agent.store.opening import check_url

EXIT_FAILED = 1
EXIT_REFUSED = 3

_log = structlog.get_logger("volt.agent")


async def main() -> int:
    """Runs the agent. Returns 0 after a wanted stop, 3 when VOLT or another agent refuses it, 1 if it failed."""
    telemetry.set_up("agent")
    code = 0
    try:
        settings = from_environment(Settings)
        check_url(settings.checkpoints_url)
        with held_identity(settings.state_folder) as node:
            await _run(settings, node)
    except* (VoltError, HeartStopped) as group:
        for error in _leaves(group):
            _log.error("stopped", error=str(error))
        code = EXIT_REFUSED if any(map(_is_refusal, _leaves(group))) else EXIT_FAILED
    return code


async def _run(settings: Settings, node: str) -> None:
    gpus = _gpus(settings, node)
    bus = await NatsBus.connect(settings.nats_url, f"agent-{node}")
    checkpoints = SharedStore(settings.checkpoints_url, f"checkpoints-{node}")
    try:
        become_subreaper()
        incarnation = new_incarnation()
        heart = Heart(settings, node, incarnation)
        address = settings.address or _own_address(settings.nats_url)
        runtime = ProcessRuntime(
            address,
            settings.state_folder,
            own=lambda: heart.pids,
            frozen_ms_max=settings.timing.frozen_ms_max,
        )
        await runtime.end_leftovers()
        # Declared GPUs are nobody's to read.
        gauge = None if settings.gpus else Gauge((gpu.uuid for gpu in gpus), boot_ms)
        if gauge is not None:
            measure(gauge, node)
        agent = Agent(settings, node, incarnation, gpus, bus, runtime, heart, checkpoints, gauge)
        running = asyncio.create_task(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        say_ready(settings.ready_fd)
        _log.info("agent_started", node=node, gpus=[gpu.uuid for gpu in gpus])
        await running
    except asyncio.CancelledError:
        _log.info("agent_stopped", node=node)
    finally:
        await checkpoints.close()
        await bus.close()


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, HeartStopped):
        return error.code == EXIT_IDENTITY_TAKEN
    return isinstance(error, VoltError) and not isinstance(error, Unavailable)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _gpus(settings: Settings, node: str) -> tuple[Gpu, ...]:
    return declared_gpus(settings.gpus, node) if settings.gpus else find_gpus()


def _own_address(nats_url: str) -> str:
    """The address from which this machine reaches the bus; nothing is sent to find it."""
    parts = urlsplit(nats_url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 4222
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(ipaddress.ip_address(probe.getsockname()[0]))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
