"""Whose node it is, is told by the last beat; what nobody can read tells nothing."""

import asyncio

import pytest

from tests.support.buses import nats_world
from tests.support.nats_server import NatsServer
from volt.contracts.fleet import Pace
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import Heartbeat, LeaseBeat
from volt.contracts.streams import DESIRED, HEARTBEATS
from volt.contracts.subjects import DESIRED_FLEET, heartbeats
from volt.contracts.telemetry import GpuReading
from volt_agent.beat import Beater, BeatSettings, Gpus, HeldXid, Status
from volt_agent.kernel import boot_ms

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


async def test_what_the_driver_tells_rides_on_the_next_beat_and_makes_none(nats_server: NatsServer) -> None:
    async with nats_world(nats_server) as world:
        await world.bus.ensure(HEARTBEATS)
        settings = BeatSettings(nats_url=nats_server.url, account="lab", node="n2", incarnation="mine")
        beater, subject = Beater(world.bus, settings), heartbeats("lab", "n2")

        async def beaten() -> Heartbeat:
            await beater._beat()
            last = await world.bus.last(HEARTBEATS.name, subject)
            assert last is not None
            return Decoder(Heartbeat).decode(last.data)

        reading = GpuReading(gpu="g", temperature_celsius=60)
        xid = HeldXid(number=1, gpu="g", code=79, at_ms=boot_ms() - 3_000)
        beater._hear_agent(Gpus(reading=1, gpus=(reading,), xids=(xid,)))
        assert not beater._changed.is_set()
        first = await beaten()
        assert first.gpus == (reading,)
        assert [(one.number, one.code) for one in first.xids] == [(1, 79)]
        assert first.xids[0].age_ms >= 3_000
        again = await beaten()
        assert (again.gpus, again.xids) == ((), ()), "each is told by one acknowledged beat"
        beater._hear_agent(Gpus(reading=2, gpus=(reading,), xids=(xid, HeldXid(number=2, gpu="g", code=45, at_ms=0))))
        third = await beaten()
        assert (third.gpus, [one.code for one in third.xids]) == ((reading,), [45])


async def test_a_step_of_a_workload_makes_no_beat_and_is_in_the_next(nats_server: NatsServer) -> None:
    async with nats_world(nats_server) as world:
        settings = BeatSettings(nats_url=nats_server.url, account="lab", node="n3", incarnation="mine")
        beater = Beater(world.bus, settings)
        lease = LeaseBeat(lease="j-1", generation=1, state="running")
        beater._hear_agent(Status(change=1, leases=(lease,)))
        assert beater._changed.is_set()
        beater._changed.clear()
        moved = LeaseBeat(lease="j-1", generation=1, state="running", step=7, stored=6)
        beater._hear_agent(Status(change=1, leases=(moved,)))
        assert not beater._changed.is_set()
        assert beater._status.leases == (moved,)
