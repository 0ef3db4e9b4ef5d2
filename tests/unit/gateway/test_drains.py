"""A node that is drained, as its provider and the market see it, and the job that moves."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from tests.unit.gateway import story
from tests.unit.gateway.draining import drain_accepted, resume_accepted, retry_planned
from tests.unit.gateway.story import BUYER, JOB, Cluster, Projected
from tests.unit.gateway.world import World, running
from volt.contracts import clusters
from volt.contracts.bids import DrainNode, ResumeNode
from volt.contracts.http import IDEMPOTENCY_HEADER, JobHappening
from volt.contracts.http_market import NodeList
from volt.contracts.ids import lease_id
from volt.contracts.messages import Command, Decoder
from volt.contracts.streams import COMMANDS
from volt.contracts.subjects import BID_COMMANDS
from volt_gateway.entities import ALL_OFFERS, Job, events_ranking, job_doc

pytest_plugins = ["tests.support.valkey"]

N1, N2, N3 = (story.member(f"n{number}", number, number - 1) for number in (1, 2, 3))
DRAINED = clusters.GenerationEnded(
    account=BUYER, job=JOB, generation=1, at_ms=story.T0_MS, cause="drain", drains=(lease_id(JOB, 2),)
)
READY = [
    story.admitted(),
    story.funded(),
    story.cleared(story.gang("n1", "n2")),
    story.forming(N1, N2),
    Cluster().ready(),
]


@pytest.fixture
async def world(redis: Redis) -> AsyncIterator[World]:
    async with running(redis, intake=False) as world:
        await world.tell(story.bid("n1", provider=BUYER), story.alive("n1", BUYER))
        yield world


async def test_a_provider_drains_a_node_and_sees_by_when_it_is_empty(world: World) -> None:
    await world.tell(drain_accepted("n1", BUYER, "d1"))
    body = {"reason": "new disks", "deadline": "60s"}
    response = await world.client.post("/v1/nodes/n1/drain", json=body, headers={IDEMPOTENCY_HEADER: "d1"})
    assert response.status_code == 200
    (node,) = msgspec.json.decode(response.content, type=NodeList).nodes
    assert (node.node, node.drain_by_ms, node.drain_reason) == ("n1", story.T0_MS + 60_000, "new disks")
    listed = msgspec.json.decode((await world.client.get("/v1/nodes")).content, type=NodeList)
    assert listed.nodes == (node,)
    await world.tell(resume_accepted("n1", BUYER, "e1"))
    response = await world.client.post("/v1/nodes/n1/resume", headers={IDEMPOTENCY_HEADER: "e1"})
    assert msgspec.json.decode(response.content, type=NodeList).nodes[0].drain_by_ms is None
    assert await handed_over(world) == [
        DrainNode(account=BUYER, node="n1", request_id="d1", reason="new disks", deadline_seconds=60),
        ResumeNode(account=BUYER, node="n1", request_id="e1"),
    ]


async def test_the_node_of_another_account_cannot_be_drained(world: World) -> None:
    await world.tell(story.bid("n2", provider=story.STRANGER))
    response = await world.client.post("/v1/nodes/n2/drain", json={})
    assert response.status_code == 404


async def handed_over(world: World) -> list[Command]:
    """Every command about a node."""
    decoder: Decoder[Command] = Decoder(DrainNode, ResumeNode)
    async for batch in world.bus.read(COMMANDS.name, [BID_COMMANDS]):
        return [decoder.decode(record.data) for record in batch.records]
    raise AssertionError("a read ended")


def test_a_drained_node_is_on_no_list_of_offers_and_is_again_once_it_is_resumed() -> None:
    shown = Projected().tell(story.bid("n1"), story.alive("n1"))
    assert shown.views.ranked[ALL_OFFERS]["n1"] is not None
    shown.tell(drain_accepted("n1"), story.bid("n1"))
    assert shown.views.ranked[ALL_OFFERS]["n1"] is None
    shown.tell(resume_accepted("n1"))
    assert shown.views.ranked[ALL_OFFERS]["n1"] is not None


def test_a_job_whose_node_is_drained_is_moving_until_it_is_ready_again() -> None:
    shown = Projected().tell(*READY, DRAINED)
    assert _job(shown).state == "moving"
    shown.tell(story.forming(N1, story.member("n3", 3, 1), generation=2))
    assert (_job(shown).state, [one.node for one in _job(shown).members]) == ("moving", ["n1", "n3"])
    shown.tell(Cluster(generation=2).ready())
    assert _job(shown).state == "ready"
    assert "leave 1 drained node" in _story(shown)


def test_a_job_that_goes_on_without_a_lost_node_says_so() -> None:
    shown = Projected().tell(*READY, Cluster().lost(2, "n2"), Cluster().ended(2))
    smaller = clusters.ClusterForming(
        account=BUYER,
        job=JOB,
        generation=2,
        at_ms=story.T0_MS,
        members=(N1,),
        shrunk=(lease_id(JOB, 2),),
        prepare_by_ms=story.T0_MS,
    )
    shown.tell(smaller)
    job = _job(shown)
    assert (job.state, len(job.members), job.nodes_wanted) == ("recovering", 1, None)
    assert f"without {lease_id(JOB, 2)}" in _story(shown)


def _job(shown: Projected) -> Job:
    job = shown.views.documents[job_doc(JOB)]
    assert isinstance(job, Job)
    return job


def _story(shown: Projected) -> str:
    told = (msgspec.json.decode(one, type=JobHappening) for one in shown.views.ranked[events_ranking(JOB)])
    return "\n".join(one.message for one in told)


def test_a_job_that_is_to_be_retried_says_why_and_when_until_it_forms() -> None:
    shown = Projected().tell(*READY, Cluster().ended(2), retry_planned())
    assert (_job(shown).retry_at_ms, _job(shown).first_cause) == (
        story.T0_MS + 2_000,
        "rank 1 on node n2: process 0 exited with 3",
    )
    assert "retry 1 in 2 s" in _story(shown)
    assert _job(shown.tell(story.forming(N1, N2, generation=2))).retry_at_ms is None
