"""The provisioner as the runtime runs it, over a bus in memory: crashes, outages and rivals change no cluster."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.unit.provisioner.agents import Local, checkpoint_of, report_of, step
from tests.unit.provisioner.rules import check, every_loss_is_answered
from tests.unit.provisioner.world import BUYER, JOB, TIMING, admitted, code, gang, grant, provider_of, spec
from volt.contracts.clusters import ClusterEvent, ClusterReleased, MemberLost
from volt.contracts.errors import BusUnavailable
from volt.contracts.jobs import JobReleaseAccepted
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Decoder, Event, encode
from volt.contracts.nodes import Desired, NodeLost, Report, ReportEnded
from volt.contracts.streams import COMMANDS, DESIRED, LOG
from volt.contracts.subjects import ALL_DESIRED, command_report, desired
from volt.runtime.engine import Engine, Verdict
from volt.runtime.log import read_entry
from volt.runtime.memory import MemoryBus, MemoryClock, settle
from volt.runtime.subjects import matches
from volt_provisioner.domain import State
from volt_provisioner.effects import definition

NODES = ("n0", "n1", "n9")
ROUNDS_MAX = 12
DECODER: Decoder[Desired] = Decoder(Desired)

FORMED = ["ClusterForming", "MemberPrepared", "MemberPrepared", "ClusterStarting"]
STARTED = ["MemberStarted", "MemberStarted", "ClusterReady"]
COMMITTED = ["CheckpointStored", "CheckpointStored", "CheckpointCommitted"]
REPLACED = ["MemberLost", "GenerationEnded", "ClusterForming", "MembersWanted", "MemberEnded", "MemberPrepared"]
REPLACED += ["MemberJoined", "MemberPrepared", "ClusterStarting"]
RELEASED = ["ClusterReleased", "LeaseCleared", "LeaseCleared", "LeaseCleared"]


class LabBus(MemoryBus):
    """A bus that may take everything but what nodes are told."""

    is_desired_away = False

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        if self.is_desired_away and matches(subject, ALL_DESIRED):
            raise BusUnavailable(f"nobody takes {subject}")
        return await super().publish(subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)


class Lab:
    """A bus, the agents of some nodes, which read only what is published to them, and provisioners that may crash."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.bus = LabBus(self.clock)
        self.engine: Engine[State] | None = None
        self.disturb: Callable[[], Awaitable[None]] = self.nothing
        """What happens before each report is delivered."""
        self._local: dict[str, Local] = {}
        self._task: asyncio.Task[None] | None = None
        self._delivered = 0

    async def start(self) -> None:
        self.engine = Engine(definition(TIMING), self.bus, self.clock, TIMING.tick_ms)
        self._task = asyncio.create_task(self.engine.run())
        await settle()

    async def crash(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def restart(self) -> None:
        await self.crash()
        await self.start()

    async def nothing(self) -> None:
        """No disturbance."""

    async def add(self, *events: Event) -> None:
        """Events of other services."""
        for event in events:
            await self.bus.publish(event.subject(), encode(event))
        await settle()
        await self.clock.advance(TIMING.tick_ms)

    async def grant(self, one: Gang) -> None:
        await self.add(MarketCleared(through_seq=0, at_ms=self.bus.now_ms(), gangs=(one,)))

    async def lose(self, node: str) -> None:
        account = provider_of(node)
        await self.add(NodeLost(account=account, node=node, incarnation="i", at_ms=self.bus.now_ms(), cause="silent"))

    async def release(self) -> None:
        await self.add(JobReleaseAccepted(account=BUYER, job=JOB, request_id="r", at_ms=self.bus.now_ms()))

    async def deliver(self, report: Report) -> Verdict:
        """Delivers a report as the broker would: again and again until it is answered."""
        await self.disturb()
        self._delivered += 1
        subject, data = command_report(report.account, report.node), encode(report)
        for _ in range(ROUNDS_MAX):
            assert self.engine is not None
            outcome = await self.engine.handle(subject, data, self._delivered, self.bus.now_ms())
            await settle()
            if outcome.verdict not in (Verdict.RETRY, Verdict.AWAY):
                return outcome.verdict
            await self.clock.advance(1_000)
        raise AssertionError("the report is never answered")

    async def converge(self, *nodes: str) -> None:
        """Lets agents act until nothing changes."""
        for _ in range(ROUNDS_MAX):
            reports = [report for node in nodes or NODES for report in await self._next(node)]
            for report in reports:
                assert await self.deliver(report) is Verdict.DONE
            await self.clock.advance(TIMING.tick_ms)
            if not reports:
                return
        raise AssertionError("the agents never come to rest")

    async def told(self, node: str) -> Desired | None:
        record = await self.bus.last(DESIRED.name, desired(provider_of(node), node))
        return DECODER.decode(record.data) if record else None

    async def phases(self, node: str) -> list[tuple[str, int]]:
        told = await self.told(node)
        return [(lease.phase, lease.generation) for lease in told.leases] if told else []

    async def entries(self) -> list[Entry]:
        async for batch in self.bus.read(LOG.name, LOG.subjects):
            read = [read_entry(record) for record in batch.records]
            assert all(isinstance(one, Entry) for one in read)
            return [one for one in read if isinstance(one, Entry)]
        raise AssertionError("a read ended")

    async def events(self) -> list[ClusterEvent]:
        return [entry.event for entry in await self.entries() if isinstance(entry.event, ClusterEvent)]

    async def names(self) -> list[str]:
        return [type(event).__name__ for event in await self.events()]

    async def _next(self, node: str) -> Sequence[Report]:
        told = await self.told(node)
        reports = []
        for lease in told.leases if told else ():
            kind, generation, then = step(self._local.get(lease.lease), lease)
            if kind is not None:
                reports.append(report_of(kind, node, lease.lease, generation, (code(143),)))
            if then is None:
                self._local.pop(lease.lease, None)
            else:
                self._local[lease.lease] = then
        return reports


@asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    on = Lab()
    for stream in (LOG, COMMANDS, DESIRED):
        await on.bus.ensure(stream)
    await on.start()
    try:
        yield on
    finally:
        await on.crash()


async def run_up(on: Lab) -> None:
    await on.add(admitted(wanted=spec(2), at_ms=on.bus.now_ms()))
    await on.grant(gang(grant(1, 0, "n0"), grant(2, 1, "n1")))
    await on.converge()


async def live_a_life(on: Lab) -> None:
    """A cluster runs, commits a checkpoint, loses a node, gets another, runs again and is released."""
    await run_up(on)
    for node, lease in (("n0", "j1-1"), ("n1", "j1-2")):
        assert await on.deliver(checkpoint_of(node, lease, generation=1, step=7)) is Verdict.DONE
    await on.clock.advance(TIMING.tick_ms)
    await on.lose("n1")
    await on.converge("n0", "n9")
    await on.grant(gang(grant(3, 1, "n9"), generation=2, attempt=1))
    told = await on.told("n9")
    assert told is not None
    assert told.leases[0].resume is not None
    assert told.leases[0].resume.step == 7
    await on.converge("n0", "n9")
    await on.release()
    await on.converge()


async def test_a_cluster_lives_its_life_on_what_is_published_alone() -> None:
    async with lab() as on:
        await live_a_life(on)
        assert await on.names() == FORMED + STARTED + COMMITTED + REPLACED + STARTED + RELEASED
        for node in NODES:
            told = await on.told(node)
            assert told is not None
            assert told.leases == ()
        check(await on.entries(), TIMING)


async def test_each_node_is_told_what_its_place_in_the_log_says() -> None:
    async with lab() as on:
        await run_up(on)
        told = await on.told("n0")
        starting = next(one for one in await on.entries() if type(one.event).__name__ == "ClusterStarting")
        assert told is not None
        assert told.log_seq == starting.seq
        await on.lose("n1")
        assert (await on.phases("n0"), await on.phases("n1")) == ([("prepare", 2)], [("stop", 1)])


async def test_a_crash_before_each_report_changes_nothing() -> None:
    async with lab() as on:
        on.disturb = on.restart
        await live_a_life(on)
        assert await on.names() == FORMED + STARTED + COMMITTED + REPLACED + STARTED + RELEASED


async def test_acknowledgements_that_are_lost_double_nothing() -> None:
    async with lab() as on:

        async def lose_the_next_acknowledgement() -> None:
            on.bus.lost_acks = 1

        on.disturb = lose_the_next_acknowledgement
        await live_a_life(on)
        assert sorted(await on.names()) == sorted(FORMED + STARTED + COMMITTED + REPLACED + STARTED + RELEASED)
        check(await on.entries(), TIMING)
        every_loss_is_answered(await on.events())


async def test_a_crash_between_two_effects_loses_and_doubles_nothing() -> None:
    """The engine is killed while its appends are under way, a little later each time."""
    for turns in range(0, 60, 4):
        async with lab() as on:
            await run_up(on)
            account = provider_of("n1")
            lost = NodeLost(account=account, node="n1", incarnation="i", at_ms=on.bus.now_ms(), cause="silent")
            await on.bus.publish(lost.subject(), encode(lost))
            for _ in range(turns):
                await asyncio.sleep(0)
            await on.restart()
            await on.clock.advance(TIMING.tick_ms)
            assert await on.names() == FORMED + STARTED + REPLACED[:4]
            assert await on.phases("n0") == [("prepare", 2)]


async def test_what_an_outage_kept_from_the_nodes_is_published_after_it() -> None:
    async with lab() as on:
        await run_up(on)
        on.bus.is_desired_away = True
        await on.release()
        await on.clock.advance(5_000)
        assert (await on.names())[-1] == "ClusterReleased"
        assert await on.phases("n0") == [("start", 1)]
        on.bus.is_desired_away = False
        await on.clock.advance(5_000)
        assert (await on.phases("n0"), await on.phases("n1")) == ([("stop", 1)], [("stop", 1)])


async def test_what_another_writer_published_is_put_right() -> None:
    async with lab() as on:
        await run_up(on)
        subject = desired(provider_of("n0"), "n0")
        await on.bus.publish(subject, b"{}")
        await on.release()
        await on.clock.advance(TIMING.tick_ms)
        assert await on.phases("n0") == [("stop", 1)]


async def test_a_provisioner_that_was_away_gives_answers_their_time_afresh() -> None:
    async with lab() as on:
        await on.add(admitted(wanted=spec(2), at_ms=on.bus.now_ms()))
        await on.grant(gang(grant(1, 0, "n0"), grant(2, 1, "n1")))
        await on.crash()
        await on.clock.advance(2 * TIMING.prepare_ms_max)
        await on.start()
        await on.converge("n0")
        assert MemberLost not in map(type, await on.events()), "the other report may be on its way"
        await on.clock.advance(TIMING.prepare_ms_max + TIMING.tick_ms)
        lost = [event for event in await on.events() if isinstance(event, MemberLost)]
        assert [(event.lease, event.cause) for event in lost] == [("j1-2", "prepare_overdue")]


async def test_a_stuck_cluster_does_not_hold_up_the_others() -> None:
    async with lab() as on:
        await run_up(on)
        assert on.engine is not None
        impossible = ClusterReleased(account=BUYER, job="j7", generation=1, at_ms=0, reason="completed")
        await on.add(impossible)
        assert list(on.engine.stuck) == [impossible.subject()]
        await on.deliver(report_of(ReportEnded, "n0", "j1-1", 1, (code(1),)))
        await on.clock.advance(TIMING.tick_ms)
        assert await on.phases("n1") == [("halt", 1)]


async def test_what_is_no_report_is_answered_by_nobody() -> None:
    async with lab() as on:
        assert on.engine is not None
        subject = command_report("owner-of-n0", "n0")
        assert (await on.engine.handle(subject, b"{", 1, on.bus.now_ms())).verdict is Verdict.DEAD
        foreign = report_of(ReportEnded, "n1", "j1-1", 1, ())
        assert (await on.engine.handle(subject, encode(foreign), 2, on.bus.now_ms())).verdict is Verdict.DEAD
