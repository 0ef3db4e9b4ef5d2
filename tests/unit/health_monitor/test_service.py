"""The whole monitor in the engine, over the bus in memory: three nodes beat, and what the log says of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import structlog

from tests.unit.health_monitor.builders import BEAT_MS, GAP_MS, LOST_MS, PROVIDER, beat, closed, granted, released
from volt.contracts.errors import BusUnavailable
from volt.contracts.log import decode_event
from volt.contracts.messages import Event, encode
from volt.contracts.nodes import BeatsCovered, CoverSpan, LostCause, NodeAlive, NodeEvent, NodeLost, NodeUnknown, Probe
from volt.contracts.streams import ALL, LOG
from volt.contracts.subjects import MONITOR_PROBE, heartbeats
from volt.contracts.timing import EMBEDDED
from volt.runtime.engine import Engine
from volt.runtime.memory import MemoryBus, MemoryClock, settle
from volt.runtime.ports import Record
from volt_health_monitor.domain import State
from volt_health_monitor.effects import definition
from volt_health_monitor.handlers import Watch


class Site:
    """A bus, its clock, beating nodes, and one monitor that can be killed and started."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.bus = MemoryBus(self.clock)
        self.reconnects = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sequences: dict[str, int] = {}
        self._probes = 0

    async def start_monitor(self) -> None:
        engine: Engine[State] = Engine(definition(EMBEDDED), self.bus, self.clock, EMBEDDED.tick_ms)
        watch = Watch(engine, self.bus, self.clock, lambda: self.reconnects)
        self.watch, self.engine = watch, engine
        for run in (engine.run, watch.follow, watch.probe, watch.confirm):
            self._tasks[run.__name__] = asyncio.create_task(run())
        await settle()

    async def kill_monitor(self) -> None:
        await self._stop("run", "follow", "probe", "confirm")

    async def start_node(self, node: str, lease: str) -> None:
        self._tasks[node] = asyncio.create_task(self._beat(node, lease))
        await settle()

    async def stop_node(self, node: str) -> None:
        await self._stop(node)

    async def stop(self) -> None:
        await self._stop(*self._tasks)

    async def append(self, event: Event) -> None:
        await self.bus.publish(event.subject(), encode(event))
        await settle()

    async def log(self) -> list[Event]:
        reading = self.bus.read(LOG.name, ["log.>"])
        events: list[Event] = []
        async for batch in reading:
            events += [decode_event(record.data) for record in batch.records]
            if batch.pending == 0:
                return events
        raise AssertionError("a read does not end")

    async def node_events(self, node: str) -> list[NodeEvent]:
        return [event for event in await self.log() if isinstance(event, NodeEvent) and event.node == node]

    async def spans(self, lease: str) -> list[CoverSpan]:
        recorded = [event for event in await self.log() if isinstance(event, BeatsCovered)]
        return [span for event in recorded for span in event.spans if span.lease == lease]

    async def _stop(self, *names: str) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks)
        failures = [task.exception() for task in done if not task.cancelled()]
        assert not failures, failures

    async def _beat(self, node: str, lease: str) -> None:
        while True:
            self._sequences[node] = self._sequences.get(node, 0) + 1
            sign = beat(self._sequences[node], node=node, running=[(lease, 1)])
            # The agent of a node goes on beating while the bus is away.
            with suppress(BusUnavailable):
                await self.bus.publish(heartbeats(PROVIDER, node), encode(sign))
            await self.clock.sleep(BEAT_MS / 1000)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """A job runs on three nodes, and the monitor is there."""
    one = Site()
    for spec in ALL:
        await one.bus.ensure(spec)
    await one.append(granted("j1", ("j1-1", "n1"), ("j1-2", "n2"), ("j1-3", "n3")))
    await one.start_monitor()
    for number in (1, 2, 3):
        await one.start_node(f"n{number}", f"j1-{number}")
    try:
        yield one
    finally:
        await one.stop()


async def test_a_node_that_stops_is_unknown_then_lost_and_the_others_live_on() -> None:
    async with site() as one:
        await one.clock.advance(10_000)
        await one.stop_node("n2")
        last_ms = one.bus.now_ms()

        await one.clock.advance(10_000)

        stopped = await one.node_events("n2")
        assert [type(event) for event in stopped] == [NodeAlive, NodeUnknown, NodeLost]
        assert LOST_MS <= stopped[-1].at_ms - last_ms <= LOST_MS + EMBEDDED.tick_ms
        assert [type(event) for event in await one.node_events("n1")] == [NodeAlive]
        assert [type(event) for event in await one.node_events("n3")] == [NodeAlive]


async def test_a_loss_does_not_wait_for_the_next_probe_of_the_usual_rhythm() -> None:
    async with site() as one:
        await one.clock.advance(130)
        await one.start_node("n4", "j4-1")
        await one.clock.advance(10_000)
        await one.stop_node("n4")
        last_ms = one.bus.now_ms()

        await one.clock.advance(10_000)

        lost = (await one.node_events("n4"))[-1]
        assert isinstance(lost, NodeLost)
        assert LOST_MS <= lost.at_ms - last_ms <= LOST_MS + EMBEDDED.tick_ms


async def test_cover_is_recorded_while_the_job_runs_and_rests_when_it_is_over() -> None:
    async with site() as one:
        await one.clock.advance(10_000)
        await one.append(released("j1", one.bus.now_ms()))
        await one.clock.advance(10_000)
        recorded = [event for event in await one.log() if isinstance(event, BeatsCovered)]

        await one.clock.advance(20_000)

        ended_ms = one.bus.now_ms() - 30_000
        assert ended_ms <= recorded[-1].complete_to_ms < ended_ms + EMBEDDED.cover_flush_ms
        assert [event for event in await one.log() if isinstance(event, BeatsCovered)] == recorded
        for lease in ("j1-1", "j1-2", "j1-3"):
            spans = await one.spans(lease)
            assert [before.to_ms for before in spans[:-1]] == [after.from_ms for after in spans[1:]]
            assert spans[-1].to_ms == recorded[-1].complete_to_ms


async def test_a_monitor_that_is_killed_and_started_loses_neither_nodes_nor_cover() -> None:
    async with site() as one:
        begun_ms = one.bus.now_ms()
        for down_ms in (0, 300, 2_900, 60_000, 700):
            await one.clock.advance(3_300)
            await one.kill_monitor()
            await one.clock.advance(down_ms)
            await one.start_monitor()
        await one.clock.advance(10_000)

        for number in (1, 2, 3):
            assert [type(event) for event in await one.node_events(f"n{number}")] == [NodeAlive]
            spans = await one.spans(f"j1-{number}")
            assert spans[0].from_ms == begun_ms
            assert [before.to_ms for before in spans[:-1]] == [after.from_ms for after in spans[1:]]
            assert spans[-1].to_ms > one.bus.now_ms() - GAP_MS - EMBEDDED.cover_flush_ms - BEAT_MS


async def test_a_node_that_stopped_while_the_monitor_was_down_is_lost_after_l() -> None:
    async with site() as one:
        await one.clock.advance(3_000)
        await one.kill_monitor()
        await one.stop_node("n2")
        await one.clock.advance(60_000)
        await one.start_monitor()
        started_ms = one.bus.now_ms()

        await one.clock.advance(10_000)

        lost = (await one.node_events("n2"))[-1]
        assert isinstance(lost, NodeLost)
        assert LOST_MS <= lost.at_ms - started_ms <= LOST_MS + BEAT_MS


async def test_a_node_that_leaves_is_lost_at_once_and_not_at_the_next_tick() -> None:
    async with site() as one:
        await one.clock.advance(5_000)
        await one.stop_node("n2")

        await one.bus.publish(heartbeats(PROVIDER, "n2"), encode(beat(1_000, node="n2", leaving=True)))
        await settle()

        lost = (await one.node_events("n2"))[-1]
        assert isinstance(lost, NodeLost)
        assert (lost.cause, lost.at_ms) == ("left", one.bus.now_ms())


async def test_an_event_tells_the_streams_time_though_the_log_was_silent_for_long() -> None:
    """The log's last entry is an hour old; the beats are not."""
    async with site() as one:
        await one.append(closed("j1"))
        await one.clock.advance(1_000)
        await one.kill_monitor()
        for node in ("n1", "n2", "n3"):
            await one.stop_node(node)
        await one.clock.advance(3_600_000)
        await one.start_node("n4", "j4-1")

        await one.start_monitor()
        await one.clock.advance(1_000)

        (alive,) = await one.node_events("n4")
        assert one.bus.now_ms() - 1_000 <= alive.at_ms <= one.bus.now_ms()


async def test_a_bus_that_is_away_for_long_loses_nobody_and_leaves_a_hole_in_cover() -> None:
    async with site() as one:
        await one.clock.advance(5_000)
        with one.bus.outage():
            away_ms = one.bus.now_ms()
            await one.clock.advance(30_000)
        await one.clock.advance(10_000)

        for number in (1, 2, 3):
            assert not [event for event in await one.node_events(f"n{number}") if isinstance(event, NodeLost)]
            spans = await one.spans(f"j1-{number}")
            covered = {at_ms for span in spans for at_ms in range(span.from_ms, span.to_ms)}
            assert not covered & set(range(away_ms + BEAT_MS, away_ms + 29_000))
            assert away_ms + 31_000 in covered


async def test_a_short_outage_is_covered() -> None:
    async with site() as one:
        begun_ms = one.bus.now_ms()
        await one.clock.advance(5_000)
        with one.bus.outage():
            await one.clock.advance(GAP_MS - BEAT_MS - 100)
        await one.clock.advance(10_000)

        spans = await one.spans("j1-1")
        assert sum(span.to_ms - span.from_ms for span in spans) == spans[-1].to_ms - begun_ms


async def test_an_event_whose_acknowledgement_is_lost_is_not_appended_twice() -> None:
    async with site() as one:
        await one.clock.advance(5_000)
        await one.stop_node("n2")
        await one.clock.advance(LOST_MS - BEAT_MS)
        one.bus.lost_acks = 40

        await one.clock.advance(20_000)

        assert one.bus.lost_acks == 0
        assert [type(event) for event in await one.node_events("n2")] == [NodeAlive, NodeUnknown, NodeLost]
        spans = await one.spans("j1-1")
        assert [before.to_ms for before in spans[:-1]] == [after.from_ms for after in spans[1:]]


async def test_after_a_reconnect_the_beats_are_read_again_by_time_and_silence_counts_afresh() -> None:
    async with site() as one:
        await one.clock.advance(10_200)
        await one.stop_node("n2")
        await one.clock.advance(2_000)
        one.reconnects += 1
        await one.clock.advance(BEAT_MS)
        noticed_ms = one.bus.now_ms()

        await one.clock.advance(10_000)

        causes: list[tuple[LostCause, bool]] = [
            (event.cause, event.at_ms - noticed_ms >= LOST_MS - BEAT_MS)
            for event in await one.node_events("n2")
            if isinstance(event, NodeLost)
        ]
        assert causes == [("silent", True)]
        assert [type(event) for event in await one.node_events("n1")] == [NodeAlive]
        spans = await one.spans("j1-1")
        assert [before.to_ms for before in spans[:-1]] == [after.from_ms for after in spans[1:]]


async def test_bad_beats_and_beats_in_anothers_name_are_passed_over() -> None:
    async with site() as one:
        await one.clock.advance(1_000)
        stranger = heartbeats(PROVIDER, "n9")
        bad = [b"", b"not json", b"{}", encode(beat(1, node="n1")), encode(Probe(monitor="n9", sequence=1))]
        bad.append(encode(beat(1, node="n9", running=[("j1-1", 10**12)])))
        bad.append(msgspec.json.encode({"type": "Heartbeat.v9"}))

        for data in bad:
            await one.bus.publish(stranger, data)
        await one.bus.publish(MONITOR_PROBE, encode(beat(1, node="n9")))
        await one.clock.advance(5_000)

        assert one.watch.beats_refused == len(bad) + 1
        assert await one.node_events("n9") == []
        assert [type(event) for event in await one.node_events("n1")] == [NodeAlive]


async def test_anothers_probe_proves_no_silence_but_moves_the_time_read() -> None:
    async with site() as one:
        await one.clock.advance(5_000)
        before_ms = one.engine.state.beats.read_ms
        await one.clock.advance(100)

        await one.bus.publish(MONITOR_PROBE, encode(Probe(monitor="another", sequence=10**9)))
        await settle()

        assert one.engine.state.beats.read_ms == before_ms + 100
        assert [type(event) for event in await one.node_events("n1")] == [NodeAlive]


async def test_nothing_is_stuck_after_a_long_and_eventful_life() -> None:
    async with site() as one:
        for number in (1, 2, 3):
            await one.clock.advance(4_000)
            await one.stop_node(f"n{number}")
            await one.clock.advance(1_000 * number)
            await one.start_node(f"n{number}", f"j1-{number}")
        await one.clock.advance(5_000)

        assert one.engine.stuck == {}
        assert [type(event) for event in await one.node_events("n1")] == [NodeAlive]
        assert [type(event) for event in await one.node_events("n2")] == [NodeAlive, NodeUnknown, NodeAlive]
        last = [NodeAlive, NodeUnknown, NodeLost, NodeAlive]
        assert [type(event) for event in await one.node_events("n3")] == last


async def test_a_leader_that_does_not_answer_confirms_no_loss_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as one:
        await one.clock.advance(5_000)
        await one.stop_node("n2")
        with monkeypatch.context() as patched:
            patched.setattr(one.bus, "last", _no_answer)
            await one.clock.advance(3 * LOST_MS)
            assert [type(event) for event in await one.node_events("n2")] == [NodeAlive, NodeUnknown]

        await one.clock.advance(2 * BEAT_MS)

        assert [type(event) for event in await one.node_events("n2")] == [NodeAlive, NodeUnknown, NodeLost]


async def test_a_beat_at_the_leader_behind_the_probe_cancels_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader will come to it; until then the node's silence counts from here."""
    async with site() as one:
        await one.clock.advance(5_000)
        await one.stop_node("n2")
        last_ms = one.bus.now_ms()

        async def newer(_stream: str, subject: str) -> Record:
            return Record(1_000_000, one.bus.now_ms(), subject, b"", {})

        with monkeypatch.context() as patched:
            patched.setattr(one.bus, "last", newer)
            await one.clock.advance(LOST_MS + BEAT_MS)
        await one.clock.advance(2 * LOST_MS)

        lost = (await one.node_events("n2"))[-1]
        assert isinstance(lost, NodeLost)
        assert lost.at_ms - last_ms >= 2 * LOST_MS - BEAT_MS


async def test_the_brake_is_told_to_the_operator_when_it_is_on_and_when_it_is_off() -> None:
    async with site() as one:
        nodes = [f"m{number}" for number in range(7)]
        for node in nodes:
            await one.start_node(node, f"{node}-1")
        await one.clock.advance(5_000)
        with structlog.testing.capture_logs() as said:
            for node in nodes:
                await one.stop_node(node)
            await one.clock.advance(2 * LOST_MS)
            assert one.engine.state.brake.holds
            await one.clock.advance(2 * EMBEDDED.brake_ms_min)

        told = [(line["log_level"], line["event"]) for line in said if line["event"].startswith("losses_")]
        assert told == [("error", "losses_held"), ("warning", "losses_released")]
        assert [type(event) for event in await one.node_events("n1")] == [NodeAlive]
        assert isinstance((await one.node_events("m0"))[-1], NodeLost)


async def _no_answer(_stream: str, _subject: str) -> Record:
    raise BusUnavailable("the leader does not answer")
