"""What an agent does about its leases: one keeper for each, which takes the next step until nothing is left to do."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import structlog
from msgspec.structs import replace as replace_struct

from volt.contracts.clusters import Exit
from volt.contracts.errors import BusUnavailable
from volt.contracts.ids import GpuUuid
from volt.contracts.messages import encode
from volt.contracts.nodes import (
    FAILURE_CHARS_MAX,
    DesiredLease,
    FailureStage,
    Report,
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportPrepared,
    ReportStarted,
)
from volt.contracts.subjects import command_report
from volt.contracts.units import MS_PER_SECOND
from volt.runtime.ports import Bus
from volt_agent.checkpoints.lease import DRAIN_SECONDS_MAX, LeaseCheckpoints, SharedStore
from volt_agent.checkpoints.storing import Stored
from volt_agent.domain import Finished, Local, Nothing, Prepared, Running, Step, next_step, told, unreported
from volt_agent.heart import Heart
from volt_agent.launch import process_environment
from volt_agent.output import Output
from volt_agent.process import ProcessRuntime, Workload
from volt_agent.runtimes import Launch, RankExit, WorkloadError
from volt_agent.settings import Settings

STEP_RETRY_SECONDS = 0.5
REPORT_AGAIN_SECONDS_MIN = 5.0
REPORT_AGAIN_SECONDS_MAX = 300.0
"""A report is repeated while what it says is so, at intervals that double from the one to the other."""

_log = structlog.get_logger("volt.agent")


class _Whose(TypedDict):
    """What every report says first."""

    account: str
    node: str
    lease: str
    generation: int


@dataclass(frozen=True)
class Node:
    """What the keepers of a node share."""

    id: str
    settings: Settings
    gpus: frozenset[GpuUuid]
    """Those that it has."""
    bus: Bus
    runtime: ProcessRuntime
    heart: Heart
    changed: Callable[[], None]
    """To be called when a lease's local state has changed: it is beaten at once."""
    checkpoints: SharedStore


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
        """The beat sent at this boot-time instant was acknowledged: the workload may run for F from then."""
        if self._workload is not None:
            self._workload.extend(acknowledged_ms + self._node.settings.timing.fence_after_ms)

    async def keep(self) -> None:
        """Takes steps until nothing is left of the lease and nobody asks for it. A bus that is away is waited for."""
        while True:
            self._wake.clear()
            step = next_step(self.local, self.desired, is_listed=self._is_listed)
            if step is Step.FORGET:
                return
            try:
                await (self._rest() if step is Step.WAIT else self._take(step))
            except BusUnavailable as error:
                _log.warning("step_waits", lease=self.desired.lease, step=step.value, error=str(error))
                await asyncio.sleep(STEP_RETRY_SECONDS)

    async def abandon(self) -> None:
        """Ends whatever runs, without a word to anybody: the node is lost to its jobs, and they are told so."""
        if self._watch is not None:
            self._watch.cancel()
        await self._checkpoints.end()
        if self._workload is not None:
            self._workload.stop(0)
            await self._workload.ended()

    async def _take(self, step: Step) -> None:
        match step:
            case Step.PREPARE:
                await self._prepare()
            case Step.REPORT_PREPARED:
                await self._report_prepared()
            case Step.START:
                await self._start()
            case Step.REPORT_STARTED:
                await self._report_started()
            case Step.CANCEL:
                self._cancel()
            case Step.END:
                await self._end()
            case Step.REPORT_FINISHED:
                await self._report_finished()
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
            if not await self._unless_overtaken(self._checkpoints.prepare(desired)):
                self._node.runtime.cancel(desired.lease)
                return
        except (WorkloadError, OSError) as error:
            self._become(Finished(desired.generation, failure=_told(error)))
            return
        self._become(Prepared(desired.generation, prepared.address, prepared.port))

    def _check_gpus(self) -> None:
        """A card may have fallen out since the lease was granted. Only the leases that hold it suffer from that."""
        missing = sorted(set(self.desired.gpus) - self._node.gpus)
        if missing:
            raise WorkloadError(f"this node no longer has {', '.join(missing)}")

    async def _report_prepared(self) -> None:
        local = self.local
        assert isinstance(local, Prepared)
        whose = self._whose(local.generation)
        await self._send(ReportPrepared(**whose, address=local.address, port=local.port))
        self._become(replace(local, reported=True))

    async def _start(self) -> None:
        desired = self.desired
        try:
            # Who joins a cluster that grows is told only now where its generation begins.
            if not await self._unless_overtaken(self._checkpoints.prepare(desired)):
                return
        except (WorkloadError, OSError) as error:
            self._node.runtime.cancel(desired.lease)
            self._become(Finished(desired.generation, failure=_told(error), failed_start=True))
            return
        output = Output(self._node.bus, self._node.id, desired)
        # The whole of F lies before a workload whose start takes a while.
        await self._node.heart.beat_now()
        deadline_ms = self._node.heart.acknowledged_ms + self._node.settings.timing.fence_after_ms
        try:
            workload = self._workload = await self._node.runtime.start(
                desired.lease, desired.generation, self._launches(desired), deadline_ms, output.take
            )
        except (WorkloadError, OSError) as error:
            self._become(Finished(desired.generation, failure=_told(error), failed_start=True))
            return
        self.extend(self._node.heart.acknowledged_ms)
        ending = asyncio.create_task(self._publish_to_the_end(workload, output))
        try:
            await workload.started()
        except WorkloadError as error:
            self._become(_unstarted(desired.generation, await ending, error))
            return
        self._become(Running(desired.generation))
        self._checkpoints.begin(desired, partial(self._report_checkpoint, desired.generation))
        self._watch = asyncio.create_task(self._watch_over(ending, desired.generation))

    async def _publish_to_the_end(self, workload: Workload, output: Output) -> tuple[RankExit, ...]:
        """Publishes the output to its last line, and only then tells how the processes ended."""
        publishing = asyncio.create_task(output.publish())
        if await workload.failed():
            # The others of this node wait for a peer that is gone: they end as the members on other nodes do.
            workload.stop(self.desired.grace_ms)
        exits = await workload.ended()
        await output.end()
        await publishing
        self._workload = None
        return exits

    async def _watch_over(self, ending: asyncio.Task[tuple[RankExit, ...]], generation: int) -> None:
        self._become(Finished(generation, tuple(_exit(one) for one in await asyncio.shield(ending))))

    async def _report_started(self) -> None:
        local = self.local
        assert isinstance(local, Running)
        await self._send(ReportStarted(**self._whose(local.generation)))
        if self.local == local:
            self._become(replace(local, reported=True))

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
        """One more running beat before the signal, so that time until then is covered; then waits for the end."""
        assert self._watch is not None
        await self._node.heart.beat_now()
        if self._workload is not None:
            self._workload.stop(self.desired.grace_ms)
        await self._watch

    def _cancel(self) -> None:
        local = self.local
        assert isinstance(local, Prepared)
        self._node.runtime.cancel(self.desired.lease)
        ended = tuple(Exit(local_rank=rank, signal=signal.SIGTERM) for rank in range(self.desired.processes))
        self._become(Finished(local.generation, ended))

    async def _report_finished(self) -> None:
        local = self.local
        assert isinstance(local, Finished)
        whose = self._whose(local.generation)
        if local.failure:
            stage: FailureStage = "start" if local.failed_start else "prepare"
            await self._send(ReportFailed(**whose, stage=stage, message=local.failure))
        else:
            if (seconds := self._store_seconds(local)) > 0:
                await self._unless_overtaken(self._checkpoints.drain(seconds))
            await self._send(ReportEnded(**whose, exits=local.exits))
        self._become(replace(local, reported=True))

    def _store_seconds(self, local: Finished) -> float:
        """For how long the end may wait for the last checkpoint; that time is not billed.

        That of a workload that is done is what it was for. One that is to go on elsewhere begins from its own there.
        """
        if self.desired.phase == "halt":
            return self.desired.store_ms / MS_PER_SECOND
        is_done = self.desired.phase == "start" and local.exits and all(one.code == 0 for one in local.exits)
        return DRAIN_SECONDS_MAX if is_done else 0.0

    def _become(self, local: Local) -> None:
        if unreported(local) != unreported(self.local):
            self._again_seconds = REPORT_AGAIN_SECONDS_MIN
            _log.info("lease", lease=self.desired.lease, desired=self.desired.phase, **told(local))
        self.local = local
        self._wake.set()
        self._node.changed()

    def _launches(self, desired: DesiredLease) -> tuple[Launch, ...]:
        folder = self._node.runtime.jobs / desired.job
        checkpoints = self._checkpoints.folder(desired.generation)
        manifest = folder / f"manifest-{desired.generation}.json"
        assert desired.manifest is not None
        manifest.write_bytes(encode(desired.manifest))
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LANG": "C.UTF-8"}
        return tuple(
            Launch(
                argv=desired.workload.command,
                env=process_environment(
                    desired, rank, base=base, manifest_path=str(manifest), checkpoint_folder=str(checkpoints)
                ),
                cwd=str(Path(self._node.settings.workdir).resolve()),
            )
            for rank in range(desired.processes)
        )

    def _whose(self, generation: int) -> _Whose:
        return _Whose(
            account=self._node.settings.account, node=self._node.id, lease=self.desired.lease, generation=generation
        )

    async def _send(self, report: Report) -> None:
        """It has no message id: a report that comes twice changes nothing, one that is sent again must come again."""
        await self._node.bus.publish(command_report(report.account, report.node), encode(report))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:FAILURE_CHARS_MAX]


def _unstarted(generation: int, ends: tuple[RankExit, ...], error: WorkloadError) -> Finished:
    """What a failed start comes to: the command's own failure, as a shell tells it, or else the node's."""
    if all(end.code is None for end in ends if end.reason == "not_started"):
        return Finished(generation, failure=_told(error), failed_start=True)
    # The others were ended on purpose, those too that had not begun.
    exits = (
        Exit(local_rank=end.local_rank, code=end.code)
        if end.code is not None
        else Exit(local_rank=end.local_rank, signal=end.signal or signal.SIGTERM)
        for end in ends
    )
    return Finished(generation, tuple(exits))


def _exit(end: RankExit) -> Exit:
    """How a process ended, for the provisioner. One that its fence ended did not fail: it has no exit of its own."""
    if end.reason in ("deadline", "gone"):
        return Exit(local_rank=end.local_rank)
    return Exit(local_rank=end.local_rank, code=end.code, signal=end.signal, out_of_memory=end.oom)
