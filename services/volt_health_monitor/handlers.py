"""The two tasks beside the engine: reading beats, and publishing the probes that tell how far the reading has come.

Beats are raw messages of one ordered reader, since there are too many of them for a handler each.
"""

import asyncio
import uuid
from collections.abc import Callable

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
    lose_sight,
    observe_beat,
    observe_probe,
    observe_time,
    probe_after_ms,
    read_from_ms,
)

COMPLAINT_MS_MIN = 10_000

_log = structlog.get_logger("volt.health_monitor")


def attach(host: Host[State]) -> tuple[Task, ...]:
    """The reading of beats, and the probes."""
    watch = Watch(host.engine, host.bus, SystemClock(), lambda: host.bus.reconnects)
    return (watch.follow, watch.probe)


class Watch:
    """One process's eyes on the beats. `reconnects` tells how often the bus has come back."""

    def __init__(self, engine: Engine[State], bus: Bus, clock: Clock, reconnects: Callable[[], int]) -> None:
        self.beats_refused = 0
        self._engine, self._bus, self._clock, self._reconnects = engine, bus, clock, reconnects
        self._monitor = uuid.uuid4().hex
        self._beats, self._probes = Decoder(Heartbeat), Decoder(Probe)
        self._complained_ms: dict[str, int] = {}

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

    async def _read(self, from_ms: int) -> None:
        async for batch in self._bus.read(HEARTBEATS.name, [ALL_HEARTBEATS], from_ms=from_ms):
            receipt_ms = self._now_ms()
            for record in batch.records:
                self._observe(record, receipt_ms)
            if batch.records:
                self._engine.observe(batch.records[-1].at_ms)
            if self._engine.state.beats.called_for:
                self._engine.wake()

    def _observe(self, record: Record, receipt_ms: int) -> None:
        try:
            if record.subject == MONITOR_PROBE:
                self._observe_probe(self._probes.decode(record.data), record.at_ms, receipt_ms)
                return
            beat = self._beats.decode(record.data)
        except MalformedMessage as error:
            self._refuse(record, f"{error.code}: {error}")
            return
        problem = beat_problem(beat)
        if record.subject != heartbeats(beat.account, beat.node):
            self._refuse(record, f"speaks for {beat.account}/{beat.node}")
        elif problem is not None:
            self._refuse(record, problem)
        else:
            observe_beat(self._engine.state, beat, record.at_ms, receipt_ms)

    def _observe_probe(self, probe: Probe, at_ms: int, receipt_ms: int) -> None:
        if probe.monitor == self._monitor:
            observe_probe(self._engine.state, probe.sequence, at_ms, receipt_ms)
        else:
            observe_time(self._engine.state, at_ms)

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
