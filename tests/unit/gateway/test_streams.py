"""Server-sent events: what a job wrote and what happened to it, and what becomes of a stream at its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import nullcontext

import msgspec
import pytest
from litestar.testing import RequestFactory
from litestar.types import HTTPDisconnectEvent, Message
from redis.asyncio import Redis

from tests.unit.gateway import story
from tests.unit.gateway.story import BUYER, JOB, Cluster
from tests.unit.gateway.world import World, running
from volt.contracts.errors import Unavailable
from volt.contracts.http import JobHappening, Output, OutputLine
from volt.contracts.subjects import logs
from volt.runtime.memory import settle
from volt.sdk.streams import EventParser, ServerEvent
from volt_gateway import gateway as gateway_module
from volt_gateway import output, streams
from volt_gateway.streams import EventStream, frame

pytest_plugins = ["tests.support.valkey"]

SECONDS_MAX = 20.0
BEGIN = [story.admitted(), story.funded(), story.cleared(story.gang("n1", "n2"))]


@pytest.fixture
async def world(redis: Redis) -> AsyncIterator[World]:
    async with running(redis) as world:
        await world.tell(*BEGIN)
        yield world


async def test_output_is_told_from_the_beginning_and_ends_with_what_there_is(world: World) -> None:
    await world.write("n1", "one", "two")
    await world.write("n2", "three")
    events = await _events(world, "logs?follow=false")
    assert [event.name for event in events] == ["output", "output", "end"]
    told = [msgspec.json.decode(event.data, type=Output) for event in events[:-1]]
    assert [(one.node, [line.text for line in one.lines]) for one in told] == [
        ("n1", ["one", "two"]),
        ("n2", ["three"]),
    ]


async def test_output_goes_on_behind_the_last_event_that_was_seen(world: World) -> None:
    for text in ("one", "two", "three"):
        await world.write("n1", text)
    events = await _events(world, "logs?follow=false")
    again = await _events(world, "logs?follow=false", last=events[0].id)
    assert again == events[1:]


async def test_output_without_an_end_ends_when_every_member_was_heard_to_the_last(world: World) -> None:
    await world.write("n1", "one", last=True)
    await world.write("n2", "two")
    await world.tell(story.release_accepted())
    stream = asyncio.create_task(_events(world, "logs"))
    await settle()
    assert not stream.done()
    await world.write("n2", "last words", last=True)
    async with asyncio.timeout(SECONDS_MAX):
        texts = [line.text for line in _lines(await stream)]
    assert texts == ["one", "two", "last words"]


async def test_a_member_that_writes_again_in_a_new_generation_is_waited_for(world: World) -> None:
    await world.write("n1", "one", last=True)
    await world.write("n2", "two", last=True)
    await world.write("n1", "again")
    await world.tell(story.release_accepted())
    stream = asyncio.create_task(_events(world, "logs"))
    await settle()
    assert not stream.done()
    await world.write("n1", last=True)
    async with asyncio.timeout(SECONDS_MAX):
        assert [line.text for line in _lines(await stream)] == ["one", "two", "again"]


async def test_output_of_a_node_that_died_is_waited_for_within_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "DRAIN_SECONDS_MAX", 0.1)
    await world.write("n1", "one")
    await world.tell(story.release_accepted())
    async with asyncio.timeout(SECONDS_MAX):
        assert [event.name for event in await _events(world, "logs")] == ["output", "end"]


async def test_output_of_members_that_are_known_to_have_ended_is_waited_for_shortly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "DRAIN_SECONDS_MAX", 3_600.0)
    monkeypatch.setattr(output, "SETTLE_SECONDS_MAX", 0.1)
    await world.tell(story.release_accepted(), Cluster().cleared(1, "n1"), Cluster().cleared(2, "n2"))
    async with asyncio.timeout(SECONDS_MAX):
        assert [event.name for event in await _events(world, "logs")] == ["end"]


async def test_a_job_that_never_ran_has_no_output_to_wait_for(redis: Redis) -> None:
    async with running(redis) as world:
        await world.tell(story.admitted(), story.unfunded())
        async with asyncio.timeout(SECONDS_MAX):
            assert [event.name for event in await _events(world, "logs")] == ["end"]


async def test_a_record_that_is_no_output_is_passed_over(world: World) -> None:
    await world.bus.publish(logs(BUYER, JOB, "n1"), b"{}")
    await world.write("n1", "one")
    assert [line.text for line in _lines(await _events(world, "logs?follow=false"))] == ["one"]


async def test_the_story_is_told_from_the_beginning_until_the_job_is_closed(world: World) -> None:
    stream = asyncio.create_task(_events(world, "events"))
    await settle()
    await world.tell(Cluster().ready(), Cluster().wanted(1), Cluster().released())
    assert not stream.done()
    await world.tell(story.closed(returned_microusd=1))
    async with asyncio.timeout(SECONDS_MAX):
        events = await stream
    told = [msgspec.json.decode(event.data, type=JobHappening) for event in events[:-1]]
    assert [one.event for one in told] == [
        "JobAdmitted",
        "JobFunded",
        "MarketCleared",
        "ClusterReady",
        "MembersWanted",
        "ClusterReleased",
        "JobClosed",
    ]
    assert [event.id for event in events[:-1]] == [str(one.seq) for one in told]
    again = await _events(world, "events", last=events[3].id)
    assert again == events[4:]


async def test_a_story_longer_than_a_page_is_told_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "EVENTS_PAGE_MAX", 2)
    assert len(await _events(world, "events?follow=false")) == len(BEGIN) + 1


async def test_a_client_that_goes_away_frees_everything(world: World) -> None:
    client = _Client()
    await world.write("n1", "one")
    frames = output.job_output(world.gateway, await world.gateway.job(BUYER, JOB), 0, follow=True)
    task = asyncio.create_task(client.watch(EventStream(frames, world.gateway.stream_of(BUYER), asyncio.Event())))
    await client.until(lambda: b"one" in client.body)
    client.gone.set()
    async with asyncio.timeout(SECONDS_MAX):
        await task
    assert world.gateway.feed._watching == {}
    assert not world.gateway._streams


async def test_a_gateway_that_stops_ends_its_streams(world: World) -> None:
    client = _Client()
    frames = output.job_story(world.gateway, await world.gateway.job(BUYER, JOB), 0, follow=True)
    stream = EventStream(frames, world.gateway.stream_of(BUYER), world.gateway.stopping)
    task = asyncio.create_task(client.watch(stream))
    await client.until(lambda: b"MarketCleared" in client.body)
    world.gateway.stop()
    async with asyncio.timeout(SECONDS_MAX):
        await task
    assert client.finished
    assert b"event: end" not in client.body


async def test_a_silent_stream_says_that_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.01)
    client, silence = _Client(), asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        await silence.wait()
        yield frame("end")

    task = asyncio.create_task(client.watch(EventStream(frames(), nullcontext(), asyncio.Event())))
    await client.until(lambda: client.body.count(b": still here\n\n") == 2)
    silence.set()
    async with asyncio.timeout(SECONDS_MAX):
        await task
    assert client.body.endswith(b"event: end\ndata: {}\n\n")


async def test_a_client_that_takes_nothing_is_cut_off_and_its_source_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS_MAX", 0.05)
    client, made, closed = _Client(room=3), 0, False

    async def frames() -> AsyncGenerator[bytes, None]:
        nonlocal made, closed
        try:
            while True:
                made += 1
                yield frame("output")
        finally:
            closed = True

    async with asyncio.timeout(SECONDS_MAX):
        await client.watch(EventStream(frames(), nullcontext(), asyncio.Event()))
    assert made <= 4
    assert closed
    assert not client.finished


async def test_what_fails_in_the_middle_is_told_as_a_last_event() -> None:
    client = _Client()

    async def frames() -> AsyncGenerator[bytes, None]:
        yield frame("output")
        raise Unavailable("the views went away")

    await client.watch(EventStream(frames(), nullcontext(), asyncio.Event()))
    assert [event.name for event in EventParser().feed(client.body)] == ["output", "error"]
    assert client.finished


async def test_an_account_has_a_bounded_number_of_streams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "STREAMS_PER_ACCOUNT_MAX", 1)
    with world.gateway.stream_of(BUYER):
        answer = await world.client.get(f"/v1/jobs/{JOB}/logs?follow=false")
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
        with world.gateway.stream_of("somebody else"):
            pass
    assert (await world.client.get(f"/v1/jobs/{JOB}/logs?follow=false")).status_code == 200


async def test_a_flag_that_is_neither_true_nor_false_is_422(world: World) -> None:
    assert (await world.client.get(f"/v1/jobs/{JOB}/logs?follow=maybe")).status_code == 422


class _Client:
    """A client of one stream. It takes `room` messages and no more, and goes away when told to."""

    def __init__(self, room: int | None = None) -> None:
        self.gone = asyncio.Event()
        self.body = b""
        self.finished = False
        self._room = room
        self._changed = asyncio.Event()

    async def watch(self, stream: EventStream) -> None:
        await stream(RequestFactory().get("/").scope, self._receive, self._send)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _receive(self) -> HTTPDisconnectEvent:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._room == 0:
            await asyncio.Event().wait()
        self._room = None if self._room is None else self._room - 1
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.finished = not message["more_body"]
        self._changed.set()


async def _events(world: World, path: str, last: str = "") -> list[ServerEvent]:
    headers = {"Last-Event-ID": last} if last else {}
    answer = await world.client.get(f"/v1/jobs/{JOB}/{path}", headers=headers)
    assert answer.status_code == 200
    return list(EventParser().feed(answer.content))


def _lines(events: list[ServerEvent]) -> list[OutputLine]:
    outputs = [msgspec.json.decode(event.data, type=Output) for event in events if event.name == "output"]
    return [line for one in outputs for line in one.lines]
