"""A market on several hosts: a real bus and real services on one, the monitor and each agent on one of their own.

The processes are those of `volt up` and `volt agent run`, with the environment that these give them; only the bus
listens on the address of its host, as it does in a deployment of several machines. All hosts share one disk, where the
workloads leave their steps.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import msgspec

from benchmarks.market import Observer
from tests.hosts.network import Namespace, Network
from volt.contracts.ids import NodeId
from volt.contracts.messages import Event, encode
from volt.contracts.nodes import NodeAlive, NodeEvent
from volt.contracts.subjects import command_job
from volt.contracts.timing import EMBEDDED
from volt.embedded import SERVICES, Child, Service
from volt.embedded.accounts import new_api_key, open_account
from volt.embedded.nats import nats_program
from volt.embedded.program import Program
from volt.embedded.service import DEFAULT_LIMITS
from volt.embedded.supervisor import python_module
from volt.embedded.valkey import valkey_program
from volt.runtime.nats import NatsBus

AGENTS = ("node-0", "node-1", "node-2", "node-3")
BUS_PORT, BUS_MONITOR_PORT, VALKEY_PORT, GATEWAY_PORT = 4222, 8222, 6379, 8420
"""Every port is free on a host that has just been made."""
ON_THE_HOST = f"nats://127.0.0.1:{BUS_PORT}"
BUYER, PROVIDER = "buyer", "north"
SECONDS_MAX = 20.0
POLL_SECONDS = 0.05
L_SECONDS = EMBEDDED.lost_after_ms / 1000
F_SECONDS = EMBEDDED.fence_after_ms / 1000


@dataclass(frozen=True)
class Agent:
    """A node: its host, its agent's process, and the folder that makes it the same one after a restart."""

    host: Namespace
    child: Child
    state: Path

    @property
    def node(self) -> NodeId:
        return (self.state / "node").read_text().strip()


@dataclass(frozen=True)
class House:
    """What a test works with. The thread of the test is on the host of the control plane."""

    folder: Path
    network: Network
    services: Mapping[str, Service]
    agents: Mapping[str, Agent]
    bus: NatsBus
    observer: Observer

    @property
    def steps(self) -> Path:
        """Where the workloads write."""
        return self.folder / "steps"

    @property
    def events(self) -> list[Event]:
        return [seen.entry.event for seen in self.observer.all]

    def agent_of(self, node: NodeId) -> str:
        return next(name for name, agent in self.agents.items() if agent.node == node)

    def states(self) -> dict[NodeId, NodeEvent]:
        """What the log says of each node, last."""
        return {event.node: event for event in self.events if isinstance(event, NodeEvent)}

    async def all_alive(self) -> None:
        await until(lambda: [type(event) for event in self.states().values()] == [NodeAlive] * len(self.agents))

    async def restart(self, name: str) -> None:
        """The agent of a host is started again, as its service manager would do."""
        agent = self.agents[name]
        await agent.child.wait()
        await agent.child.start({}, [])

    @asynccontextmanager
    async def newcomer(self, name: str, *, on: str) -> AsyncIterator[Child]:
        """A second agent of the node `name`, on another host: all that it has of the first is who it is."""
        state = self.folder / f"{name}-copy"
        state.mkdir()
        (state / "node").write_text(self.agents[name].node)
        child = _agent(self.folder, self.network, on, state)
        await child.start({}, [])
        try:
            yield child
        finally:
            await child.stop()
            rmtree(state)

    @asynccontextmanager
    async def cut(self, *hosts: str) -> AsyncIterator[None]:
        """No packet reaches these hosts, and none leaves them, while the block runs."""
        self.network.cut(*hosts)
        try:
            yield
        finally:
            self.network.heal(*hosts)

    async def send(self, command: msgspec.Struct, request_id: str) -> None:
        await self.bus.publish(command_job(BUYER), encode(command), message_id=request_id)


async def until(condition: Callable[[], bool]) -> None:
    """Asks again until it is so. Raises TimeoutError after `SECONDS_MAX`."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  # files and processes tell nobody that they changed
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def open_house(folder: Path) -> AsyncIterator[House]:
    """Starts everything, yields when every node is alive, and leaves nothing behind."""
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(("control", "watch", *AGENTS)))
        stack.enter_context(network.host("control").entered())
        (folder / "control" / "logs").mkdir(parents=True)
        (folder / "steps").mkdir()
        services: dict[str, Service] = {}
        for layer in (_stores(folder / "control"), _services(network)):
            services |= await _launch(stack, folder / "control", layer)
        bus = await NatsBus.connect(ON_THE_HOST, "house")
        stack.push_async_callback(bus.close)
        await asyncio.gather(*(open_account(bus, one, new_api_key()) for one in (BUYER, PROVIDER)))
        observer = Observer()
        watching = asyncio.create_task(observer.watch(bus))
        stack.callback(watching.cancel)
        agents = {name: await _start_agent(stack, folder, network, name) for name in AGENTS}
        house = House(folder, network, services, agents, bus, observer)
        await until(lambda: all((agent.state / "node").exists() for agent in agents.values()))
        await until(lambda: len(house.states()) == len(agents))
        yield house


def _stores(data: Path) -> Iterator[Program]:
    bus = nats_program(data, BUS_PORT, BUS_MONITOR_PORT, _environment())
    config = data / "nats" / "nats.conf"
    listening = msgspec.json.decode(config.read_bytes()) | {"listen": f"0.0.0.0:{BUS_PORT}"}
    config.write_bytes(msgspec.json.encode(listening))
    yield bus
    yield valkey_program(data, VALKEY_PORT, _environment())


def _services(network: Network) -> Iterator[Program]:
    ours = _environment(
        VOLT_NATS_URL=ON_THE_HOST,
        VOLT_REDIS_URL=f"redis://127.0.0.1:{VALKEY_PORT}/0",
        VOLT_GATEWAY_PORT=str(GATEWAY_PORT),
    )
    for name, argv in SERVICES.items():
        if name == "health-monitor":
            there = {"VOLT_NATS_URL": bus_url(network)}
            yield Program(name, network.host("watch").inside(*argv), ours | there)
        else:
            yield Program(name, argv, ours)


async def _launch(stack: AsyncExitStack, data: Path, programs: Iterator[Program]) -> dict[str, Service]:
    services = {program.name: Service(program, data, [], DEFAULT_LIMITS) for program in programs}
    for service in services.values():
        stack.push_async_callback(service.stop)
    async with asyncio.TaskGroup() as launching:
        for service in services.values():
            launching.create_task(service.launch())
    for service in services.values():
        stack.callback(asyncio.create_task(service.keep_alive()).cancel)
    return services


async def _start_agent(stack: AsyncExitStack, folder: Path, network: Network, name: str) -> Agent:
    child = _agent(folder, network, name, folder / name)
    stack.push_async_callback(child.stop)
    await child.start({}, [])
    return Agent(network.host(name), child, folder / name)


def _agent(folder: Path, network: Network, host: str, state: Path) -> Child:
    """An agent with one H100 on the fabric that all nodes share."""
    environment = _environment(
        VOLT_NATS_URL=bus_url(network),
        VOLT_ACCOUNT=PROVIDER,
        VOLT_STATE=str(state),
        VOLT_GPUS="1xh100-80gb",
        VOLT_PRICE="1000000",
        VOLT_FABRIC="A",
        VOLT_REGION="eu",
        VOLT_WORKDIR=str(folder),
    )
    command = network.host(host).inside(*python_module("volt_agent"))
    return Child(state.name, command, environment, folder, folder / f"{state.name}.log")


def bus_url(network: Network) -> str:
    """Where every other host finds the bus."""
    return f"nats://{network.address('control')}:{BUS_PORT}"


def _environment(**settings: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "PYTHONUNBUFFERED": "1", "VOLT_PROFILE": "embedded", **settings}
