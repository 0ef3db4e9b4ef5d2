"""The whole control plane as child processes of this one, on loopback, in one data folder.

```
<data>/lock ports.json context.json        one control plane per folder; the ports of the last start
<data>/nats/ valkey/ logs/<name>.log       the bus's store, the views' server, what each child printed
<data>/checkpoints/                        the store of the server of checkpoints
```
Both nats-servers and Valkey start first, then all services at once. They stop the other way round. A child that
dies is started again; one that keeps dying ends the control plane with its error.
"""

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from volt.contracts.timing import ProfileName
from volt.embedded.errors import DataFolderInUse
from volt.embedded.failure import FailureScope
from volt.embedded.files import holds_files, make_private_dir, remove_tree
from volt.embedded.lock import DataFolderLock
from volt.embedded.nats import checkpoints_program, nats_program
from volt.embedded.ports import LOOPBACK, remembered_ports
from volt.embedded.program import Program
from volt.embedded.service import DEFAULT_LIMITS, Limits, Service
from volt.embedded.valkey import valkey_program


def python_module(module: str) -> tuple[str, ...]:
    """The command that runs `module`; -P keeps the folder it is run in off the import path."""
    return (sys.executable, "-P", "-m", module)


SERVICES: Mapping[str, Sequence[str]] = {
    "bid-intake": python_module("volt_bid_intake"),
    "matcher": python_module("volt_matcher"),
    "provisioner": python_module("volt_provisioner"),
    "health-monitor": python_module("volt_health_monitor"),
    "billing": python_module("volt_billing"),
    "gateway": python_module("volt_gateway"),
}

# What a child sees of the environment of this process. The rest of a user's shell is none of its business, and least
# of all a key.
PASSED_VARIABLES = frozenset({"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
PASSED_PREFIXES = ("COVERAGE_", "LC_", "OTEL_", "PYTHON", "VOLT_")
WITHHELD_VARIABLES = frozenset({"VOLT_API_KEY"})

PORT_NAMES = ("nats", "nats-monitor", "valkey", "gateway", "checkpoints", "checkpoints-monitor")


class ControlPlane:
    """The control plane, running while the `async with` block does.

    ```
    async with ControlPlane(data_dir, "embedded") as control_plane:
        ...  # control_plane.nats_url, .redis_url, .gateway_url
    ```
    A child that cannot be kept alive cancels the block, and its error is raised from it. With
    `temporary`, the folder, which has to be empty or absent, is removed at the end.
    Raises EmbeddedError: any of those in `volt.embedded.errors`.
    """

    def __init__(
        self,
        data_dir: Path,
        profile: ProfileName,
        *,
        services: Mapping[str, Sequence[str]] = SERVICES,
        limits: Limits = DEFAULT_LIMITS,
        temporary: bool = False,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._profile = profile
        self._commands = services
        self._limits = limits
        self._temporary = temporary
        self._ports: dict[str, int] = {}
        self._layers: list[dict[str, Service]] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self._scope: FailureScope | None = None

    @property
    def nats_url(self) -> str:
        """Where the bus listens."""
        return f"nats://{LOOPBACK}:{self._ports['nats']}"

    @property
    def nats_monitor_url(self) -> str:
        """Where the bus answers /jsz, /varz and /healthz."""
        return f"http://{LOOPBACK}:{self._ports['nats-monitor']}"

    @property
    def checkpoints_url(self) -> str:
        """Where the objects of checkpoints are stored."""
        return f"nats://{LOOPBACK}:{self._ports['checkpoints']}"

    @property
    def redis_url(self) -> str:
        """Where Valkey listens."""
        return f"redis://{LOOPBACK}:{self._ports['valkey']}/0"

    @property
    def gateway_url(self) -> str:
        """Where the gateway serves HTTP."""
        return f"http://{LOOPBACK}:{self._ports['gateway']}"

    def service(self, name: str) -> Service:
        """The child `name`: one of the services, `nats`, `checkpoints` or `valkey`."""
        return next(layer[name] for layer in self._layers if name in layer)

    async def __aenter__(self) -> Self:
        assert self._scope is None, "a control plane runs once; make another one"
        self._scope = FailureScope()
        try:
            await self._start()
        except BaseException as error:
            await self._close(error)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(exc)

    @property
    def _entered(self) -> FailureScope:
        assert self._scope is not None, "the control plane was not entered"
        return self._scope

    async def _start(self) -> None:
        if self._temporary and holds_files(self.data_dir):
            raise DataFolderInUse(self.data_dir)
        make_private_dir(make_private_dir(self.data_dir) / "logs")
        lock = DataFolderLock(self.data_dir)
        await lock.acquire()
        self._stack.callback(lock.release)
        if self._temporary:
            self._stack.callback(remove_tree, self.data_dir)
        self._stack.push_async_callback(self._stop_all)
        self._ports = remembered_ports(self.data_dir / "ports.json", PORT_NAMES)
        for layer in (self._stores(), self._service_programs()):
            await self._launch(Service(program, self.data_dir, [lock.descriptor], self._limits) for program in layer)

    def _stores(self) -> Iterable[Program]:
        env, ports = _passed_environment(), self._ports
        yield nats_program(self.data_dir, ports["nats"], ports["nats-monitor"], env)
        yield checkpoints_program(self.data_dir, ports["checkpoints"], ports["checkpoints-monitor"], env)
        yield valkey_program(self.data_dir, ports["valkey"], env)

    def _service_programs(self) -> Iterable[Program]:
        env = {
            **_passed_environment(),
            "PYTHONUNBUFFERED": "1",
            "VOLT_NATS_URL": self.nats_url,
            "VOLT_REDIS_URL": self.redis_url,
            "VOLT_PROFILE": self._profile,
            "VOLT_DATA": str(self.data_dir),
        }
        gateway_env = {"VOLT_GATEWAY_PORT": str(self._ports["gateway"])}
        for name, argv in self._commands.items():
            yield Program(name, argv, env | gateway_env if name == "gateway" else env)

    async def _launch(self, services: Iterable[Service]) -> None:
        layer = {service.name: service for service in services}
        self._layers.append(layer)
        try:
            async with asyncio.TaskGroup() as group:
                for service in layer.values():
                    group.create_task(self._launch_and_keep(service))
        except ExceptionGroup as failures:
            # The first failure is the one to tell; the others, if any, are in its cause.
            raise failures.exceptions[0] from failures

    async def _launch_and_keep(self, service: Service) -> None:
        await service.launch()
        keeper = asyncio.create_task(service.keep_alive(), name=f"keep {service.name} alive")
        keeper.add_done_callback(self._keeper_ended)
        self._keepers.append(keeper)

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        failure = None if keeper.cancelled() else keeper.exception()
        if failure is not None:
            self._entered.fail(failure)

    async def _close(self, error: BaseException | None) -> None:
        self._entered.leave()
        await self._stack.aclose()
        self._entered.raise_failure(error)

    async def _stop_all(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        try:
            for layer in reversed(self._layers):
                await asyncio.gather(*(service.stop() for service in layer.values()))
        finally:
            # Reached with children left only when this was cancelled: they must not outlive the block.
            for layer in self._layers:
                for service in layer.values():
                    service.kill_now()


def _passed_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if (name in PASSED_VARIABLES or name.startswith(PASSED_PREFIXES)) and name not in WITHHELD_VARIABLES
    }
