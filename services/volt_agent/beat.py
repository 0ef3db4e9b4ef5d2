"""The beat process, `python -m volt_agent.beat`: a process and a connection of its own, so that nothing delays it.

The agent writes what it has on this process's stdin, one JSON line at every change and at every watchdog tick; this
process publishes a heartbeat at every change and at the fleet's pace, one in flight, and writes a line on its stdout
for each that was acknowledged. What the driver tells of GPUs comes in lines of its own and rides on those beats. The
beats stop when the agent stops ticking; the process ends with stdin.
"""

import asyncio
import random
import sys

import msgspec
import structlog

from volt.contracts.errors import BusUnavailable, MalformedMessage
from volt.contracts.fleet import Pace
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import Heartbeat, LeaseBeat
from volt.contracts.streams import DESIRED, HEARTBEATS
from volt.contracts.subjects import DESIRED_FLEET, heartbeats
from volt.contracts.telemetry import AGE_MS_MAX, GpuReading, Xid
from volt.contracts.timing import WATCHDOG_TICK_MS
from volt.runtime.nats import NatsBus
from volt.runtime.ports import Record, SequenceConflict
from volt.runtime.settings import BusSettings, from_environment
from volt.runtime.telemetry import set_up
from volt_agent.kernel import boot_ms

MISSED_TICKS_MAX = 5
"""How many ticks of the agent's loop may be missing before no beat is sent. Workloads are not extended meanwhile, so
beats of an agent that stands still only make its loss come later."""
JITTER_MIN = 0.8
"""A beat comes earlier by a share drawn anew each time, so that agents which started together do not beat together."""
LAST_ATTEMPTS_MAX = 240
LAST_RETRY_SECONDS = 0.5
LINE_BYTES_MAX = 1024 * 1024
EXIT_IDENTITY_TAKEN = 3

_log = structlog.get_logger("volt.beat")


class BeatSettings(BusSettings, frozen=True, kw_only=True):
    """Whose heart it is."""

    account: str
    node: str
    incarnation: str


class Status(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A line from the agent: what it has now. `change` counts changes that are beaten at once; an equal one is a tick,
    though steps of workloads may have moved."""

    change: int
    leases: tuple[LeaseBeat, ...] = ()
    leaving: bool = False


class HeldXid(msgspec.Struct, frozen=True, kw_only=True):
    """An XID that no acknowledged beat has told yet, and when it came, on the boot-time clock."""

    number: int
    gpu: str
    code: int
    at_ms: int


class Gpus(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A line from the agent: what the driver tells. It rides on the next beat. `reading` counts the readings."""

    reading: int = 0
    gpus: tuple[GpuReading, ...] = ()
    xids: tuple[HeldXid, ...] = ()


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """A line to the agent: the beat of this change, sent at this boot-time instant, is stored."""

    change: int
    sequence: int
    sent_ms: int
    fence_after_ms: int
    """How long it is good for from then, as it states itself."""
    xid: int = 0
    """The last XID that was told."""


class Beater:
    """Publishes heartbeats as long as the agent ticks."""

    def __init__(self, bus: NatsBus, settings: BeatSettings) -> None:
        self._bus, self._settings = bus, settings
        self._subject = heartbeats(settings.account, settings.node)
        self._decoder: Decoder[Heartbeat] = Decoder(Heartbeat)
        self._paces: Decoder[Pace] = Decoder(Pace)
        self._status = Status(change=0)
        self._gpus, self._read, self._xid = Gpus(), 0, 0
        self._ticked_ms = boot_ms()
        self._changed = asyncio.Event()
        self._sequence = 0
        self._last_seq = 0
        self._is_heard = True
        self._good_until_ms = 0
        timing = settings.timing
        self._pace = Pace(beat_ms=timing.beat_ms, fence_after_ms=timing.fence_after_ms)

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Beats until the agent closes the pipe. Raises IdentityTaken if another incarnation beats as this node."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._beat_on()), tasks.create_task(self._follow_pace())]
            async for line in lines:
                self._hear_agent(msgspec.json.decode(line, type=Status | Gpus))
            for task in running:
                task.cancel()

    def _hear_agent(self, line: Status | Gpus) -> None:
        if isinstance(line, Gpus):
            self._gpus = line
            return
        self._ticked_ms = boot_ms()
        if line.change != self._status.change:
            self._changed.set()
        self._status = line

    async def _beat_on(self) -> None:
        await self._come_in()
        while True:
            self._changed.clear()
            if boot_ms() - self._ticked_ms <= MISSED_TICKS_MAX * WATCHDOG_TICK_MS:
                await self._beat()
            try:
                async with asyncio.timeout(self._pace.beat_ms * random.uniform(JITTER_MIN, 1.0) / 1000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _follow_pace(self) -> None:
        """Learns how often to beat. Until it has heard, an agent beats as its profile says: never too seldom."""
        async for batch in self._bus.read(DESIRED.name, [DESIRED_FLEET]):
            for record in batch.records:
                try:
                    pace = self._paces.decode(record.data)
                except MalformedMessage as error:
                    _log.warning("pace_unreadable", seq=record.seq, error=str(error))
                    continue
                if pace.is_of(self._settings.timing):
                    self._pace = pace
                    self._changed.set()  # The next beat is told of the new pace, and comes as soon as it says.

    async def _come_in(self) -> None:
        """Finds the place to go on from. Where another incarnation has beaten, waits until it surely is fenced.

        Its workloads may run for F from its last beat, so nobody else may be this node before that time has passed.
        """
        record = await self._last()
        if record is not None and self._is_anothers(record):
            await asyncio.sleep(self._good_for_ms(record) / 1000)
            again = await self._last()
            if again is not None and again.seq != record.seq:
                raise IdentityTaken(self._settings.node)
        self._last_seq = record.seq if record else 0

    async def _last(self) -> Record | None:
        for _ in range(LAST_ATTEMPTS_MAX):
            try:
                return await self._bus.last(HEARTBEATS.name, self._subject)
            except BusUnavailable as error:
                _log.warning("last_beat_unread", error=str(error))
                await asyncio.sleep(LAST_RETRY_SECONDS)
        raise BusUnavailable(f"the last beat could not be read in {LAST_ATTEMPTS_MAX} attempts")

    async def _beat(self) -> None:
        status, sent_ms, told = self._status, boot_ms(), self._gpus
        xids = tuple(_aged(one, sent_ms) for one in told.xids if one.number > self._xid)
        beat = Heartbeat(
            account=self._settings.account,
            node=self._settings.node,
            incarnation=self._settings.incarnation,
            sequence=self._sequence + 1,
            leases=status.leases,
            leaving=status.leaving,
            # What was promised to the workloads is not taken back when the pace becomes faster: the beat says so.
            fence_after_ms=max(self._pace.fence_after_ms, self._good_until_ms - sent_ms),
            gpus=told.gpus if told.reading > self._read else (),
            xids=xids,
        )
        try:
            # An answer that takes half of F comes too late to be of use: the next beat is better than waiting.
            async with asyncio.timeout(beat.fence_after_ms / 2000):
                self._last_seq = await self._bus.publish(self._subject, encode(beat), expected_seq=self._last_seq)
        except SequenceConflict:
            await self._settle_conflict()
            self._changed.set()
            return
        except (BusUnavailable, TimeoutError) as error:
            self._hear(heard=False, error=repr(error))
            return
        self._hear(heard=True)
        self._good_until_ms = sent_ms + beat.fence_after_ms
        self._sequence += 1
        self._read, self._xid = told.reading, max([self._xid, *(one.number for one in xids)])
        heard = Acknowledged(
            change=status.change,
            sequence=self._sequence,
            sent_ms=sent_ms,
            fence_after_ms=beat.fence_after_ms,
            xid=self._xid,
        )
        sys.stdout.buffer.write(msgspec.json.encode(heard) + b"\n")
        sys.stdout.buffer.flush()

    async def _settle_conflict(self) -> None:
        """After a conflict: goes on behind a beat of its own, or behind none; never behind another's."""
        try:
            record = await self._bus.last(HEARTBEATS.name, self._subject)
        except BusUnavailable as error:
            self._hear(heard=False, error=str(error))
            return
        if record is not None and self._is_anothers(record):
            raise IdentityTaken(self._settings.node)
        self._last_seq = record.seq if record else 0

    def _hear(self, *, heard: bool, error: str = "") -> None:
        """Says when acknowledgements stop, and when they come again."""
        if heard == self._is_heard:
            return
        self._is_heard = heard
        if heard:
            _log.info("beats_acknowledged_again")
        else:
            _log.warning("beats_unacknowledged", error=error)

    def _good_for_ms(self, record: Record) -> int:
        """How long whoever sent this beat may run on from it. One that nobody can read is from nobody."""
        stated_ms = self._decoder.decode(record.data).fence_after_ms
        return stated_ms or self._settings.timing.fence_after_ms

    def _is_anothers(self, record: Record) -> bool:
        try:
            beat = self._decoder.decode(record.data)
        except MalformedMessage as error:
            _log.warning("beat_unreadable", seq=record.seq, error=str(error))
            return False  # Nobody beats like that: it is gone on behind.
        if beat.incarnation == self._settings.incarnation:
            self._sequence = max(self._sequence, beat.sequence)
            # A beat process before this one may have promised that the workloads run on for so long.
            self._good_until_ms = max(self._good_until_ms, boot_ms() + self._good_for_ms(record))
            return False
        return True


class IdentityTaken(Exception):
    """Another agent beats under this node's identity."""


def _aged(one: HeldXid, sent_ms: int) -> Xid:
    age_ms = min(max(0, sent_ms - one.at_ms), AGE_MS_MAX)
    return Xid(number=one.number, gpu=one.gpu, code=one.code, age_ms=age_ms)


async def main() -> int:
    """Beats; returns 0 when the agent has gone, 3 when another one is this node."""
    settings = from_environment(BeatSettings)
    set_up("beat")
    lines = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    bus = await NatsBus.connect(settings.nats_url, f"beat-{settings.node}")
    code = 0
    try:
        await Beater(bus, settings).run(lines)
    except* IdentityTaken:
        _log.error("identity_taken", node=settings.node)
        code = EXIT_IDENTITY_TAKEN
    finally:
        await bus.close()
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
