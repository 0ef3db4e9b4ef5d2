"""The views in a real Valkey: moved in transactions, from where they are believed to be, or not at all."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tests.support.valkey_server import ValkeyServer
from tests.unit.gateway import story
from tests.unit.gateway.stored import dump
from tests.unit.gateway.story import BUYER, JOB
from volt.contracts.http import EVENTS_PER_JOB_MAX
from volt.contracts.ids import key_sha256
from volt.contracts.log import Entry
from volt.runtime.views import VIEWS_META, VIEWS_PREFIX, drop_views_at, views_at
from volt_gateway.entities import Job, Key, events_ranking, job_doc, key_doc
from volt_gateway.views import Displaced, Position, ViewsAway, ViewsRebuilding, ViewStore

pytest_plugins = ["tests.support.valkey"]

ENTRIES = story.entries(story.whole_story())
KEY = key_doc(key_sha256(story.BUYER_KEY))


async def test_a_batch_is_projected_once_and_refused_the_second_time(redis: Redis) -> None:
    store = ViewStore(redis)
    await store.advance(None, ENTRIES, _at(ENTRIES))
    before = await dump(redis, but="")
    with pytest.raises(Displaced) as displaced:
        await store.advance(None, ENTRIES, _at(ENTRIES))
    assert displaced.value.found == _at(ENTRIES)
    assert await dump(redis, but="") == before


async def test_a_batch_behind_a_gap_is_refused(redis: Redis) -> None:
    store = ViewStore(redis)
    await store.advance(None, ENTRIES[:3], _at(ENTRIES[:3]))
    with pytest.raises(Displaced):
        await store.advance(_at(ENTRIES[:4]), ENTRIES[4:], _at(ENTRIES))
    assert await store.position() == _at(ENTRIES[:3])


async def test_of_two_writers_at_one_place_one_wins_and_nothing_is_doubled(redis: Redis) -> None:
    stores = [ViewStore(redis), ViewStore(redis)]
    results = await asyncio.gather(
        *(store.advance(None, ENTRIES, _at(ENTRIES)) for store in stores), return_exceptions=True
    )
    assert sorted(isinstance(one, Displaced) for one in results) == [False, True]
    assert await dump(redis, but="") == await _projected(redis, [ENTRIES])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, len(ENTRIES) - 1), max_size=8))
def test_batches_of_any_split_give_the_same_views(valkey_server: ValkeyServer, cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(ENTRIES)]
    batches = [ENTRIES[a:b] for a, b in itertools.pairwise(edges)]

    async def both() -> tuple[object, object]:
        async with views_at(valkey_server.url, connections_max=2) as redis:
            return await _projected(redis, [ENTRIES]), await _projected(redis, batches)

    whole, split = asyncio.run(both())
    assert whole == split


async def test_an_event_that_cannot_be_shown_is_passed_over(redis: Redis) -> None:
    impossible = story.entries([story.account_opened(), story.release_accepted(), story.admitted()])
    await ViewStore(redis).advance(None, impossible, _at(impossible))
    assert isinstance((await _open(redis).documents([job_doc(JOB)]))[job_doc(JOB)], Job)


async def test_emptied_views_are_not_served(redis: Redis) -> None:
    store = _open(redis)
    await store.advance(None, ENTRIES, _at(ENTRIES))
    assert await store.documents([KEY]) == {KEY: Key(account=BUYER)}
    await redis.flushall()
    with pytest.raises(ViewsRebuilding):
        await store.documents([KEY])


async def test_half_built_views_are_not_served(redis: Redis) -> None:
    store = _open(redis)
    await store.advance(None, ENTRIES, Position(ENTRIES[-1].seq, ENTRIES[-1].at_ms, live=False))
    with pytest.raises(ViewsRebuilding):
        await store.documents([KEY])


async def test_views_of_a_gateway_that_has_not_caught_up_are_not_served(redis: Redis) -> None:
    store = ViewStore(redis)
    await store.advance(None, ENTRIES, _at(ENTRIES))
    with pytest.raises(ViewsRebuilding):
        await store.documents([KEY])


async def test_a_redis_that_is_away_is_unavailable(valkey_server: ValkeyServer, redis: Redis) -> None:
    store = _open(redis)
    valkey_server.kill()
    try:
        with pytest.raises(ViewsAway):
            await store.documents([KEY])
        with pytest.raises(ViewsAway):
            await store.advance(None, ENTRIES, _at(ENTRIES))
    finally:
        valkey_server.start()


async def test_dropped_views_leave_nothing_and_spare_other_keys(valkey_server: ValkeyServer, redis: Redis) -> None:
    store = ViewStore(redis)
    await store.advance(None, ENTRIES, _at(ENTRIES))
    await redis.set("somebody else's", "1")
    assert await drop_views_at(valkey_server.url) > len(ENTRIES) // 3
    assert await redis.keys("*") == [b"somebody else's"]
    assert await store.position() is None


async def test_views_of_another_schema_are_dropped_and_those_of_this_one_are_kept(redis: Redis) -> None:
    store = ViewStore(redis)
    await store.advance(None, ENTRIES, _at(ENTRIES))
    await store.drop(only_foreign=True)
    assert await store.position() == _at(ENTRIES)
    await redis.hset(VIEWS_META, "schema", "0")
    assert await store.position() is None
    await store.drop(only_foreign=True)
    assert await redis.keys(VIEWS_PREFIX + "*") == []


async def test_the_story_of_a_job_is_bounded_and_keeps_its_end(redis: Redis) -> None:
    store = _open(redis)
    many = story.entries([story.admitted(), *(story.Cluster().ready() for _ in range(EVENTS_PER_JOB_MAX + 10))])
    await store.advance(None, many[:200], _at(many[:200]))
    await store.advance(_at(many[:200]), many[200:], _at(many))
    kept = await store.after(events_ranking(JOB), 0, 10 * EVENTS_PER_JOB_MAX)
    assert len(kept) == EVENTS_PER_JOB_MAX
    assert f'"seq":{many[-1].seq}'.encode() in kept[-1]


def _at(entries: Sequence[Entry]) -> Position:
    return Position(entries[-1].seq, entries[-1].at_ms, live=True)


def _open(redis: Redis) -> ViewStore:
    store = ViewStore(redis)
    store.open = True
    return store


async def _projected(redis: Redis, batches: Sequence[Sequence[Entry]]) -> dict[str, str]:
    await redis.flushall()
    store, here = ViewStore(redis), None
    for batch in batches:
        await store.advance(here, batch, _at(batch))
        here = _at(batch)
    return await dump(redis, but="")
