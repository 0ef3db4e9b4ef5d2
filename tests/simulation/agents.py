"""Simulated agents: they follow what is desired of their node in no time at all, and beat; one may fall silent."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from signal import SIGTERM

from volt.contracts.bids import Gpu, Place, PlaceBid, Terms
from volt.contracts.clusters import BeatId, Exit
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import (
    Desired,
    DesiredLease,
    Heartbeat,
    Report,
    ReportCleared,
)
from volt.contracts.streams import DESIRED
from volt.contracts.subjects import command_bid, command_report, desired, heartbeats
from volt.runtime.ports import Bus, Clock
from volt_agent.domain import Finished, Local, Nothing, Prepared, Running, Step, beat_of, next_step
from volt_agent.reports import report_of

GPUS_PER_NODE = 2
PORT = 29_500
DECODER: Decoder[Desired] = Decoder(Desired)


@dataclass(frozen=True)
class NodePlan:
    """A node and what becomes of it. A workload runs for `works_ms`; the node ends `silent_after_ms` of running."""

    account: str
    node: str
    ask_microusd_per_gpu_hour: int
    works_ms: int
    beat_ms: int
    silent_after_ms: int | None = None
    incarnation: str = "i1"


class Agent:
    """One node. `run` returns when it falls silent, and otherwise goes on until cancelled."""

    def __init__(self, bus: Bus, clock: Clock, plan: NodePlan) -> None:
        self._bus, self._clock, self._plan = bus, clock, plan
        self._local: dict[str, Local] = {}
        self._desired: dict[str, DesiredLease] = {}
        self._sequence = 0
        self._changed = asyncio.Event()
        self._silent = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        try:
            await self._offer()
            for work in (self._follow, self._beat_on):
                self._spawn(work())
            await self._silent.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            for result in await asyncio.gather(*self._tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def _offer(self) -> None:
        plan = self._plan
        bid = PlaceBid(
            account=plan.account,
            node=plan.node,
            request_id=f"bid-{plan.incarnation}",
            gpus=tuple(Gpu(uuid=f"{plan.node}-{number}", model="RTX 4090") for number in range(GPUS_PER_NODE)),
            terms=Terms(ask_microusd_per_gpu_hour=plan.ask_microusd_per_gpu_hour),
            place=Place(region="eu", site="north", fabric="A"),
        )
        await self._bus.publish(command_bid(plan.account, plan.node), encode(bid))

    async def _follow(self) -> None:
        async for batch in self._bus.read(DESIRED.name, [desired(self._plan.account, self._plan.node)]):
            for record in batch.records:
                wanted = {lease.lease: lease for lease in DECODER.decode(record.data).leases}
                for name in self._desired.keys() - wanted.keys():
                    assert self._local.pop(name) == Nothing(reported=True), "only what is cleared is not listed"
                    del self._desired[name]
                for lease in wanted.values():
                    self._desired[lease.lease] = lease
                    await self._bring(lease.lease)

    async def _bring(self, lease: str) -> None:
        """Takes the lease's steps until it has to wait or is cleared."""
        async with self._turn:
            while lease in self._desired:
                step = next_step(self._local.get(lease, Nothing()), self._desired[lease], self._plan.incarnation)
                if step is Step.WAIT:
                    return
                await self._take(step, self._desired[lease])
                self._changed.set()

    async def _take(self, step: Step, wanted: DesiredLease) -> None:
        lease, local = wanted.lease, self._local.get(wanted.lease, Nothing())
        match step, local:
            case Step.PREPARE, _:
                self._local[lease] = Prepared(wanted.generation, f"{self._plan.node}.local", PORT, self._beat_id)
            case (
                (Step.REPORT_PREPARED, Prepared() as told)
                | (Step.REPORT_STARTED, Running() as told)
                | (Step.REPORT_FINISHED, Finished() as told)
            ):
                await self._send(report_of(told, self._plan.account, self._plan.node, lease, self._beat_id))
                self._local[lease] = replace(told, reported=True)
            case Step.START, _:
                self._local[lease] = Running(wanted.generation)
                self._spawn(self._work(lease, wanted))
            case Step.CANCEL, Prepared(generation=generation):
                self._local[lease] = Finished(generation, _exits(wanted, None))
            case Step.END, Running(generation=generation):
                await self._beat()  # Time until the signal is covered.
                self._local[lease] = Finished(generation, _exits(wanted, None))
            case Step.REPORT_GONE, _:
                self._local[lease] = Finished(wanted.generation)
            case Step.DISCARD, _:
                self._local[lease] = Nothing()
            case Step.CLEAR, _:
                whose = self._plan.account, self._plan.node
                await self._send(
                    ReportCleared(account=whose[0], node=whose[1], lease=lease, generation=wanted.generation)
                )
                self._local[lease] = Nothing(reported=True)
            case _:
                raise AssertionError(f"{step} with {local}")

    async def _work(self, lease: str, wanted: DesiredLease) -> None:
        """The processes of one generation, from their start to their exit; or to the silence of the node."""
        plan = self._plan
        if plan.silent_after_ms is not None:
            await self._clock.sleep(plan.silent_after_ms / 1000)
            self._silent.set()
            return
        await self._clock.sleep(plan.works_ms / 1000)
        local = self._local.get(lease)
        if isinstance(local, Running) and local.generation == wanted.generation:
            self._local[lease] = Finished(wanted.generation, _exits(wanted, 0))
            self._changed.set()
            await self._bring(lease)

    @property
    def _beat_id(self) -> BeatId:
        return BeatId(incarnation=self._plan.incarnation, sequence=self._sequence)

    async def _send(self, report: Report) -> None:
        await self._bus.publish(command_report(report.account, report.node), encode(report))

    async def _beat_on(self) -> None:
        """At every change, and `beat_ms` after the last beat."""
        while True:
            self._changed.clear()
            await self._beat()
            due = asyncio.ensure_future(self._clock.sleep(self._plan.beat_ms / 1000))
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({due, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                due.cancel()
                changed.cancel()

    async def _beat(self) -> None:
        self._sequence += 1
        plan = self._plan
        beats = (beat_of(lease, local) for lease, local in sorted(self._local.items()))
        beat = Heartbeat(
            account=plan.account,
            node=plan.node,
            incarnation=plan.incarnation,
            sequence=self._sequence,
            leases=tuple(beat for beat in beats if beat is not None),
        )
        await self._bus.publish(heartbeats(plan.account, plan.node), encode(beat))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))


def _exits(wanted: DesiredLease, code: int | None) -> tuple[Exit, ...]:
    signal = SIGTERM if code is None else None
    return tuple(Exit(local_rank=rank, code=code, signal=signal) for rank in range(wanted.processes))
