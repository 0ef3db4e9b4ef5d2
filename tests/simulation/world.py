"""A market in one event loop: the real services over the bus and the clock in memory, and nodes that are simulated.

Everything that can happen at an instant happens before time goes on, so that a service that dies and starts afresh
loses no time: what it writes then bears the instants that it would have borne.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from tests.simulation.agents import GPUS_PER_NODE, Agent, NodePlan
from tests.simulation.wire import STEP_MS, CountingBus, Crash, StepClock, Wire, Writes
from volt.contracts.clusters import LeaseCleared
from volt.contracts.ids import job_id
from volt.contracts.jobs import OpenAccount, RequestJob, Workload
from volt.contracts.ledger import JobClosed
from volt.contracts.log import Entry
from volt.contracts.messages import Command, Event, encode
from volt.contracts.nodes import NodeAlive
from volt.contracts.streams import ALL, COMMANDS, HEARTBEATS, LOG
from volt.contracts.subjects import (
    ACCOUNT_COMMANDS,
    BID_COMMANDS,
    JOB_COMMANDS,
    MONITOR_PROBE,
    REPORTS,
    command_account,
    command_job,
)
from volt.contracts.timing import Timing
from volt.runtime.engine import Definition, Engine, Verdict
from volt.runtime.log import read_entry
from volt.runtime.memory import settle
from volt.runtime.ports import Bus, Record
from volt_bid_intake.effects import DEFINITION as BID_INTAKE
from volt_billing.effects import DEFINITION as BILLING
from volt_health_monitor.domain import State as MonitorState
from volt_health_monitor.effects import definition as health_monitor
from volt_health_monitor.handlers import Watch
from volt_matcher.effects import DEFINITION as MATCHER
from volt_provisioner.effects import definition as provisioner

TIMING = Timing(
    beat_ms=100,
    fence_after_ms=200,
    lost_after_ms=600,
    frozen_ms_max=5_000,
    tick_ms=100,
    prepare_ms_max=60_000,
    start_ms_max=60_000,
    stop_grace_ms=100,
    replace_ms_max=600_000,
    cover_flush_ms=500,
)
assert TIMING.is_safe()

BUYER, OWNER, REQUEST = "lab", "farm", "r1"
JOB = job_id(BUYER, REQUEST)
WORKS_MS = 950
SILENT_AFTER_MS = 150
LEASES = 3
SCENARIO_MS_MAX = 8_000
AFTERWARDS_MS = 100
DELIVERIES_MAX = 12
DELIVERY_DELAY_MS = 100
QUIET_ROUNDS_MAX = 200

SERVICES = ("bid-intake", "matcher", "provisioner", "health-monitor", "billing")
S = TypeVar("S")


@dataclass
class Outcome:
    """What a run left behind."""

    entries: list[Entry]
    heartbeats: list[Record]
    writes: dict[str, list[str]]
    """Every service's attempts to write, by subject."""
    deaths: Counter[str]
    dead_letters: list[str]
    stuck: dict[str, str]


async def play(crash: Crash | None = None) -> Outcome:
    """The scenario: two accounts, three nodes, a job on two; one falls silent and is replaced; the job completes;
    the silent one comes back and clears what it had."""
    world = World(crash)
    try:
        return await world.play()
    finally:
        await world.stop()


Beside = Callable[[Engine[S], Bus, StepClock], tuple[Coroutine[None, None, None], ...]]


def nothing_beside(_engine: Engine[S], _bus: Bus, _clock: StepClock) -> tuple[Coroutine[None, None, None], ...]:
    return ()


def watching(engine: Engine[MonitorState], bus: Bus, clock: StepClock) -> tuple[Coroutine[None, None, None], ...]:
    """The monitor's own two tasks."""
    watch = Watch(engine, bus, clock, lambda: 0)
    return (watch.follow(), watch.probe(), watch.confirm())


class Runnable(Protocol):
    """A service, whatever its state."""

    name: str
    writes: Writes
    deaths: int
    dead_letters: list[str]
    stuck: dict[str, str]

    async def live(self) -> None: ...


class Service(Generic[S]):
    """A service and what outlives it: the place of its durable consumer. Its state dies with each of its lives."""

    def __init__(
        self,
        definition: Definition[S],
        world: "World",
        commands: tuple[str, ...] = (),
        beside: Beside[S] = nothing_beside,
    ) -> None:
        self.name = definition.name
        self.writes = Writes(self.name, world.crash)
        self.deaths = 0
        self.dead_letters: list[str] = []
        self.stuck: dict[str, str] = {}
        self._definition, self._world, self._commands, self._beside = definition, world, commands, beside
        self._answered_seq = 0

    async def live(self) -> None:
        """Lives, dies and starts afresh from the log, until cancelled."""
        while True:
            wire = Wire(self._world.bus, self.writes)
            running = asyncio.create_task(self._run(wire))
            death = asyncio.create_task(wire.died.wait())
            try:
                await asyncio.wait({running, death}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (running, death):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            assert wire.died.is_set()
            self.deaths += 1

    async def _run(self, wire: Wire) -> None:
        engine = Engine(self._definition, wire, self._world.clock, TIMING.tick_ms)
        self.stuck = engine.stuck
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engine.run())
            for task in self._beside(engine, wire, self._world.clock):
                tasks.create_task(task)
            if self._commands:
                tasks.create_task(self._consume(engine, wire))

    async def _consume(self, engine: Engine[S], wire: Wire) -> None:
        await engine.caught_up()
        async for batch in wire.read(COMMANDS.name, self._commands, after_seq=self._answered_seq):
            for record in batch.records:
                await self._deliver(engine, record)
                self._answered_seq = record.seq

    async def _deliver(self, engine: Engine[S], record: Record) -> None:
        """Delivers one command until it is answered, as the durable consumer does with one in flight."""
        for _ in range(DELIVERIES_MAX):
            outcome = await engine.handle(record.subject, record.data, record.seq, record.at_ms)
            if outcome.verdict not in (Verdict.RETRY, Verdict.AWAY):
                break
            await self._world.clock.sleep(DELIVERY_DELAY_MS / 1000)
        if outcome.verdict is not Verdict.DONE:
            self.dead_letters.append(f"{self.name}: {record.subject}: {outcome.error}")


class World:
    """The market of the scenario."""

    def __init__(self, crash: Crash | None) -> None:
        self.crash = crash
        self.clock = StepClock()
        self.bus = CountingBus(self.clock)
        self._services: tuple[Runnable, ...] = (
            Service(BID_INTAKE, self, (ACCOUNT_COMMANDS, JOB_COMMANDS, BID_COMMANDS)),
            Service(MATCHER, self),
            Service(provisioner(TIMING), self, (REPORTS,)),
            Service(health_monitor(TIMING), self, beside=watching),
            Service(BILLING, self),
        )
        self._entries: list[Entry] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def play(self) -> Outcome:
        for spec in ALL:
            await self.bus.ensure(spec)
        self._tasks.append(asyncio.create_task(self._follow()))
        self._tasks += [asyncio.create_task(service.live()) for service in self._services]
        for account in (BUYER, OWNER):
            opening = OpenAccount(account=account, request_id="open", key_sha256="0" * 64)
            await self._ask(command_account(account), opening)
        await self._quiet()
        await self.happen()
        for _ in range(AFTERWARDS_MS // STEP_MS):
            await self._step()
        return await self._outcome()

    async def happen(self) -> None:
        """What happens once all services and both accounts are there."""
        self._start_nodes(plans())
        await self._pass_until(NodeAlive, len(plans()))
        await self._ask(command_job(BUYER), request())
        await self._pass_until(JobClosed, 1)
        self._start_nodes(returning())
        await self._pass_until(LeaseCleared, LEASES)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_nodes(self, starting: Sequence[NodePlan]) -> None:
        self._tasks += [asyncio.create_task(Agent(self.bus, self.clock, plan).run()) for plan in starting]

    async def _ask(self, subject: str, command: Command) -> None:
        await self.bus.publish(subject, encode(command))

    async def _pass_until(self, kind: type[Event], count: int) -> None:
        await self._quiet()
        while sum(isinstance(entry.event, kind) for entry in self._entries) < count:
            assert self.clock.monotonic_ms() < SCENARIO_MS_MAX, f"no {count} of {kind.__name__}, for ever"
            await self._step()

    async def _step(self) -> None:
        self.clock.step()
        await self._quiet()

    async def _quiet(self) -> None:
        """Lets happen all that can happen at this instant."""
        for _ in range(QUIET_ROUNDS_MAX):
            stored = self.bus.stored
            await settle()
            for task in self._tasks:
                if task.done():
                    task.result()
            if self.bus.stored == stored:
                return
        raise AssertionError("there is no end of writing at one instant")

    async def _follow(self) -> None:
        async for batch in self.bus.read(LOG.name, ["log.>"]):
            for record in batch.records:
                entry = read_entry(record)
                assert isinstance(entry, Entry), entry
                self._entries.append(entry)

    async def _records(self, stream: str, subject: str) -> list[Record]:
        """All that a stream holds by now."""
        found: list[Record] = []
        async for batch in self.bus.read(stream, [subject]):
            found += batch.records
            if batch.pending == 0:
                break
        return found

    async def _outcome(self) -> Outcome:
        beats = await self._records(HEARTBEATS.name, "heartbeats.>")
        return Outcome(
            entries=self._entries,
            heartbeats=[record for record in beats if record.subject != MONITOR_PROBE],
            writes={service.name: service.writes.subjects for service in self._services},
            deaths=Counter({service.name: service.deaths for service in self._services if service.deaths}),
            dead_letters=[letter for service in self._services for letter in service.dead_letters],
            stuck={subject: error for service in self._services for subject, error in service.stuck.items()},
        )


def plans() -> tuple[NodePlan, ...]:
    """The two cheapest nodes get the job; the second of them falls silent, and the third replaces it."""
    return tuple(
        NodePlan(
            account=OWNER,
            node=node,
            ask_microusd_per_gpu_hour=ask_microusd,
            works_ms=WORKS_MS,
            beat_ms=TIMING.beat_ms,
            silent_after_ms=silent_after_ms,
        )
        for node, ask_microusd, silent_after_ms in (
            ("n1", 1_000_000, None),
            ("n2", 1_100_000, SILENT_AFTER_MS),
            ("n3", 1_200_000, None),
        )
    )


def returning() -> tuple[NodePlan, ...]:
    """The silent node comes back when all is over, started afresh and with nothing of what it had."""
    return tuple(
        replace(plan, silent_after_ms=None, incarnation="i2") for plan in plans() if plan.silent_after_ms is not None
    )


def request() -> RequestJob:
    return RequestJob(
        account=BUYER,
        request_id=REQUEST,
        gpu="rtx-4090",
        count=2 * GPUS_PER_NODE,
        nodes=2,
        workload=Workload(kind="ddp", command=("python", "train.py")),
    )
