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
    deadline_ms: float
    """On the machine's own clock."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def exits(self, code: int | None, signal: int | None = None) -> tuple[Exit, ...]:
        return tuple(Exit(local_rank=rank, code=code, signal=signal) for rank in range(self.processes))


class LawBroken(Exception):
    """One of the laws, or a rule of liveness, does not hold."""


class Floor:
    """What really runs, on all machines: the truth that no message tells."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: dict[JobId, Work]) -> None:
        self.loop, self.work = loop, work
        self.on_gpu: dict[GpuUuid, Process] = {}
        self.of_job: dict[JobId, list[Process]] = {}
        self.ran_ms: dict[tuple[LeaseId, int], float] = {}
        """For how long each lease's generation really ran."""
        self._since: dict[int, float] = {}

    def begin(self, process: Process) -> None:
        """Raises LawBroken if a GPU is used, or another generation of the job still runs.

        What stands still with its whole machine does not run; its deadline is the first thing that it will see.
        """
        for gpu in process.gpus:
            if other := self.on_gpu.get(gpu):
                raise LawBroken(f"{gpu} runs {other.lease} and {process.lease}")
            self.on_gpu[gpu] = process
        peers = self.of_job.setdefault(process.job, [])
        for peer in peers:
            if peer.generation != process.generation and not peer.machine.stands_still:
                raise LawBroken(f"{process.job} runs generations {peer.generation} and {process.generation}")
        peers.append(process)
        self._since[id(process)] = self.loop.time()

    def end(self, process: Process, *, disturbs: bool) -> None:
        """It is gone; if that disturbs its peers they fail soon after."""
        for gpu in process.gpus:
            del self.on_gpu[gpu]
        peers = self.of_job[process.job]
        peers.remove(process)
        key = (process.lease, process.generation)
        ran_ms = (self.loop.time() - self._since.pop(id(process))) * 1000
        self.ran_ms[key] = self.ran_ms.get(key, 0) + ran_ms
        if disturbs:
            for peer in list(peers):
                timer = self.loop.call_later(PEER_FAILS_SECONDS, peer.machine.fail, peer)
                peer.timers.append(timer)


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

    def start(self, desired: DesiredLease, deadline_ms: float, on_end: Callable[[tuple[Exit, ...]], None]) -> None:
        """Starts the processes of a lease's generation. Raises LawBroken."""
        process = Process(
            machine=self,
            lease=desired.lease,
            job=desired.job,
            generation=desired.generation,
            gpus=desired.gpus,
            processes=desired.processes,
            on_end=on_end,
            deadline_ms=deadline_ms,
        )
        self.floor.begin(process)
        self.processes[desired.lease] = process
        work = self.floor.work[desired.job]
        if work.ending != "endless":
            process.timers.append(self.loop.call_later(work.works_ms / 1000, self._exit, process, work.ending))
        self._watch_deadline(process)

    def extend(self, deadline_ms: float) -> None:
        """The agent's beat was acknowledged."""
        for process in self.processes.values():
            process.deadline_ms = max(process.deadline_ms, deadline_ms)

    def stop(self, lease: LeaseId, grace_ms: int) -> None:
        """SIGTERM, and SIGKILL after the grace. `on_end` tells of the end."""
        process = self.processes.get(lease)
        if process is not None:
            takes_ms = self.chance.uniform(0, grace_ms) if grace_ms else 0
            process.timers.append(self.loop.call_later(takes_ms / 1000, self._stopped, process))

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
        if not self._stands_still(self.fail, process):
            self._gone(process, process.exits(1), disturbs=False)

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
        if process.deadline_ms <= self.boot_ms() + 1:
            self._gone(process, process.exits(None), disturbs=True)
        else:
            self._watch_deadline(process)

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
        for timer in process.timers:
            timer.cancel()
        self.floor.end(process, disturbs=disturbs)
        process.on_end(exits)
