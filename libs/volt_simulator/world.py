"""A run: the services of production, machines and agents, buyers and providers, on one simulated loop."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from msgspec.structs import replace

from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.contracts.ids import job_id
from volt.contracts.log import Entry
from volt.contracts.messages import encode
from volt.contracts.streams import ALL, LOG
from volt.contracts.subjects import (
    ACCOUNT_COMMANDS,
    BID_COMMANDS,
    JOB_COMMANDS,
    REPORTS,
)
from volt.contracts.telemetry import GpuReading
from volt.contracts.timing import SERVED, Timing
from volt.runtime.engine import Engine
from volt.runtime.log import read_entry
from volt.runtime.memory import EPOCH_MS, MemoryBus
from volt.runtime.ports import Clock, Record
from volt.runtime.subjects import matches
from volt_bid_intake.effects import DEFINITION as BID_INTAKE
from volt_billing.effects import DEFINITION as BILLING
from volt_health_monitor.domain import State as MonitorState
from volt_health_monitor.effects import definition as health_monitor
from volt_health_monitor.handlers import Watch
from volt_matcher.effects import DEFINITION as MATCHER
from volt_provisioner.effects import definition as provisioner
from volt_simulator.agent import Agent
from volt_simulator.laws import Laws
from volt_simulator.loop import Deadlock, LoopClock, SimulatedLoop
from volt_simulator.machine import Floor, LawBroken, Machine, Work
from volt_simulator.people import People
from volt_simulator.plan import SERVICES, Fault, NodePlan, Plan
from volt_simulator.service import Service
from volt_simulator.wire import Link, Network

TIMING: Timing = replace(SERVED, tick_ms=1_000, frozen_ms_max=300_000, prepare_ms_max=60_000, replace_ms_max=600_000)
SETTLE_MS_MAX = 3_600_000
SETTLE_STEP_MS = 10_000
HISTORY_ENTRIES_MAX = 200
ACCOUNTS_SECONDS = 10.0
"""By then every account has been opened."""
RESTART_SECONDS = 1.0
XID_OF_FAILURE = 48


@dataclass(frozen=True)
class Result:
    """What came of a run. `broken` is empty if every law held."""

    seed: int
    broken: str
    at_ms: int
    events: int
    """Messages stored and records delivered."""
    log_events: int
    jobs_closed: int
    generations: int
    digest: str
    """Of the whole log: two runs of one plan have the same."""
    history: tuple[str, ...]


class Runnable(Protocol):
    """A service, whatever its state."""

    name: str
    stuck: dict[str, str]
    dead_letters: list[str]
    death_permyriad: int

    async def live(self) -> None: ...

    def die(self, down_seconds: float) -> None: ...

    def cut(self, until: float) -> None: ...

    def spare(self) -> None: ...


def run(plan: Plan) -> Result:
    """Runs a plan to its end, or to the first law that does not hold."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(World(plan, loop).run())
    finally:
        loop.run_until_complete(_clear_away())
        loop.close()


class SeenBus(MemoryBus):
    """A bus on which every event of the log is looked at as it is stored."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.stored = 0
        self.laws = Laws(TIMING.lost_after_ms)
        self.entries: list[Entry] = []

    def saw(self, record: Record) -> None:
        """Raises LawBroken."""
        self.stored += 1
        if matches(record.subject, LOG.subjects[0]):
            entry = read_entry(record)
            if not isinstance(entry, Entry):
                raise LawBroken(f"nobody can read {record.subject}: {entry.error}")
            self.entries.append(entry)
            self.laws.see(entry)


@dataclass
class _Node:
    machine: Machine
    agent: Agent | None = None
    task: asyncio.Task[None] | None = None
    incarnations: int = 0


class World:
    """Everything and everybody of a run."""

    def __init__(self, plan: Plan, loop: SimulatedLoop) -> None:
        self.plan, self.loop = plan, loop
        self.clock = LoopClock(loop)
        self.bus = SeenBus(self.clock)
        self.network = Network(self.bus, loop, plan.ack_loss_permyriad)
        self.floor = Floor(loop, {})
        self._chance = Random(f"world/{plan.seed}")
        self._services = self._make_services()
        self._nodes = {one.node: self._make_node(one) for one in plan.nodes}
        self._twins: list[_Node] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble = self.network.trouble
        self._people = People(self.network, self._random("people"))

    async def run(self) -> Result:
        """The whole run."""
        broken = ""
        script = asyncio.create_task(self._play())
        try:
            await asyncio.wait({script, self._trouble}, return_when=asyncio.FIRST_COMPLETED)
            (script if script.done() else self._trouble).result()
            self._check_end()
        except (LawBroken, Deadlock) as error:
            broken = str(error)
        except ExceptionGroup as group:
            broken = str(_first(group))
        finally:
            at_ms = self.clock.monotonic_ms()
            tasks = [script, *self._tasks, *self.network.arriving]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._result(broken, at_ms)

    async def _play(self) -> None:
        for spec in ALL:
            await self.bus.ensure(spec)
        for service in self._services:
            service.death_permyriad = self.plan.death_permyriad
            self._spawn(service.live())
        accounts = dict.fromkeys([node.account for node in self.plan.nodes] + [job.account for job in self.plan.jobs])
        # Nobody runs an agent, or asks for anything, before the account is known to be there.
        await asyncio.gather(*(self._people.open_account(account) for account in accounts))
        await asyncio.sleep(ACCOUNTS_SECONDS)
        for node in self._nodes.values():
            self._start_agent(node)
        for job in self.plan.jobs:
            self.floor.work[job_id(job.account, job.request)] = Work(job.works_ms, job.ending)
            self._spawn(self._people.buy(job))
        for fault in self.plan.faults:
            self.loop.call_at(fault.at_ms / 1000, self._strike, fault)
        await asyncio.sleep(self.plan.faults_end_ms / 1000)
        self._calm_down()
        await asyncio.sleep((self.plan.run_ms - self.plan.faults_end_ms) / 1000)
        for job in self.plan.jobs:
            self._spawn(self._people.release(job))
        for _ in range(SETTLE_MS_MAX // SETTLE_STEP_MS):
            await asyncio.sleep(SETTLE_STEP_MS / 1000)
            if not self.bus.laws.settled() and not self.floor.on_gpu:
                return

    def _calm_down(self) -> None:
        """From here on nothing fails any more, and whatever was away is back."""
        self.network.ack_loss_permyriad = 0
        self.network.away_until = 0
        for service in self._services:
            service.cut(0)
            service.spare()
        for node in [*self._nodes.values(), *self._twins]:
            node.machine.cut(0)
            if node.agent is not None:
                node.agent.still_until = 0
        for node in self._nodes.values():
            if node.task is None or node.task.done():
                self._start_agent(node)

    def _check_end(self) -> None:
        """Raises LawBroken for what has not settled, and for a ledger that does not add up."""
        unsettled = self.bus.laws.settled()
        unsettled += [f"{gpu} still runs {process.lease}" for (_, gpu), process in self.floor.on_gpu.items()]
        for service in self._services:
            unsettled += [f"{service.name} is stuck on {subject}: {why}" for subject, why in service.stuck.items()]
            unsettled += [f"dead letter of {letter}" for letter in service.dead_letters]
        if unsettled:
            raise LawBroken(f"{len(unsettled)} unsettled: " + "; ".join(unsettled[:5]))
        report = audit(self.bus.entries)
        findings = [*report.findings, *audit_market(self.bus.entries).findings]
        if findings:
            raise LawBroken(f"the audit finds {findings[0]}")
        for bill in (line for job in report.jobs for line in job.leases):
            ran_ms = sum(ms for (lease, _), ms in self.floor.ran_ms.items() if lease == bill.lease)
            if bill.billable_ms > ran_ms + TIMING.beat_ms:
                raise LawBroken(f"{bill.lease} ran for {ran_ms:.0f} ms and is billed for {bill.billable_ms}")

    def _strike(self, fault: Fault) -> None:
        until = self.loop.time() + fault.for_ms / 1000
        match fault.kind:
            case "bus_away":
                self.network.away_until = max(self.network.away_until, until)
            case "switch_fails":
                for node in self._nodes.values():
                    if node.machine.plan.site == fault.whom:
                        node.machine.cut(max(node.machine.cut_until, until))
            case "service_dies" | "service_cut":
                service = next(one for one in self._services if one.name == fault.whom)
                if fault.kind == "service_cut":
                    service.cut(until)
                else:
                    service.die(fault.for_ms / 1000)
            case _:
                if fault.whom in self._nodes:
                    self._strike_node(fault, self._nodes[fault.whom], until)

    def _strike_node(self, fault: Fault, node: _Node, until: float) -> None:
        match fault.kind:
            case "node_cut":
                node.machine.cut(until)
            case "node_freezes":
                node.machine.stand_still(until)
            case "agent_freezes":
                if node.agent is not None:
                    node.agent.still_until = until
            case "node_dies" | "agent_dies":
                if node.task is not None:
                    node.task.cancel()
                if fault.kind == "node_dies":
                    node.machine.kill_all()
                else:
                    node.machine.orphan()
                self.loop.call_at(until, self._start_agent, node)
            case "gpu_fails" | "gpu_vanishes":
                self._break_gpu(node, vanishes=fault.kind == "gpu_vanishes")
                self.loop.call_at(min(until, self.plan.faults_end_ms / 1000), self._repair, node)
            case "twin":
                node.machine.cut(until)
                twin = self._make_node(node.machine.plan)
                twin.incarnations = 1_000 * (len(self._twins) + 1)
                self._twins.append(twin)
                self._start_agent(twin)
            case "withdraws" | "pauses" | "reprices" | "drains":
                self._spawn(self._people.sell_otherwise(fault, node.machine.plan))
            case _:
                raise AssertionError(f"{fault.kind} is no node's")

    def _break_gpu(self, node: _Node, *, vanishes: bool) -> None:
        gpu = self._chance.choice(node.machine.gpus)
        if not vanishes and node.agent is not None:
            node.agent.see_xid(gpu, XID_OF_FAILURE)
        node.machine.break_gpu(GpuReading(gpu=gpu, vanished=vanishes, ecc_uncorrected=1))

    def _repair(self, node: _Node) -> None:
        """Its provider resets the GPUs and starts the agent afresh; but for a machine that is off, which will be."""
        node.machine.broken.clear()
        if node.task is not None and not node.task.done():
            node.task.cancel()
            self.loop.call_later(RESTART_SECONDS, self._start_agent, node)

    def _start_agent(self, node: _Node) -> None:
        if node.task is not None and not node.task.done():
            return
        node.incarnations += 1
        node.agent = Agent(node.machine, f"{node.machine.plan.node}-{node.incarnations}")
        node.task = self._spawn(node.agent.run())

    def _make_node(self, plan: NodePlan) -> _Node:
        return _Node(Machine(plan, self.network, self.floor, TIMING, self._random(f"node/{plan.node}")))

    def _make_services(self) -> tuple[Runnable, ...]:
        def beside(engine: Engine[MonitorState], link: Link, clock: Clock) -> tuple[Coroutine[None, None, None], ...]:
            watch = Watch(engine, link, clock, lambda: link.reconnects)
            return (watch.follow(), watch.probe(), watch.confirm())

        made = (
            Service(BID_INTAKE, *self._for("bid-intake"), (ACCOUNT_COMMANDS, JOB_COMMANDS, BID_COMMANDS)),
            Service(MATCHER, *self._for("matcher")),
            Service(provisioner(TIMING), *self._for("provisioner"), (REPORTS,)),
            Service(health_monitor(TIMING), *self._for("health-monitor"), beside=beside),
            Service(BILLING, *self._for("billing")),
        )
        assert tuple(service.name for service in made) == SERVICES
        return made

    def _for(self, service: str) -> tuple[Network, LoopClock, int, Random]:
        return self.network, self.clock, TIMING.tick_ms, self._random(f"service/{service}")

    def _random(self, name: str) -> Random:
        return Random(f"{name}/{self.plan.seed}")

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._trouble.done():
            self._trouble.set_exception(error)

    def _result(self, broken: str, at_ms: int) -> Result:
        bus = self.bus
        last = deque(bus.entries, HISTORY_ENTRIES_MAX)
        return Result(
            seed=self.plan.seed,
            broken=broken,
            at_ms=at_ms,
            events=bus.stored + self.network.delivered,
            log_events=len(bus.entries),
            jobs_closed=len(bus.laws.closed),
            generations=sum(bus.laws.generations.values()),
            digest=_digest(bus.entries),
            history=tuple(_told(entry) for entry in last) if broken else (),
        )


async def _clear_away() -> None:
    """A run that a broken law ends leaves tasks of services behind."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _first(error: BaseException) -> BaseException:
    """The first error of a group of groups. Raises it if it is no broken law: then the simulator is at fault."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, LawBroken):
        raise error
    return error


def _digest(entries: Sequence[Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(b"%d %d " % (entry.seq, entry.at_ms) + encode(entry.event))
    return digest.hexdigest()[:16]


def _told(entry: Entry) -> str:
    return f"{entry.seq} {entry.at_ms - EPOCH_MS} {entry.event}"
