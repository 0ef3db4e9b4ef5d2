"""The projector over the bus in memory and a real Valkey: it follows, resumes, and builds again what is gone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from tests.support.valkey_server import ValkeyServer
from tests.unit.gateway import story
from tests.unit.gateway.stored import dump
from tests.unit.gateway.story import BUYER, JOB
from volt.contracts.messages import Event, encode
from volt.contracts.streams import ALL
from volt.contracts.subjects import LOG_MARKET
from volt.runtime.memory import MemoryBus, MemoryClock
from volt.runtime.nats import SystemClock
from volt_gateway.effects import Projector
from volt_gateway.entities import Job, job_doc, jobs_ranking
from volt_gateway.feed import Feed
from volt_gateway.views import ViewsAway, ViewStore

pytest_plugins = ["tests.support.valkey"]

SECONDS_MAX = 20.0
POLL_SECONDS = 0.02


class Running:
    """One gateway's projector and views."""

    def __init__(self, bus: MemoryBus, redis: Redis) -> None:
        self.feed = Feed()
        self.views = ViewStore(redis)
        self.projector = Projector(bus, SystemClock(), self.views, self.feed)

    async def until_at(self, seq: int) -> None:
        """Waits until the views, live, are at a place of the log."""
        async with asyncio.timeout(SECONDS_MAX):
            with self.feed.watch(jobs_ranking(BUYER)) as moved:
                while not await self._is_at(seq):
                    # Another projector may be the one that moves them, so that nobody here is woken.
                    await asyncio.wait([asyncio.ensure_future(moved.wait())], timeout=POLL_SECONDS)

    async def _is_at(self, seq: int) -> bool:
        try:
            position = await self.views.position()
        except ViewsAway:
            return False
        return position is not None and position.seq == seq and position.live


@asynccontextmanager
async def projecting(bus: MemoryBus, redis: Redis) -> AsyncIterator[Running]:
    running = Running(bus, redis)
    task = asyncio.create_task(running.projector.run())
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await running.projector.caught_up()
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus(MemoryClock())
    for spec in ALL:
        await bus.ensure(spec)
    return bus


async def test_an_empty_log_gives_live_views(bus: MemoryBus, redis: Redis) -> None:
    async with projecting(bus, redis) as running:
        assert await running.views.documents([job_doc(JOB)]) == {}


async def test_what_is_appended_is_shown(bus: MemoryBus, redis: Redis) -> None:
    async with projecting(bus, redis) as running:
        seq = await _append(bus, story.whole_story())
        await running.until_at(seq)
        job = (await running.views.documents([job_doc(JOB)]))[job_doc(JOB)]
        assert isinstance(job, Job)
        assert job.state == "closed"


async def test_a_restart_goes_on_where_the_views_are(bus: MemoryBus, redis: Redis) -> None:
    whole = story.whole_story()
    async with projecting(bus, redis) as running:
        await running.until_at(await _append(bus, whole[:15]))
    await redis.set("volt:view:marker", "kept")
    seq = await _append(bus, whole[15:])
    async with projecting(bus, redis) as running:
        await running.until_at(seq)
    assert await redis.get("volt:view:marker") == b"kept"
    await redis.delete("volt:view:marker")
    assert await dump(redis) == await _rebuilt(bus, redis)


async def test_emptied_views_are_built_again_also_while_the_log_is_silent(bus: MemoryBus, redis: Redis) -> None:
    async with projecting(bus, redis) as running:
        seq = await _append(bus, story.whole_story())
        await running.until_at(seq)
        before = await dump(redis)
        await redis.flushall()
        await running.until_at(seq)
        assert await dump(redis) == before


async def test_dropped_views_are_built_again(bus: MemoryBus, redis: Redis) -> None:
    async with projecting(bus, redis) as running:
        seq = await _append(bus, story.whole_story())
        await running.until_at(seq)
        await running.views.drop()
        await running.until_at(seq)


async def test_a_redis_that_was_away_is_filled_again(bus: MemoryBus, redis: Redis, valkey_server: ValkeyServer) -> None:
    async with projecting(bus, redis) as running:
        seq = await _append(bus, story.whole_story())
        await running.until_at(seq)
        valkey_server.kill()
        valkey_server.start()
        await running.until_at(seq)


async def test_views_of_another_log_are_dropped(bus: MemoryBus, redis: Redis) -> None:
    other = MemoryBus(MemoryClock(), epoch_ms=story.T0_MS - 1)
    for spec in ALL:
        await other.ensure(spec)
    async with projecting(other, redis) as running:
        await running.until_at(await _append(other, story.whole_story()))
    seq = await _append(bus, [story.account_opened()])
    async with projecting(bus, redis) as running:
        await running.until_at(seq)
        assert await running.views.documents([job_doc(JOB)]) == {}


async def test_two_gateways_project_each_event_once(bus: MemoryBus, redis: Redis) -> None:
    async with projecting(bus, redis) as one, projecting(bus, redis) as other:
        for event in story.whole_story():
            seq = await _append(bus, [event])
        await one.until_at(seq)
        await other.until_at(seq)
    assert await dump(redis) == await _rebuilt(bus, redis)


async def test_an_event_that_cannot_be_read_is_passed_over(bus: MemoryBus, redis: Redis) -> None:
    async with projecting(bus, redis) as running:
        await bus.publish(LOG_MARKET, b'{"type":"FromTomorrow.v7"}')
        await running.until_at(await _append(bus, story.whole_story()))


async def test_who_watches_a_job_is_woken_by_its_events_and_not_by_others() -> None:
    feed = Feed()
    with feed.watch(job_doc(JOB)) as moved:
        feed.changed([job_doc("another")])
        assert not moved.is_set()
        feed.changed([job_doc(JOB)])
        assert moved.is_set()
        moved.clear()
        feed.all_changed()
        assert moved.is_set()
    feed.changed([job_doc(JOB)])


async def _append(bus: MemoryBus, events: Sequence[Event]) -> int:
    seq = 0
    for event in events:
        seq = await bus.publish(event.subject(), encode(event))
    return seq


async def _rebuilt(bus: MemoryBus, redis: Redis) -> dict[str, str]:
    """What views that are built from nothing hold."""
    await redis.flushall()
    async with projecting(bus, redis):
        return await dump(redis)
