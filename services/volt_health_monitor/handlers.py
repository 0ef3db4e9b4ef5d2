"""The tasks beside the engine: reading beats, publishing the probes that tell how far the reading has come, and asking
the leader of the beat stream for the last beat of each node that would be lost.

Beats are raw messages of one ordered reader, since there are too many of them for a handler each.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator

import structlog

from volt.contracts.errors import BusUnavailable, MalformedMessage
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import Heartbeat, Probe
from volt.contracts.streams import HEARTBEATS
from volt.contracts.subjects import ALL_HEARTBEATS, MONITOR_PROBE, heartbeats
from volt.runtime.engine import Engine
from volt.runtime.host import Host, Task
from volt.runtime.nats import SystemClock
from volt.runtime.ports import Bus, Clock, Record
from volt_health_monitor.domain import (
    State,
    beat_problem,
    cancel,
    confirm,
    lose_sight,
    observe_beat,
    observe_probe,
    observe_time,
    probe_after_ms,
    read_from_ms,
    unconfirmed,
)
from volt_health_monitor.gauge import show_holding
from volt_health_monitor.nodes import NodeKey, Sight

COMPLAINT_MS_MIN = 10_000
CONFIRMATIONS_IN_FLIGHT_MAX = 64

_log = structlog.get_logger("volt.health_monitor")


def attach(host: Host[State]) -> tuple[Task, ...]:
    """The reading of beats, the probes, and the last look before a loss."""
    watch = Watch(host.engine, host.bus, SystemClock(), lambda: host.bus.reconnects)
    show_holding(lambda: host.engine.state.brake.holds)
    return (watch.follow, watch.probe, watch.confirm)


class Watch:
    """One process's eyes on the beats. `reconnects` tells how often the bus has come back."""

    def __init__(self, engine: Engine[State], bus: Bus, clock: Clock, reconnects: Callable[[], int]) -> None:
        self.beats_refused = 0
        self._engine, self._bus, self._clock, self._reconnects = engine, bus, clock, reconnects
        self._monitor = uuid.uuid4().hex
        self._beats, self._probes = Decoder(Heartbeat), Decoder(Probe)
        self._complained_ms: dict[str, int] = {}
        self._is_unconfirmed = asyncio.Event()
        self._probe_seq = 0
        self._was_holding = False

    async def follow(self) -> None:
        """Reads beats from where cover needs them, and by time again whenever the bus has come back.

        A server that crashed may have lost its last beats and count new ones by their sequences.
        """
        await self._engine.caught_up()
        while True:
            reconnects = self._reconnects()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(read_from_ms(self._engine.state)))
                while self._reconnects() == reconnects:
                    await self._clock.sleep(self._engine.state.timing.beat_ms / 1000)
                reading.cancel()
            lose_sight(self._engine.state)
            _log.info("silence_counts_afresh", reconnects=self._reconnects())

    async def probe(self) -> None:
        """Publishes probes for ever. Their sequence is the instant of sending on the monotonic clock."""
        await self._engine.caught_up()
        while True:
            probe = Probe(monitor=self._monitor, sequence=self._clock.monotonic_ms())
            try:
                await self._bus.publish(MONITOR_PROBE, encode(probe))
            except BusUnavailable as error:
                self._complain("probe_unanswered", error=str(error))
            await self._clock.sleep(probe_after_ms(self._engine.state, self._now_ms()) / 1000)

    async def confirm(self) -> None:
        """Reads the last beat of each node that would be lost, from the leader: a newer one cancels, for ever."""
        await self._engine.caught_up()
        while True:
            await self._is_unconfirmed.wait()
            self._is_unconfirmed.clear()
            wanted = iter(unconfirmed(self._engine.state))
            try:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(CONFIRMATIONS_IN_FLIGHT_MAX):
                        tasks.create_task(self._confirm_some(wanted))
            except* BusUnavailable as error:
                self._complain("loss_unconfirmed", error=str(error.exceptions[0]))

    async def _confirm_some(self, wanted: Iterator[tuple[NodeKey, Sight | None]]) -> None:
        """Takes one node after the other. Raises BusUnavailable: the next probe asks again."""
        for key, seen in wanted:
            record = await self._bus.last(HEARTBEATS.name, heartbeats(*key))
            # What is stored before the probe has been read; what is stored behind it will be.
            if record is not None and record.seq > self._probe_seq:
                cancel(self._engine.state, key, self._now_ms())
            else:
                confirm(self._engine.state, key, seen)
            self._engine.wake()

    async def _read(self, from_ms: int) -> None:
        async for batch in self._bus.read(HEARTBEATS.name, [ALL_HEARTBEATS], from_ms=from_ms):
            receipt_ms = self._now_ms()
            for record in batch.records:
                self._observe(record, receipt_ms)
            if batch.records:
                self._engine.observe(batch.records[-1].at_ms)
            if self._engine.state.beats.called_for:
                self._engine.wake()
            if unconfirmed(self._engine.state):
                self._is_unconfirmed.set()
            self._tell_of_brake()

    def _observe(self, record: Record, receipt_ms: int) -> None:
        try:
            if record.subject == MONITOR_PROBE:
                self._observe_probe(self._probes.decode(record.data), record, receipt_ms)
                return
            beat = self._beats.decode(record.data)
        except MalformedMessage as error:
            self._refuse(record, f"{error.code}: {error}")
            return
        problem = beat_problem(self._engine.state.timing, beat)
        if record.subject != heartbeats(beat.account, beat.node):
            self._refuse(record, f"speaks for {beat.account}/{beat.node}")
        elif problem is not None:
            self._refuse(record, problem)
        else:
            observe_beat(self._engine.state, beat, record.at_ms, receipt_ms)

    def _observe_probe(self, probe: Probe, record: Record, receipt_ms: int) -> None:
        if probe.monitor == self._monitor:
            self._probe_seq = record.seq
            observe_probe(self._engine.state, probe.sequence, record.at_ms, receipt_ms)
        else:
            observe_time(self._engine.state, record.at_ms)

    def _tell_of_brake(self) -> None:
        """Says for the operator's alerts that losses are held, and that they are no longer."""
        brake = self._engine.state.brake
        if brake.holds == self._was_holding:
            return
        self._was_holding = brake.holds
        if brake.holds:
            surge = brake.surge
            _log.error("losses_held", silent=surge.silent, watched=surge.watched, silent_max=surge.silent_max)
        else:
            _log.warning("losses_released", watched=brake.surge.watched)

    def _refuse(self, record: Record, error: str) -> None:
        self.beats_refused += 1
        self._complain("beat_refused", subject=record.subject, error=error, refused=self.beats_refused)

    def _complain(self, what: str, **about: str | int) -> None:
        """Logs it, unless the same was logged a moment ago."""
        last_ms = self._complained_ms.get(what)
        if last_ms is None or self._now_ms() - last_ms >= COMPLAINT_MS_MIN:
            self._complained_ms[what] = self._now_ms()
            _log.warning(what, **about)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()
