"""Whose node it is, is told by the last beat; what nobody can read tells nothing."""

import pytest

from tests.support.buses import nats_world
from tests.support.nats_server import NatsServer
from volt.contracts.messages import encode
from volt.contracts.nodes import Heartbeat
from volt.contracts.streams import HEARTBEATS
from volt.contracts.subjects import heartbeats
from volt_agent.beat import Beater, BeatSettings, Status

pytest_plugins = ["tests.support.nats"]

SUBJECT = heartbeats("lab", "n1")


def beat(incarnation: str, sequence: int = 1) -> bytes:
    return encode(Heartbeat(account="lab", node="n1", incarnation=incarnation, sequence=sequence))


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
        assert last.data == beat("mine")
    assert '"sequence":1' in capsys.readouterr().out
