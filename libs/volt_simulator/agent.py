"""An agent on a simulated machine: it beats, offers its GPUs, and brings each lease to what is desired of it.

What it does next about a lease is decided by the agent's own domain; how it beats follows the agent's beat process.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

from msgspec import structs

from volt.contracts.bids import Gpu, Place, PlaceBid, Terms
from volt.contracts.clusters import BeatId, Exit
from volt.contracts.errors import BusUnavailable
from volt.contracts.ids import GpuUuid
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import Desired, DesiredLease, Heartbeat, Report, ReportCleared
from volt.contracts.streams import DESIRED, HEARTBEATS
from volt.contracts.subjects import command_bid, command_report, desired, heartbeats
from volt.contracts.telemetry import Xid
from volt.runtime.ports import Record, SequenceConflict
from volt_agent.domain import Finished, Frozen, Local, Nothing, Prepared, Running, Step, beat_of, next_step, unreported
from volt_agent.effects import REPORT_AGAIN_SECONDS_MAX, REPORT_AGAIN_SECONDS_MIN, STEP_RETRY_SECONDS
from volt_agent.reports import report_of
from volt_simulator.machine import Machine

PORT = 29_500
PREPARE_MS = (5, 3_000)
PREPARE_FAILS_PERMILLE = 10
_DESIRED: Decoder[Desired] = Decoder(Desired, bytes_max=DESIRED.message_bytes_max)
_BEATS: Decoder[Heartbeat] = Decoder(Heartbeat)


class IdentityTaken(Exception):
    """Another agent beats as this node."""


class Agent:
    """One incarnation of a node's agent. `run` returns when another one has taken its place."""

    def __init__(self, machine: Machine, incarnation: str) -> None:
        self.machine, self.incarnation = machine, incarnation
        self.still_until = 0.0
        self._timing, self._plan = machine.timing, machine.plan
        self._bus, self._beats = machine.link(), machine.link()
        self._local: dict[str, Local] = {}
        self._desired: dict[str, DesiredLease] = {}
        self._listed: set[str] = set()
        self._busy: set[str] = set()
        self._reflected_seq = 0
        self._sequence, self._last_seq = 0, 0
        self._xids: list[tuple[Xid, float]] = []
        """Those that no acknowledged beat has told, and when they came."""
        self._xids_seen = 0
        self._acked_ms = float("-inf")
        self._freezes: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating = asyncio.Lock()
        self._trouble: asyncio.Future[None] = machine.loop.create_future()

    async def run(self) -> None:
        """Lives until it is cancelled or finds that another agent is this node by now. Raises LawBroken."""
        try:
            self.machine.kill_all()  # What an earlier agent left.
            await self._come_in()
            self._spawn(self._beat_on())
            await self._first_beat()
            for work in (self._offer, self._follow, self._tell_again):
                self._spawn(work())
            await self._trouble
        except IdentityTaken:
            self.machine.kill_all()
        finally:
            self.machine.drop(self._bus, self._beats)
            tasks, self._tasks = self._tasks, set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def see_xid(self, gpu: GpuUuid, code: int) -> None:
        """The driver has reported an error; it is told with the next beats."""
        self._xids_seen += 1
        xid = Xid(number=self._xids_seen, gpu=gpu, code=code, age_ms=0)
        self._xids.append((xid, self.machine.boot_ms()))

    async def _first_beat(self) -> None:
        while self._acked_ms == float("-inf") and not self._trouble.done():
            await self._sleep_ms(50)

    async def _offer(self) -> None:
        plan = self._plan
        bid = PlaceBid(
            account=plan.account,
            node=plan.node,
            request_id=f"bid-{self.incarnation}",
            gpus=tuple(Gpu(uuid=uuid, model=plan.model) for uuid in self.machine.gpus),
            terms=Terms(ask_microusd_per_gpu_hour=plan.ask_microusd),
            place=Place(region=plan.region, site=plan.site, fabric=plan.fabric),
        )
        while True:
            try:
                await self._bus.publish(command_bid(plan.account, plan.node), encode(bid), message_id=bid.request_id)
            except BusUnavailable:
                await self._sleep_ms(STEP_RETRY_SECONDS * 1000)
            else:
                return

    async def _follow(self) -> None:
        plan = self._plan
        async for batch in self._bus.read(DESIRED.name, [desired(plan.account, plan.node)]):
            await self._awake()
            for record in batch.records:
                wanted = _DESIRED.decode(record.data)
                if wanted.log_seq >= self._reflected_seq:
                    self._reflected_seq = wanted.log_seq
                    self._converge(wanted)

    def _converge(self, wanted: Desired) -> None:
        self._listed = {lease.lease for lease in wanted.leases}
        for lease in wanted.leases:
            known = self._desired.get(lease.lease)
            if known is None or lease.generation >= known.generation:
                self._desired[lease.lease] = lease
        for name in list(self._desired):
            if name not in self._busy:
                self._spawn(self._bring(name))

    async def _bring(self, lease: str) -> None:
        """Takes the lease's steps until there is nothing to do about it; and tells again what was told before."""
        if lease in self._busy:
            return
        self._busy.add(lease)
        try:
            while lease in self._desired:
                wanted, is_listed = self._desired[lease], lease in self._listed
                local = self._local.get(lease, Nothing())
                step = next_step(local, wanted, self.incarnation, is_listed=is_listed)
                if step is Step.WAIT and is_listed:
                    return
                if step is Step.FORGET or step is Step.WAIT:
                    self._local.pop(lease, None)
                    del self._desired[lease]
                    return
                try:
                    await self._take(step, wanted, local)
                except BusUnavailable:
                    await self._sleep_ms(STEP_RETRY_SECONDS * 1000)
        finally:
            self._busy.discard(lease)

    async def _tell_again(self) -> None:
        """Now and then, what was told is told again, until it is not listed any more."""
        seconds = REPORT_AGAIN_SECONDS_MIN
        while True:
            await self._sleep_ms(seconds * 1000)
            seconds = min(2 * seconds, REPORT_AGAIN_SECONDS_MAX)
            for lease, local in list(self._local.items()):
                if lease not in self._busy:
                    self._local[lease] = unreported(local)
                    self._spawn(self._bring(lease))

    async def _take(self, step: Step, wanted: DesiredLease, local: Local) -> None:
        lease = wanted.lease
        match step, local:
            case Step.PREPARE, _:
                await self._prepare(wanted)
            case (
                (Step.REPORT_PREPARED, Prepared())
                | (Step.REPORT_STARTED, Running())
                | (Step.REPORT_FROZEN, Frozen())
                | (Step.REPORT_FINISHED, Finished())
            ):
                assert not isinstance(local, Nothing)
                await self._report(lease, local)
            case Step.START, _:
                await self._start(wanted, local)
            case Step.THAW, Frozen():
                self._thaw(lease, local)
            case Step.CANCEL, Prepared(generation=generation):
                self._become(lease, Finished(generation, _killed(wanted)))
            case Step.END, Running() | Frozen():
                await self._end(wanted, local)
            case Step.REPORT_GONE, _:
                self._become(lease, Finished(wanted.generation))
            case Step.DISCARD, _:
                self._become(lease, Nothing())
            case Step.CLEAR, _:
                account, node = self._plan.account, self._plan.node
                await self._send(ReportCleared(account=account, node=node, lease=lease, generation=wanted.generation))
                self._become(lease, Nothing(reported=True))
            case _:
                raise AssertionError(f"{step} with {local}")

    async def _prepare(self, wanted: DesiredLease) -> None:
        chance = self.machine.chance
        await self._sleep_ms(chance.randint(*PREPARE_MS))
        if chance.randrange(1_000) < PREPARE_FAILS_PERMILLE:
            self._become(wanted.lease, Finished(wanted.generation, failure="the image is not there"))
            return
        if self._is_fenced:
            raise BusUnavailable("no beat is acknowledged")
        self._become(wanted.lease, Prepared(wanted.generation, f"{self._plan.node}.local", PORT, self._beat_id))

    async def _start(self, wanted: DesiredLease, prepared: Local) -> None:
        await self._beat()
        await self._awake()
        if self._local.get(wanted.lease) != prepared or self._is_fenced:
            self._become(wanted.lease, Nothing())
            return

        def ended(exits: tuple[Exit, ...]) -> None:
            local = self._local.get(wanted.lease)
            if isinstance(local, Running | Frozen) and local.generation == wanted.generation:
                self._become(wanted.lease, Finished(wanted.generation, exits))
                self._spawn(self._bring(wanted.lease))

        def froze() -> None:
            local = self._local.get(wanted.lease)
            if isinstance(local, Running) and local.generation == wanted.generation:
                self._freeze(wanted.lease, local, 0 if self._is_fenced else self._next_freeze(wanted.lease))

        self._become(wanted.lease, Running(wanted.generation))
        self.machine.start(wanted, self._acked_ms + self._timing.fence_after_ms, ended, froze)

    async def _end(self, wanted: DesiredLease, local: Running | Frozen) -> None:
        """One more beat, so that time until the signal is covered; then waits for the end."""
        if isinstance(local, Running):
            await self._beat()
        is_frozen = isinstance(self._local[wanted.lease], Frozen)
        self.machine.stop(wanted.lease, 0 if is_frozen else wanted.grace_ms)
        while isinstance(self._local[wanted.lease], Running | Frozen):
            await self._sleep_ms(20)

    def _fence(self) -> None:
        """A beat is acknowledged, and F had passed before."""
        for lease, local in list(self._local.items()):
            match local:
                case Prepared():
                    self._become(lease, Nothing())
                case Running() | Frozen():
                    self._freeze(lease, local, self._next_freeze(lease))
                case Nothing() | Finished():
                    continue

    def _freeze(self, lease: str, local: Running | Frozen, freeze: int) -> None:
        is_started = local.reported if isinstance(local, Running) else local.is_started
        self._become(lease, Frozen(local.generation, freeze, is_started))
        self._spawn(self._bring(lease))

    def _next_freeze(self, lease: str) -> int:
        self._freezes[lease] = self._freezes.get(lease, 0) + 1
        return self._freezes[lease]

    def _thaw(self, lease: str, local: Frozen) -> None:
        if self._is_fenced:
            raise BusUnavailable("no beat is acknowledged")
        self._become(lease, Running(local.generation, local.is_started))
        self.machine.thaw(lease, self._acked_ms + self._timing.fence_after_ms)

    @property
    def _is_fenced(self) -> bool:
        return self.machine.boot_ms() > self._acked_ms + self._timing.fence_after_ms

    @property
    def _beat_id(self) -> BeatId:
        return BeatId(incarnation=self.incarnation, sequence=self._sequence)

    def _become(self, lease: str, local: Local) -> None:
        self._local[lease] = local
        self._changed.set()

    async def _report(self, lease: str, local: Prepared | Running | Frozen | Finished) -> None:
        """What is frozen is told once a beat that says so is stored."""
        if isinstance(local, Frozen):
            before = self._sequence
            await self._beat()
            if self._sequence == before:
                raise BusUnavailable("no beat is acknowledged that tells of the freeze")
        if self._local.get(lease) == local:
            await self._send(report_of(local, self._plan.account, self._plan.node, lease, self._beat_id))
        if self._local.get(lease) == local:
            self._local[lease] = replace(local, reported=True)

    async def _send(self, report: Report) -> None:
        await self._awake()
        await self._bus.publish(command_report(report.account, report.node), encode(report))

    async def _come_in(self) -> None:
        """Waits until whoever was this node before is surely fenced. Raises IdentityTaken if it still beats."""
        await self._awake()
        record = await self._last()
        if record is not None and self._is_anothers(record):
            await self._sleep_ms(self._timing.fence_after_ms)
            again = await self._last()
            if again is not None and again.seq != record.seq:
                raise IdentityTaken
        self._last_seq = record.seq if record else 0

    async def _last(self) -> Record | None:
        subject = heartbeats(self._plan.account, self._plan.node)
        while True:
            try:
                return await self._beats.last(HEARTBEATS.name, subject)
            except BusUnavailable:
                await self._sleep_ms(STEP_RETRY_SECONDS * 1000)

    async def _beat_on(self) -> None:
        """At every change, and so long after the last beat."""
        loop = self.machine.loop
        while True:
            self._changed.clear()
            await self._beat()
            wake = loop.call_later(self._timing.beat_ms / 1000, self._changed.set)
            await self._changed.wait()
            wake.cancel()
            await self._awake()

    async def _beat(self) -> None:
        """Publishes one, behind those before it. Raises IdentityTaken."""
        async with self._beating:
            await self._awake()
            await self._publish_beat()

    async def _publish_beat(self) -> None:
        """It is acknowledged in time, or not at all."""
        subject, sent_ms = heartbeats(self._plan.account, self._plan.node), self.machine.boot_ms()
        beats = (beat_of(lease, local) for lease, local in sorted(self._local.items()))
        xids = tuple(structs.replace(xid, age_ms=max(0, round(sent_ms - at_ms))) for xid, at_ms in self._xids)
        beat = Heartbeat(
            account=self._plan.account,
            node=self._plan.node,
            incarnation=self.incarnation,
            sequence=self._sequence + 1,
            leases=tuple(one for one in beats if one is not None),
            gpus=self.machine.readings(),
            xids=xids,
        )
        try:
            self._last_seq = await self._beats.publish(subject, encode(beat), expected_seq=self._last_seq)
        except SequenceConflict:
            await self._settle_conflict()
            self._changed.set()
        except BusUnavailable:
            return
        else:
            self._sequence += 1
            told = {xid.number for xid in xids}
            self._xids = [one for one in self._xids if one[0].number not in told]
            await self._awake()
            was_fenced = self._is_fenced and self._acked_ms > float("-inf")
            self._acked_ms = max(self._acked_ms, sent_ms)
            if was_fenced:
                self._fence()
            self.machine.extend(sent_ms + self._timing.fence_after_ms)

    async def _settle_conflict(self) -> None:
        record = await self._last()
        if record is not None and self._is_anothers(record):
            raise IdentityTaken
        self._last_seq = record.seq if record else 0

    def _is_anothers(self, record: Record) -> bool:
        beat = _BEATS.decode(record.data)
        if beat.incarnation == self.incarnation:
            self._sequence = max(self._sequence, beat.sequence)
            return False
        return True

    async def _sleep_ms(self, ms: float) -> None:
        await self.machine.sleep_ms(ms)
        await self._awake()

    async def _awake(self) -> None:
        """Returns at once, or when neither the machine nor this agent stands still any more."""
        loop = self.machine.loop
        while (until := max(self.still_until, self.machine.still_until)) > loop.time():  # noqa: ASYNC110
            await asyncio.sleep(until - loop.time())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if self._trouble.done():
            work.close()  # Processes that it left may end when it is gone.
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._trouble.done():
            self._trouble.set_exception(error)


def _killed(wanted: DesiredLease) -> tuple[Exit, ...]:
    return tuple(Exit(local_rank=rank, signal=15) for rank in range(wanted.processes))
