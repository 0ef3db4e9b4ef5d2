"""What an agent does about its leases: one keeper for each, which takes the next step until nothing is left to do."""

import asyncio
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial

import structlog
from msgspec.structs import replace as replace_struct

from volt.contracts.clusters import Exit
from volt.contracts.errors import BusUnavailable
from volt.contracts.messages import encode
from volt.contracts.nodes import (
    DesiredLease,
    Report,
    ReportCheckpoint,
    ReportCleared,
)
from volt.contracts.subjects import command_report
from volt.contracts.units import MS_PER_SECOND
from volt_agent.checkpoints.lease import DRAIN_SECONDS_MAX, LeaseCheckpoints
from volt_agent.checkpoints.storing import Stored
from volt_agent.domain import (
    Finished,
    Frozen,
    Local,
    Nothing,
    Prepared,
    Running,
    Step,
    Steps,
    next_step,
    told,
    unreported,
)
from volt_agent.endings import exit_of, failure_of, is_done, unstarted
from volt_agent.launch import launches_of
from volt_agent.node import Node
from volt_agent.output import Output
from volt_agent.process import Workload
from volt_agent.reports import Whose, report_of
from volt_agent.runtimes import RankExit, WorkloadError

STEP_RETRY_SECONDS = 0.5
REPORT_AGAIN_SECONDS_MIN = 5.0
REPORT_AGAIN_SECONDS_MAX = 300.0
"""A report is repeated while what it says is so, at intervals that double from the one to the other."""

_log = structlog.get_logger("volt.agent")


class Keeper:
    """Brings one lease to what is desired of it."""

    def __init__(self, node: Node, desired: DesiredLease) -> None:
        self.desired = desired
        self.local: Local = Nothing()
        self._node = node
        self._workload: Workload | None = None
        folder = node.runtime.jobs / desired.job / desired.lease
        self._checkpoints = LeaseCheckpoints(node.checkpoints, folder, time.monotonic)
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._is_listed = True
        self._again_seconds = REPORT_AGAIN_SECONDS_MIN
        self._fences, self._freezes = node.heart.fences, 0
        self._freezing: asyncio.Task[None] | None = None

    @property
    def steps(self) -> Steps:
        """How far its workload has come."""
        return self._checkpoints.steps

    def desire(self, desired: DesiredLease) -> None:
        """What is desired from now on; an older generation is ignored."""
        if desired.generation >= self.desired.generation:
            self.desired = desired
            self._checkpoints.tell(desired.kept)
            self._wake.set()

    def unlist(self) -> None:
        """The lease is desired no longer."""
        self._is_listed = False
        self.desire(replace_struct(self.desired, phase="stop"))

    def extend(self, acknowledged_ms: int) -> None:
        """The beat sent at this boot-time instant was acknowledged: the workload may run for as long as it is good.

        Not if the node had been fenced before: others may have taken its place without its knowing.
        """
        if self._fences != self._node.heart.fences:
            self._fences = self._node.heart.fences
            self._fence()
        elif self._workload is not None and not isinstance(self.local, Frozen):
            self._workload.extend(acknowledged_ms + self._node.heart.fence_after_ms)

    async def keep(self) -> None:
        """Takes steps until nothing is left of the lease and nobody asks for it. A bus that is away is waited for."""
        while True:
            self._wake.clear()
            step = next_step(self.local, self.desired, self._node.heart.incarnation, is_listed=self._is_listed)
            if step is Step.FORGET:
                return
            try:
                await (self._rest() if step is Step.WAIT else self._take(step))
            except BusUnavailable as error:
                _log.warning("step_waits", lease=self.desired.lease, step=step.value, error=str(error))
                await asyncio.sleep(STEP_RETRY_SECONDS)

    async def abandon(self) -> None:
        """Ends whatever runs, without a word to anybody: the node is lost to its jobs, and they are told so."""
        for watching in (self._watch, self._freezing):
            if watching is not None:
                watching.cancel()
        await self._checkpoints.end()
        if self._workload is not None:
            self._workload.stop(0)
            await self._workload.ended()

    async def _take(self, step: Step) -> None:
        match step:
            case Step.PREPARE:
                await self._prepare()
            case Step.REPORT_PREPARED | Step.REPORT_STARTED | Step.REPORT_FROZEN | Step.REPORT_FINISHED:
                await self._report()
            case Step.START:
                await self._start()
            case Step.THAW:
                self._thaw()
            case Step.CANCEL:
                self._cancel()
            case Step.END:
                await self._end()
            case Step.REPORT_GONE:
                self._become(Finished(self.desired.generation))
            case Step.DISCARD:
                self._node.runtime.cancel(self.desired.lease)
                await self._checkpoints.end()
                self._become(Nothing())
            case Step.CLEAR:
                await self._checkpoints.clear()
                await self._send(ReportCleared(**self._whose(self.desired.generation)))
                self._become(Nothing(reported=True))
            case Step.WAIT | Step.FORGET:
                raise AssertionError(f"{step} is not a step to take")

    async def _rest(self) -> None:
        """Waits for something to change, or until it is time to report again."""
        try:
            async with asyncio.timeout(self._again_seconds):
                await self._wake.wait()
        except TimeoutError:
            self._again_seconds = min(2 * self._again_seconds, REPORT_AGAIN_SECONDS_MAX)
            self.local = unreported(self.local)

    async def _prepare(self) -> None:
        desired = self.desired
        try:
            self._check_gpus()
            prepared = await self._node.runtime.prepare(desired.lease, desired.generation)
            if not await self._unless_overtaken(self._get_ready(desired)):
                self._node.runtime.cancel(desired.lease)
                return
        except (WorkloadError, OSError) as error:
            self._become(Finished(desired.generation, failure=failure_of(error)))
            return
        self._become(Prepared(desired.generation, prepared.address, prepared.port, self._node.heart.beat))

    async def _get_ready(self, desired: DesiredLease) -> None:
        await self._checkpoints.prepare(desired)
        await self._node.heart.unfenced()

    def _check_gpus(self) -> None:
        """A card may have fallen out since the lease was granted. Only the leases that hold it suffer from that."""
        vanished = self._node.gauge.vanished if self._node.gauge is not None else set()
        missing = sorted(set(self.desired.gpus) - (self._node.gpus - vanished))
        if missing:
            raise WorkloadError(f"this node no longer has {', '.join(missing)}")

    async def _start(self) -> None:
        desired, prepared = self.desired, self.local
        try:
            # Who joins a cluster that grows is told only now where its generation begins.
            if not await self._unless_overtaken(self._checkpoints.prepare(desired)):
                return
        except (WorkloadError, OSError) as error:
            self._node.runtime.cancel(desired.lease)
            self._become(Finished(desired.generation, failure=failure_of(error), failed_start=True))
            return
        output = Output(self._node.bus, self._node.id, desired)
        # The whole of F lies before a workload whose start takes a while. One that could not go on for as long is not
        # started: it would freeze at once.
        if not await self._node.heart.beat_now():
            return
        if self.local != prepared or self._node.heart.is_fenced:
            self._unprepare()
            return
        deadline_ms = self._node.heart.acknowledged_ms + self._node.heart.fence_after_ms
        folder, checkpoints = self._node.runtime.jobs / desired.job, self._checkpoints.folder(desired.generation)
        try:
            launches = launches_of(desired, folder, checkpoints, self._node.settings.workdir)
            workload = self._workload = await self._node.runtime.start(
                desired.lease, desired.generation, launches, deadline_ms, output.take
            )
        except (WorkloadError, OSError) as error:
            self._become(Finished(desired.generation, failure=failure_of(error), failed_start=True))
            return
        self.extend(self._node.heart.acknowledged_ms)
        ending = asyncio.create_task(self._publish_to_the_end(workload, output))
        try:
            await workload.started()
        except WorkloadError as error:
            self._become(unstarted(desired.generation, await ending, error))
            return
        self._become(Running(desired.generation))
        self._checkpoints.begin(desired, partial(self._report_checkpoint, desired.generation))
        self._watch = asyncio.create_task(self._watch_over(ending, desired.generation))
        self._freezing = asyncio.create_task(self._watch_freezes(workload))

    def _unprepare(self) -> None:
        """Whoever was fenced since it was prepared may be lost to the job: it does not start."""
        self._node.runtime.cancel(self.desired.lease)
        self._become(Nothing())

    async def _watch_freezes(self, workload: Workload) -> None:
        """The shims freeze by deadlines of their own, whatever this agent knows."""
        while True:
            await workload.froze()
            if isinstance(self.local, Running):
                self._freeze(0 if self._node.heart.is_fenced else self._next_freeze())

    def _fence(self) -> None:
        """A beat is acknowledged, and F had passed before."""
        match self.local:
            case Prepared() if self._workload is None:
                self._unprepare()
            case Running(is_over=False) | Frozen():
                self._freeze(self._next_freeze())
            case Nothing() | Prepared() | Running() | Finished():
                pass  # There is nothing to start or to go on with; or a start, of which the shims tell.

    def _freeze(self, freeze: int) -> None:
        local = self.local
        assert isinstance(local, Running | Frozen)
        is_started = local.reported if isinstance(local, Running) else local.is_started
        self._become(Frozen(local.generation, freeze, is_started))

    def _next_freeze(self) -> int:
        self._freezes += 1
        return self._freezes

    def _thaw(self) -> None:
        """Raises BusUnavailable while the node is fenced: then the next beat makes it another freeze."""
        local, heart = self.local, self._node.heart
        assert isinstance(local, Frozen)
        if heart.is_fenced:
            raise BusUnavailable("no beat is acknowledged")
        if self._workload is not None:
            self._workload.thaw(heart.acknowledged_ms + heart.fence_after_ms)
        self._become(Running(local.generation, local.is_started))

    async def _publish_to_the_end(self, workload: Workload, output: Output) -> tuple[RankExit, ...]:
        """Publishes the output to its last line, and only then tells how the processes ended."""
        publishing = asyncio.create_task(output.publish())
        if await workload.failed():
            # The others of this node wait for a peer that is gone: they end as the members on other nodes do.
            workload.stop(self.desired.grace_ms)
        exits = await workload.ended()
        if self._freezing is not None:
            self._freezing.cancel()
        match self.local:
            case Running(reported=is_started) | Frozen(is_started=is_started) as local:
                self._become(Running(local.generation, is_started, is_over=True))
            case _:
                pass  # They ended before their start was seen.
        await output.end()
        await publishing
        self._workload = None
        return exits

    async def _watch_over(self, ending: asyncio.Task[tuple[RankExit, ...]], generation: int) -> None:
        exits = tuple(exit_of(one) for one in await asyncio.shield(ending))
        if any(one.code != 0 for one in exits) and self._node.has_failed(self.desired.gpus):
            # What a broken GPU has ended did not fail: it has no exit of its own, like what a fence ends.
            exits = tuple(one if one.code == 0 else Exit(local_rank=one.local_rank) for one in exits)
        self._become(Finished(generation, exits))

    async def _report_checkpoint(self, generation: int, step: int, stored: Stored) -> None:
        """A bus that is away is waited for: the report is of use for as long as the generation runs."""
        report = ReportCheckpoint(
            **self._whose(generation), step=step, manifest=stored.manifest, size_bytes=stored.size_bytes
        )
        while True:
            try:
                await self._send(report)
            except BusUnavailable as error:
                _log.warning("checkpoint_report_waits", lease=self.desired.lease, step=step, error=str(error))
                await asyncio.sleep(STEP_RETRY_SECONDS)
            else:
                return

    async def _unless_overtaken(self, work: Coroutine[None, None, None]) -> bool:
        """Does what may take long, or gives it up when something else is desired; says whether it was done."""
        task, wanted = asyncio.create_task(work), (self.desired.generation, self.desired.phase)
        try:
            while not task.done() and (self.desired.generation, self.desired.phase) == wanted:
                self._wake.clear()
                woken = asyncio.create_task(self._wake.wait())
                await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            return False
        await task
        return True

    async def _end(self) -> None:
        """One more running beat before the signal, so that time until then is covered; then waits for the end.

        What is frozen has no leave to run, not even for a grace.
        """
        assert self._watch is not None
        grace_ms = 0 if isinstance(self.local, Frozen) else self.desired.grace_ms
        if grace_ms:
            await self._node.heart.beat_now()
        if self._workload is not None:
            self._workload.stop(grace_ms)
        await self._watch

    def _cancel(self) -> None:
        local = self.local
        assert isinstance(local, Prepared)
        self._node.runtime.cancel(self.desired.lease)
        ended = tuple(Exit(local_rank=rank, signal=signal.SIGTERM) for rank in range(self.desired.processes))
        self._become(Finished(local.generation, ended))

    async def _report(self) -> None:
        """Tells what is, unless it changes before. Raises BusUnavailable."""
        local, heart = self.local, self._node.heart
        assert isinstance(local, Prepared | Running | Frozen | Finished)
        if isinstance(local, Frozen) and not await heart.beat_now():
            raise BusUnavailable("no beat is acknowledged that tells of the freeze")
        if isinstance(local, Finished) and (seconds := self._store_seconds(local)) > 0:
            await self._unless_overtaken(self._checkpoints.drain(seconds))
        if self.local == local:
            await self._send(
                report_of(local, self._node.settings.account, self._node.id, self.desired.lease, heart.beat)
            )
        if self.local == local:
            self._become(replace(local, reported=True))

    def _store_seconds(self, local: Finished) -> float:
        """For how long the end may wait for the last checkpoint; that time is not billed.

        That of a workload that is done is what it was for. One that is to go on elsewhere begins from its own there.
        """
        if local.failure:
            return 0.0
        if self.desired.phase == "halt":
            return self.desired.store_ms / MS_PER_SECOND
        return DRAIN_SECONDS_MAX if self.desired.phase == "start" and is_done(local) else 0.0

    def _become(self, local: Local) -> None:
        if unreported(local) != unreported(self.local):
            self._again_seconds = REPORT_AGAIN_SECONDS_MIN
            _log.info("lease", lease=self.desired.lease, desired=self.desired.phase, **told(local))
        self.local = local
        self._wake.set()
        self._node.changed()

    def _whose(self, generation: int) -> Whose:
        return Whose(
            account=self._node.settings.account, node=self._node.id, lease=self.desired.lease, generation=generation
        )

    async def _send(self, report: Report) -> None:
        """It has no message id: a report that comes twice changes nothing, one that is sent again must come again."""
        await self._node.bus.publish(command_report(report.account, report.node), encode(report))
