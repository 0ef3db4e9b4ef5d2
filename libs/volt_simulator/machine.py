"""A node: its machine with shims and GPUs, and the agents that come and go on it.

Shims and workloads outlive their agent; all of them outlive nothing of their machine. Everything that a workload does
on a GPU is told to `Floor`, which nobody but the laws can see.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from volt.contracts.clusters import Exit
from volt.contracts.ids import GpuUuid, JobId, LeaseId
from volt.contracts.nodes import DesiredLease
from volt.contracts.telemetry import GpuReading
from volt.contracts.timing import Timing
from volt_simulator.plan import Ending, NodePlan
from volt_simulator.wire import Link, Network

PEER_FAILS_SECONDS = 0.1
"""How soon the ranks fail whose peer is gone."""
KILLED = 9


@dataclass(frozen=True)
class Work:
    """What a workload does when left alone."""

    works_ms: int
    ending: Ending


@dataclass
class Process:
    """The processes of one lease's generation on one machine, behind their shim."""

    machine: "Machine"
    lease: LeaseId
    job: JobId
    generation: int
    gpus: tuple[GpuUuid, ...]
    processes: int
    on_end: Callable[[tuple[Exit, ...]], None]
    on_freeze: Callable[[], None]
    deadline_ms: float
    """On the machine's own clock."""
    works_s: float | None = None
    """How long it still works; None: for ever."""
    since_s: float = 0
    """Since when it runs, by the loop; while it is frozen, since when it is."""
    is_frozen: bool = False
    is_orphan: bool = False
    """Whether its agent is dead, so that nobody can thaw it."""
    is_disturbed: bool = False
    """Whether a peer is gone, which it does not see before it is thawed."""
    stop: asyncio.TimerHandle | None = None
    """When it ends after SIGTERM, frozen or not."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def exits(self, code: int | None, signal: int | None = None) -> tuple[Exit, ...]:
        return tuple(Exit(local_rank=rank, code=code, signal=signal) for rank in range(self.processes))


class LawBroken(Exception):
    """One of the laws, or a rule of liveness, does not hold."""


class Floor:
    """What really runs, on all machines: the truth that no message tells."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: dict[JobId, Work]) -> None:
        self.loop, self.work = loop, work
        self.on_gpu: dict[tuple[Machine, GpuUuid], Process] = {}
        """A machine that was copied with its identity has cards of its own, whatever it calls them."""
        self.of_job: dict[JobId, list[Process]] = {}
        self.ran_ms: dict[tuple[LeaseId, int], float] = {}
        """For how long each lease's generation really ran."""

    def begin(self, process: Process) -> None:
        """Raises LawBroken if a GPU is used, or another generation of the job still runs."""
        for gpu in process.gpus:
            if other := self.on_gpu.get((process.machine, gpu)):
                raise LawBroken(f"{gpu} runs {other.lease} and {process.lease}")
            self.on_gpu[process.machine, gpu] = process
        self._check_generation(process)
        self.of_job[process.job].append(process)
        process.since_s = self.loop.time()

    def freeze(self, process: Process) -> None:
        """It does not run on."""
        self._count(process)
        process.is_frozen = True

    def thaw(self, process: Process) -> None:
        """Raises LawBroken if another generation of the job runs by now."""
        process.is_frozen, process.since_s = False, self.loop.time()
        self._check_generation(process)
        if process.is_disturbed:
            self.disturb(process)

    def disturb(self, process: Process) -> None:
        """A peer is gone, so that it will fail."""
        process.is_disturbed = True
        process.timers.append(self.loop.call_later(PEER_FAILS_SECONDS, process.machine.fail, process))

    def end(self, process: Process, *, disturbs: bool) -> None:
        """It is gone; if that disturbs its peers they fail soon after."""
        for gpu in process.gpus:
            del self.on_gpu[process.machine, gpu]
        peers = self.of_job[process.job]
        peers.remove(process)
        if not process.is_frozen:
            self._count(process)
        if disturbs:
            for peer in peers:
                self.disturb(peer)

    def _count(self, process: Process) -> None:
        """For how long it has run since it began, or was thawed."""
        key, now_s = (process.lease, process.generation), self.loop.time()
        ran_s = now_s - process.since_s
        self.ran_ms[key] = self.ran_ms.get(key, 0) + ran_s * 1000
        if process.works_s is not None:
            process.works_s = max(0, process.works_s - ran_s)
        process.since_s = now_s

    def _check_generation(self, process: Process) -> None:
        """What is frozen, or stands still with its whole machine, does not run: it will see its deadline first."""
        for peer in self.of_job.setdefault(process.job, []):
            runs = not peer.is_frozen and not peer.machine.stands_still
            if runs and peer.generation != process.generation:
                raise LawBroken(f"{process.job} runs generations {peer.generation} and {process.generation}")
            if runs and peer.lease == process.lease and peer is not process:
                raise LawBroken(f"{process.lease} runs twice")


class Machine:
    """One machine. Its clock drifts; it may stand still, or be off."""

    def __init__(self, plan: NodePlan, network: Network, floor: Floor, timing: Timing, chance: Random) -> None:
        self.plan, self.floor, self.timing, self.chance = plan, floor, timing, chance
        self.network = network
        self.gpus = tuple(f"{plan.node}-{number}" for number in range(4))
        self.loop = floor.loop
        self.still_until = 0.0
        self.processes: dict[LeaseId, Process] = {}
        self.broken: dict[GpuUuid, GpuReading] = {}
        """What the driver tells of GPUs that have failed and were not repaired."""
        self.is_read = False
        """Whether its GPUs are read at all: those of a machine where none ever failed are not."""
        self.cut_until = 0.0
        self.links: list[Link] = []
        self._rate = 1 + plan.drift_ppm / 1_000_000

    def link(self) -> Link:
        """A way to the bus, which is this machine's."""
        link = Link(self.network, self.chance)
        link.cut_until = self.cut_until
        self.links.append(link)
        return link

    def drop(self, *links: Link) -> None:
        """These ways are used no more."""
        self.links = [link for link in self.links if link not in links]

    def cut(self, until: float) -> None:
        self.cut_until = until
        for link in self.links:
            link.cut_until = until

    def boot_ms(self) -> float:
        """Its own clock."""
        return self.loop.time() * 1000 * self._rate

    async def sleep_ms(self, ms: float) -> None:
        """Waits by its own clock, and on while it stands still."""
        await asyncio.sleep(ms / 1000 / self._rate)
        await self.thawed()

    @property
    def stands_still(self) -> bool:
        return self.still_until > self.loop.time()

    async def thawed(self) -> None:
        while self.still_until > self.loop.time():  # noqa: ASYNC110  # It may be told to stand still for longer.
            await asyncio.sleep(self.still_until - self.loop.time())

    def stand_still(self, until: float) -> None:
        """The whole machine; deadlines that have passed meanwhile are the first thing it sees."""
        self.still_until = until
        self.loop.call_at(until, self._check_deadlines)

    def start(
        self,
        desired: DesiredLease,
        deadline_ms: float,
        on_end: Callable[[tuple[Exit, ...]], None],
        on_freeze: Callable[[], None],
    ) -> None:
        """Starts the processes of a lease's generation. Raises LawBroken."""
        work = self.floor.work[desired.job]
        process = Process(
            machine=self,
            lease=desired.lease,
            job=desired.job,
            generation=desired.generation,
            gpus=desired.gpus,
            processes=desired.processes,
            on_end=on_end,
            on_freeze=on_freeze,
            deadline_ms=deadline_ms,
            works_s=None if work.ending == "endless" else work.works_ms / 1000,
        )
        self.floor.begin(process)
        self.processes[desired.lease] = process
        self._go_on(process)

    def extend(self, deadline_ms: float) -> None:
        """The agent's beat was acknowledged. What has passed its deadline by now does not run on by that."""
        for process in self.processes.values():
            if not process.is_frozen and self.boot_ms() <= process.deadline_ms:
                process.deadline_ms = max(process.deadline_ms, deadline_ms)

    def thaw(self, lease: LeaseId, deadline_ms: float) -> None:
        """What is frozen goes on until this instant. Raises LawBroken."""
        process = self.processes.get(lease)
        if process is not None and process.is_frozen:
            process.deadline_ms = deadline_ms
            self.floor.thaw(process)
            self._go_on(process)

    def orphan(self) -> None:
        """The agent is dead; nobody can thaw what it has left."""
        for process in list(self.processes.values()):
            process.is_orphan = True
            if process.is_frozen:
                self._gone(process, process.exits(None), disturbs=True)

    def stop(self, lease: LeaseId, grace_ms: int) -> None:
        """SIGTERM, and SIGKILL after the grace. `on_end` tells of the end."""
        process = self.processes.get(lease)
        if process is not None:
            takes_ms = self.chance.uniform(0, grace_ms) if grace_ms else 0
            process.stop = self.loop.call_later(takes_ms / 1000, self._stopped, process)

    def break_gpu(self, reading: GpuReading) -> None:
        """It has failed, and what ran on it has ended without an exit of its own."""
        self.broken[reading.gpu], self.is_read = reading, True
        for process in list(self.processes.values()):
            if reading.gpu in process.gpus:
                self._gone(process, process.exits(None), disturbs=True)

    def readings(self) -> tuple[GpuReading, ...]:
        """What the driver tells, where anybody reads it."""
        return tuple(self.broken.get(gpu, GpuReading(gpu=gpu)) for gpu in self.gpus) if self.is_read else ()

    def kill_all(self) -> None:
        """Nothing of what ran is left, and nobody saw it end."""
        for process in list(self.processes.values()):
            self._gone(process, (), disturbs=True)

    def fail(self, process: Process) -> None:
        """The processes fail, since a peer is gone."""
        if not process.is_frozen and not self._stands_still(self.fail, process):
            self._gone(process, process.exits(1), disturbs=False)

    def _go_on(self, process: Process) -> None:
        if process.works_s is not None:
            ending = self.floor.work[process.job].ending
            process.timers.append(self.loop.call_later(process.works_s, self._exit, process, ending))
        self._watch_deadline(process)

    def _exit(self, process: Process, ending: Ending) -> None:
        if not self._stands_still(self._exit, process, ending):
            code = 1 if ending == "fails" else 0
            self._gone(process, process.exits(code), disturbs=code != 0)

    def _stopped(self, process: Process) -> None:
        if not self._stands_still(self._stopped, process):
            self._gone(process, process.exits(None, KILLED), disturbs=True)

    def _watch_deadline(self, process: Process) -> None:
        left_ms = process.deadline_ms - self.boot_ms()
        process.timers = [timer for timer in process.timers if timer.when() > self.loop.time()]
        process.timers.append(self.loop.call_later(max(left_ms, 0) / 1000 / self._rate, self._at_deadline, process))

    def _at_deadline(self, process: Process) -> None:
        if self.processes.get(process.lease) is not process or self.still_until > self.loop.time():
            return
        if process.is_frozen:
            return
        if process.deadline_ms > self.boot_ms() + 1:
            self._watch_deadline(process)
        elif process.is_orphan:
            self._gone(process, process.exits(None), disturbs=True)
        else:
            self._freeze(process)

    def _freeze(self, process: Process) -> None:
        for timer in process.timers:
            timer.cancel()
        self.floor.freeze(process)
        longest_s = self.timing.frozen_ms_max / 1000 / self._rate
        process.timers = [self.loop.call_later(longest_s, self._give_up, process)]
        process.on_freeze()

    def _give_up(self, process: Process) -> None:
        """It was frozen for too long."""
        if not self._stands_still(self._give_up, process):
            self._gone(process, process.exits(None), disturbs=True)

    def _check_deadlines(self) -> None:
        for process in list(self.processes.values()):
            self._at_deadline(process)

    def _stands_still(self, call: Callable[..., None], process: Process, *arguments: object) -> bool:
        """Whether it is to happen later: when the machine goes on, if its process is there by then."""
        if self.processes.get(process.lease) is not process:
            return True
        if self.still_until <= self.loop.time():
            return False
        # Behind the check of the deadlines, which was put at the same instant before.
        self.loop.call_at(self.still_until, call, process, *arguments)
        return True

    def _gone(self, process: Process, exits: tuple[Exit, ...], *, disturbs: bool) -> None:
        del self.processes[process.lease]
        for timer in (*process.timers, process.stop):
            if timer is not None:
                timer.cancel()
        self.floor.end(process, disturbs=disturbs)
        process.on_end(exits)
