"""What both buses do alike: this suite is the definition of the port."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.buses import (
    KIB,
    Following,
    MemoryWorld,
    World,
    first_batch,
    fresh_spec,
    nats_world,
    records,
)
from tests.support.nats_server import NatsServer
from volt.contracts.errors import BusUnavailable
from volt.contracts.streams import StreamSpec
from volt.runtime.nats import NatsBus, SystemClock
from volt.runtime.ports import SequenceConflict, TooLarge
from volt.runtime.reader import READ_SILENCE_SECONDS_MAX

pytest_plugins = ["tests.support.nats"]


@pytest.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with nats_world(request.getfixturevalue("nats_server")) as on_nats:
        yield on_nats


@pytest.fixture
async def spec(world: World) -> StreamSpec:
    fresh = fresh_spec()
    await world.bus.ensure(fresh)
    return fresh


async def test_a_new_subject_is_expected_at_zero_and_only_once(world: World, spec: StreamSpec) -> None:
    assert await world.bus.publish(f"{spec.name}.a", b"1", expected_seq=0) == 1
    with pytest.raises(SequenceConflict):
        await world.bus.publish(f"{spec.name}.a", b"2", expected_seq=0)
    assert await world.bus.publish(f"{spec.name}.a", b"2", expected_seq=1) == 2


async def test_the_expected_sequence_is_the_subjects_own(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"1")
    await world.bus.publish(f"{spec.name}.b", b"2")
    assert await world.bus.publish(f"{spec.name}.a", b"3", expected_seq=1) == 3
    with pytest.raises(SequenceConflict):
        await world.bus.publish(f"{spec.name}.b", b"4", expected_seq=3)


async def test_a_refused_message_is_not_stored(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"kept", expected_seq=0)
    with pytest.raises(SequenceConflict):
        await world.bus.publish(f"{spec.name}.a", b"refused", expected_seq=0)
    await world.bus.publish(f"{spec.name}.a", b"next")
    found = await records(world.bus, spec.name, f"{spec.name}.a", count=2)
    assert [(record.seq, record.data) for record in found] == [(1, b"kept"), (2, b"next")]


async def test_of_rivals_at_one_sequence_one_wins(world: World, spec: StreamSpec) -> None:
    attempts = [world.bus.publish(f"{spec.name}.a", b"%d" % number, expected_seq=0) for number in range(8)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1]
    assert sum(isinstance(outcome, SequenceConflict) for outcome in outcomes) == 7


async def test_a_message_id_is_stored_once_whatever_its_subject(world: World, spec: StreamSpec) -> None:
    first = await world.bus.publish(f"{spec.name}.a", b"1", message_id="same")
    await world.bus.publish(f"{spec.name}.a", b"2", message_id="other")
    assert await world.bus.publish(f"{spec.name}.a", b"3", message_id="same") == first
    assert await world.bus.publish(f"{spec.name}.b", b"4", message_id="same") == first
    assert await world.bus.last(spec.name, f"{spec.name}.b") is None


async def test_a_message_id_may_come_again_when_its_window_is_over(world: World) -> None:
    spec = fresh_spec(duplicate_window_seconds=1)
    await world.bus.ensure(spec)
    assert await world.bus.publish(f"{spec.name}.a", b"1", message_id="same") == 1
    await world.pass_ms(1_200)
    assert await world.bus.publish(f"{spec.name}.a", b"2", message_id="same") == 2


async def test_the_expected_sequence_is_checked_before_the_message_id(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"1", expected_seq=0, message_id="same")
    with pytest.raises(SequenceConflict):
        await world.bus.publish(f"{spec.name}.a", b"1", expected_seq=0, message_id="same")
    assert await world.bus.publish(f"{spec.name}.a", b"1", expected_seq=1, message_id="same") == 1


async def test_everything_is_read_in_order_once_and_in_bounded_batches(
    world: World, spec: StreamSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_max = 20
    for module in ("memory", "reader"):
        monkeypatch.setattr(f"volt.runtime.{module}.READ_BATCH_RECORDS_MAX", batch_max)
    count = 3 * batch_max + 5
    await asyncio.gather(*(world.bus.publish(f"{spec.name}.{n % 3}", b"%d" % n) for n in range(count)))
    seqs: list[int] = []
    async for batch in world.bus.read(spec.name, [f"{spec.name}.>"]):
        assert 0 < len(batch.records) <= batch_max
        seqs += [record.seq for record in batch.records]
        assert batch.pending == count - len(seqs)
        if batch.pending == 0:
            break
    assert seqs == list(range(1, count + 1))


async def test_pending_counts_only_what_matches(world: World, spec: StreamSpec) -> None:
    for number in range(6):
        await world.bus.publish(f"{spec.name}.{'a' if number % 2 else 'b'}", b"")
    async for batch in world.bus.read(spec.name, [f"{spec.name}.a"]):
        seen = [record.seq for record in batch.records]
        assert batch.pending == 3 - len(seen)
        assert seen == [2, 4, 6][: len(seen)]
        break


async def test_a_read_goes_on_behind_a_sequence(world: World, spec: StreamSpec) -> None:
    for number in range(5):
        await world.bus.publish(f"{spec.name}.a", b"%d" % number)
    found = await records(world.bus, spec.name, f"{spec.name}.a", count=2, after_seq=3)
    assert [record.seq for record in found] == [4, 5]


async def test_a_read_begins_at_a_time(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"early")
    await world.pass_ms(20)
    await world.bus.publish(f"{spec.name}.a", b"late")
    late = await world.bus.last(spec.name, f"{spec.name}.a")
    assert late is not None
    found = await records(world.bus, spec.name, f"{spec.name}.a", count=1, from_ms=late.at_ms)
    assert [record.data for record in found] == [b"late"]
    found = await records(world.bus, spec.name, f"{spec.name}.a", count=2, from_ms=late.at_ms - 1_000_000)
    assert [record.data for record in found] == [b"early", b"late"]


@pytest.mark.parametrize("after_seq", [0, 1, 7])
async def test_a_read_that_nothing_matches_yet_begins_with_an_empty_batch(
    world: World, spec: StreamSpec, after_seq: int
) -> None:
    await world.bus.publish(f"{spec.name}.other", b"")
    batch = await first_batch(world.bus, spec.name, f"{spec.name}.a", after_seq=after_seq)
    assert (list(batch.records), batch.pending) == ([], 0)


async def test_a_reader_that_has_caught_up_gets_what_comes(world: World, spec: StreamSpec) -> None:
    reader = Following(world.bus, spec.name, f"{spec.name}.a")
    await reader.until_begun()
    assert reader.found == []
    await world.bus.publish(f"{spec.name}.b", b"not for it")
    await world.bus.publish(f"{spec.name}.a", b"for it")
    assert await reader.until_seq(2) == [2]
    await reader.stop()


async def test_filters_are_those_of_subjects(world: World, spec: StreamSpec) -> None:
    names = ["a", "a.b", "a.b.c", "x.b", "x.c"]
    for name in names:
        await world.bus.publish(f"{spec.name}.{name}", name.encode())

    async def read(count: int, *patterns: str) -> list[str]:
        filters = [f"{spec.name}.{pattern}" for pattern in patterns]
        return [record.data.decode() for record in await records(world.bus, spec.name, *filters, count=count)]

    assert await read(5, ">") == names
    assert await read(3, "*.*") == ["a.b", "x.b", "x.c"]
    assert await read(2, "a.>") == ["a.b", "a.b.c"]
    assert await read(2, "*.b") == ["a.b", "x.b"]
    assert await read(3, "a", "x.*") == ["a", "x.b", "x.c"]


async def test_the_last_message_is_as_it_is_read(world: World, spec: StreamSpec) -> None:
    assert await world.bus.last(spec.name, f"{spec.name}.a") is None
    await world.bus.publish(f"{spec.name}.a", b"old")
    await world.bus.publish(f"{spec.name}.a", b"new", headers={"Traceparent": "00-1"})
    await world.bus.publish(f"{spec.name}.b", b"of another")
    last = await world.bus.last(spec.name, f"{spec.name}.a")
    read = (await records(world.bus, spec.name, f"{spec.name}.a", count=2))[-1]
    assert last == read
    assert (read.seq, read.subject, read.data) == (2, f"{spec.name}.a", b"new")
    assert read.headers["Traceparent"] == "00-1"


async def test_an_empty_message_is_a_message(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"")
    last = await world.bus.last(spec.name, f"{spec.name}.a")
    assert last is not None
    assert last.data == b""
    assert [record.data for record in await records(world.bus, spec.name, f"{spec.name}.a", count=1)] == [b""]


async def test_of_last_values_only_the_last_is_kept(world: World) -> None:
    spec = fresh_spec(messages_per_subject_max=1)
    await world.bus.ensure(spec)
    await world.bus.publish(f"{spec.name}.a", b"1", expected_seq=0)
    await world.bus.publish(f"{spec.name}.b", b"2", expected_seq=0)
    await world.bus.publish(f"{spec.name}.a", b"3", expected_seq=1)
    with pytest.raises(SequenceConflict):
        await world.bus.publish(f"{spec.name}.a", b"4", expected_seq=1)
    found = await records(world.bus, spec.name, f"{spec.name}.>", count=2)
    assert [(record.seq, record.data) for record in found] == [(2, b"2"), (3, b"3")]


async def test_a_message_that_was_removed_is_gone_and_the_others_stay(world: World, spec: StreamSpec) -> None:
    for number in range(3):
        await world.bus.publish(f"{spec.name}.a", b"%d" % number)
    for _ in range(2):
        await world.bus.remove(spec.name, 3)
    await world.bus.remove(spec.name, 1)
    last = await world.bus.last(spec.name, f"{spec.name}.a")
    assert last is not None
    assert (last.seq, last.data) == (2, b"1")
    assert [record.seq for record in await records(world.bus, spec.name, f"{spec.name}.a", count=1)] == [2]
    assert await world.bus.publish(f"{spec.name}.a", b"next", expected_seq=2) == 4


async def test_what_is_too_large_is_refused_and_not_stored(world: World) -> None:
    spec = fresh_spec(message_bytes_max=4 * KIB)
    await world.bus.ensure(spec)
    with pytest.raises(TooLarge) as refusal:
        await world.bus.publish(f"{spec.name}.a", b"x" * 5 * KIB)
    assert refusal.value.code == "too_large"
    assert await world.bus.publish(f"{spec.name}.a", b"x" * 3 * KIB, expected_seq=0) == 1


async def test_a_stream_is_brought_to_a_new_specification_and_keeps_its_messages(world: World) -> None:
    spec = fresh_spec(message_bytes_max=4 * KIB)
    await world.bus.ensure(spec)
    await world.bus.publish(f"{spec.name}.a", b"1")
    larger = StreamSpec(name=spec.name, subjects=spec.subjects, bytes_max=spec.bytes_max, message_bytes_max=8 * KIB)
    for _ in range(2):
        await world.bus.ensure(larger)
    assert await world.bus.publish(f"{spec.name}.a", b"x" * 6 * KIB, expected_seq=1) == 2


async def test_a_subject_that_no_stream_takes_is_not_acknowledged(world: World) -> None:
    with pytest.raises(BusUnavailable):
        await world.bus.publish("nowhere.at.all", b"")


async def test_a_bus_that_is_away_answers_nothing_and_says_so(world: World, spec: StreamSpec) -> None:
    await world.go_away()
    with pytest.raises(BusUnavailable):
        await world.bus.publish(f"{spec.name}.a", b"during", expected_seq=0)
    with pytest.raises(BusUnavailable):
        await world.bus.last(spec.name, f"{spec.name}.a")
    with pytest.raises(BusUnavailable):
        await world.bus.ensure(spec)
    await world.come_back()
    assert await world.bus.publish(f"{spec.name}.a", b"after", expected_seq=0) == 1


async def test_a_reader_outlives_an_outage_without_gap_or_repeat(world: World, spec: StreamSpec) -> None:
    reader = Following(world.bus, spec.name, f"{spec.name}.>")
    for _ in range(3):
        await world.bus.publish(f"{spec.name}.a", b"before")
    await reader.until_seq(3)
    await world.go_away()
    await world.come_back()
    for _ in range(3):
        await world.bus.publish(f"{spec.name}.a", b"after")
    assert await reader.until_seq(6) == [1, 2, 3, 4, 5, 6]
    await reader.stop()


async def test_a_reader_that_was_busy_during_an_outage_goes_on_at_once(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"before")
    seqs: list[int] = []
    async for batch in world.bus.read(spec.name, [f"{spec.name}.a"]):
        seqs += [record.seq for record in batch.records]
        if len(seqs) == 2:
            break
        await world.go_away()
        await world.come_back()
        await world.bus.publish(f"{spec.name}.a", b"after")
        resumed_by_ms = SystemClock().monotonic_ms() + READ_SILENCE_SECONDS_MAX * 1_000
    assert seqs == [1, 2]
    assert SystemClock().monotonic_ms() < resumed_by_ms, "it did not wait for silence to tell"


async def test_a_read_from_a_time_shows_nothing_older_after_an_outage_either(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"old")
    old = await world.bus.last(spec.name, f"{spec.name}.a")
    assert old is not None
    await world.pass_ms(20)
    reader = Following(world.bus, spec.name, f"{spec.name}.a", from_ms=old.at_ms + 10)
    await reader.until_begun()
    await world.go_away()
    await world.come_back()
    await world.bus.publish(f"{spec.name}.a", b"new")
    assert await reader.until_seq(2) == [2]
    await reader.stop()


async def test_a_read_that_is_begun_while_the_bus_is_away_waits_for_it(world: World, spec: StreamSpec) -> None:
    await world.bus.publish(f"{spec.name}.a", b"1")
    await world.go_away()
    reader = Following(world.bus, spec.name, f"{spec.name}.a")
    await world.pass_ms(10)
    assert reader.batches == 0
    await world.come_back()
    assert await reader.until_seq(1) == [1]
    await reader.stop()


async def test_a_publish_in_flight_when_the_server_is_killed_fails_at_once(nats_server: NatsServer) -> None:
    spec = fresh_spec()
    async with nats_world(nats_server) as world:
        await world.bus.ensure(spec)
        nats_server.freeze()
        publishing = asyncio.create_task(world.bus.publish(f"{spec.name}.a", b""))
        await world.pass_ms(50)
        assert not publishing.done()
        await world.go_away()
        with pytest.raises(BusUnavailable):
            async with asyncio.timeout(1):
                await publishing
        await world.come_back()


async def test_a_message_over_the_servers_limit_does_not_cost_the_connection(nats_server: NatsServer) -> None:
    spec = fresh_spec(message_bytes_max=2 * KIB * KIB)
    async with nats_world(nats_server) as world:
        await world.bus.ensure(spec)
        limit_bytes = world.bus.client.max_payload
        with pytest.raises(TooLarge):
            await world.bus.publish(f"{spec.name}.a", b"x" * (limit_bytes - 10), message_id="counts too")
        assert await world.bus.publish(f"{spec.name}.a", b"x" * limit_bytes) == 1
        assert world.bus.disconnects == 0


async def test_what_was_acknowledged_outlives_the_servers_death(nats_server: NatsServer) -> None:
    spec = fresh_spec()
    async with nats_world(nats_server) as world:
        await world.bus.ensure(spec)
        acknowledged = [await world.bus.publish(f"{spec.name}.a", b"%d" % number) for number in range(20)]
        await world.go_away()
        await world.come_back()
        found = await records(world.bus, spec.name, f"{spec.name}.a", count=20)
        assert [record.seq for record in found] == acknowledged


async def test_no_server_is_said_within_the_bound(nats_server: NatsServer) -> None:
    nats_server.kill()
    try:
        with pytest.raises(BusUnavailable, match="no bus at"):
            async with asyncio.timeout(5):
                await NatsBus.connect(nats_server.url, "nobody", 0.2)
    finally:
        nats_server.start()
