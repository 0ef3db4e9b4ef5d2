"""Whose node it is, is told by the last beat; what nobody can read tells nothing."""

import asyncio

import pytest

from tests.support.buses import nats_world
from tests.support.nats_server import NatsServer
from volt.contracts.fleet import Pace
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import Heartbeat
from volt.contracts.streams import DESIRED, HEARTBEATS
from volt.contracts.subjects import DESIRED_FLEET, heartbeats
from volt_agent.beat import Beater, BeatSettings, Status

pytest_plugins = ["tests.support.nats"]

SUBJECT = heartbeats("lab", "n1")


def beat(incarnation: str, sequence: int = 1) -> bytes:
    return encode(Heartbeat(account="lab", node="n1", incarnation=incarnation, sequence=sequence))


async def test_an_agent_beats_at_the_pace_of_the_fleet_and_takes_back_no_promise(
    nats_server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with nats_world(nats_server) as world:
        for spec in (HEARTBEATS, DESIRED):
            await world.bus.ensure(spec)
        settings = BeatSettings(nats_url=nats_server.url, account="lab", node="n1", incarnation="mine")
        beater = Beater(world.bus, settings)
        following = asyncio.create_task(beater._follow_pace())
        stated = []
        for level in (0, 2, 0):
            told = settings.timing.at_level(level)
            pace = Pace(beat_ms=told.beat_ms, fence_after_ms=told.fence_after_ms)
            for data in (b"junk", encode(Pace(beat_ms=1, fence_after_ms=10**9)), encode(pace)):
                await world.bus.publish(DESIRED_FLEET, data)
            while beater._pace != pace:
                await beater._changed.wait()
                beater._changed.clear()
            await beater._beat()
            last = await world.bus.last(HEARTBEATS.name, SUBJECT)
            assert last is not None
            stated.append(Decoder(Heartbeat).decode(last.data).fence_after_ms)
        following.cancel()

    fast_ms, slow_ms = (settings.timing.at_level(level).fence_after_ms for level in (0, 2))
    assert stated[:2] == [fast_ms, slow_ms]
    assert fast_ms < stated[2] <= slow_ms, "the workloads were promised that they may run on for so long"
    assert capsys.readouterr().out.count(f'"fence_after_ms":{slow_ms}') == 1


async def test_a_beat_that_nobody_can_read_does_not_keep_the_node_out(
    nats_server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with nats_world(nats_server) as world:
        await world.bus.ensure(HEARTBEATS)
        await world.bus.publish(SUBJECT, b"junk")
        settings = BeatSettings(nats_url=nats_server.url, account="lab", node="n1", incarnation="mine")
        beater = Beater(world.bus, settings)
        beater._status = Status(change=1)
        await beater._come_in()
        await beater._beat()
        last = await world.bus.last(HEARTBEATS.name, SUBJECT)
        assert last is not None
        assert Decoder(Heartbeat).decode(last.data).incarnation == "mine"
    assert '"sequence":1' in capsys.readouterr().out
