"""The agent's end of its beat process: says what the node has, hears what was acknowledged."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import structlog
from msgspec import structs

from volt.contracts.clusters import BeatId
from volt.contracts.ids import GpuUuid
from volt.contracts.nodes import LeaseBeat
from volt.contracts.telemetry import XIDS_PER_BEAT_MAX, GpuReading
from volt.contracts.timing import WATCHDOG_TICK_MS
from volt_agent.beat import EXIT_IDENTITY_TAKEN, LINE_BYTES_MAX, Acknowledged, Gpus, HeldXid, Status
from volt_agent.kernel import boot_ms
from volt_agent.settings import Settings

LEAVE_SECONDS_MAX = 2.0
UNREAD_BYTES_MAX = 256 * 1024
SUCCESSORS_MAX, SUCCESSORS_MS = 5, 60_000
"""So many beat processes that end by themselves, within so long, have a successor."""

_log = structlog.get_logger("volt.heart")


class HeartStopped(Exception):
    """The beat process ended, and has no successor; its exit code tells why (3: another agent is this node)."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the beat process exited with code {code}")
        self.code = code


class Heart:
    """Keeps a beat process fed and listens to it."""

    def __init__(self, settings: Settings, node: str, incarnation: str) -> None:
        self._settings, self._node, self.incarnation = settings, node, incarnation
        self.on_acknowledged: Callable[[int], None] = _nobody
        """Gets the boot-time instant of each stored beat."""
        self._status = Status(change=1)
        self._gpus, self._xids = Gpus(), 0
        self.acknowledged_ms = 0
        """When the last beat that is stored was sent, on the boot-time clock; 0 before the first."""
        self.sequence = 0
        """Of that beat."""
        self.fences = 0
        """How often F had passed before the next beat was known to be stored."""
        self.fence_after_ms = settings.timing.fence_after_ms
        """How long that beat is good for."""
        self.stopped = False
        """Whether the beat process ended by itself: this agent no longer speaks for the node."""
        self._acknowledged_change = 0
        self._heard = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether F has passed since the last beat that is stored: the node may be lost to its jobs."""
        return boot_ms() > self.acknowledged_ms + self.fence_after_ms

    @property
    def beat(self) -> BeatId:
        """The last one that is stored."""
        return BeatId(incarnation=self.incarnation, sequence=self.sequence)

    @property
    def pids(self) -> tuple[int, ...]:
        """The beat process, while there is one."""
        return (self._process.pid,) if self._process is not None else ()

    async def run(self) -> None:
        """Beats until cancelled. A beat process that ends by itself has a successor; the node is the same incarnation.

        Raises HeartStopped.
        """
        begun: deque[int] = deque(maxlen=SUCCESSORS_MAX + 1)
        while True:
            begun.append(boot_ms())
            code = await self._beat_on()
            often = len(begun) > SUCCESSORS_MAX and boot_ms() - begun[0] < SUCCESSORS_MS
            if code == EXIT_IDENTITY_TAKEN or often:
                self.stopped = True
                raise HeartStopped(code)
            _log.error("beat_process_ended", code=code)

    async def _beat_on(self) -> int:
        """Beats until the beat process ends; returns its exit code."""
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "volt_agent.beat"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment(),
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C in a terminal is for the agent, which beats a last time.
        )
        self._send(self._gpus)
        ticking = asyncio.create_task(self._tick_on())
        try:
            await self._listen(process)
            return await process.wait()
        finally:
            ticking.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()

    def say(self, leases: Sequence[LeaseBeat]) -> None:
        """What the node has from now on; a change is beaten at once, but for a step of a workload."""
        change = self._status.change
        if _without_steps(leases) != _without_steps(self._status.leases):
            change += 1
        if tuple(leases) != self._status.leases:
            self._status = Status(change=change, leases=tuple(leases))
            self._send(self._status)

    def say_gpus(self, readings: Sequence[GpuReading]) -> None:
        """What the driver tells of the GPUs, for the next beat."""
        self._gpus = structs.replace(self._gpus, reading=self._gpus.reading + 1, gpus=tuple(readings))
        self._send(self._gpus)

    def say_xid(self, gpu: GpuUuid, code: int, at_ms: int) -> None:
        """An error that the driver has reported, for the beats up to the first that is acknowledged."""
        self._xids += 1
        held = HeldXid(number=self._xids, gpu=gpu, code=code, at_ms=at_ms)
        # Of more than a beat has room for, the first ones tell why the others came.
        self._gpus = structs.replace(self._gpus, xids=(*self._gpus.xids, held)[:XIDS_PER_BEAT_MAX])
        self._send(self._gpus)

    async def beating(self) -> None:
        """Returns once a beat is stored: from then on this agent is the node."""
        async with self._heard:
            await self._heard.wait_for(lambda: self.acknowledged_ms > 0)

    async def unfenced(self) -> None:
        """Returns once a beat is stored that was sent less than F ago."""
        async with self._heard:
            await self._heard.wait_for(lambda: not self.is_fenced)

    async def beat_now(self) -> bool:
        """One more beat of what is; whether it is stored, which is waited for as long as `LEAVE_SECONDS_MAX`."""
        return await self._insist(leaving=False)

    async def leave(self) -> None:
        """The last beat: this node goes, on purpose."""
        await self._insist(leaving=True)

    async def _insist(self, *, leaving: bool) -> bool:
        self._status = Status(change=self._status.change + 1, leases=self._status.leases, leaving=leaving)
        self._send(self._status)
        wanted = self._status.change
        try:
            async with asyncio.timeout(LEAVE_SECONDS_MAX), self._heard:
                await self._heard.wait_for(lambda: self._acknowledged_change >= wanted)
        except TimeoutError:
            _log.warning("beat_unacknowledged", leaving=leaving)
            return False
        return True

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            acknowledged = msgspec.json.decode(line, type=Acknowledged)
            if self.acknowledged_ms and self.is_fenced:
                self.fences += 1
            self.acknowledged_ms, self.sequence = acknowledged.sent_ms, acknowledged.sequence
            self.fence_after_ms = acknowledged.fence_after_ms
            untold = tuple(one for one in self._gpus.xids if one.number > acknowledged.xid)
            self._gpus = structs.replace(self._gpus, xids=untold)
            self.on_acknowledged(acknowledged.sent_ms)
            async with self._heard:
                self._acknowledged_change = acknowledged.change
                self._heard.notify_all()

    async def _tick_on(self) -> None:
        while True:
            self._send(self._status)
            await asyncio.sleep(WATCHDOG_TICK_MS / 1000)

    def _send(self, line: Status | Gpus) -> None:
        if self._process is None or self._process.stdin is None or self._process.returncode is not None:
            return
        # A beat process that stands still is told nothing more: what it would read later is old by then.
        if self._process.stdin.transport.get_write_buffer_size() <= UNREAD_BYTES_MAX:
            self._process.stdin.write(msgspec.json.encode(line) + b"\n")

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "VOLT_NATS_URL": self._settings.nats_url,
            "VOLT_PROFILE": self._settings.profile,
            "VOLT_ACCOUNT": self._settings.account,
            "VOLT_NODE": self._node,
            "VOLT_INCARNATION": self.incarnation,
        }


def _without_steps(leases: Sequence[LeaseBeat]) -> list[LeaseBeat]:
    return [structs.replace(one, step=None, stored=None) for one in leases]


def _nobody(_sent_ms: int) -> None:
    """Before anybody listens."""
