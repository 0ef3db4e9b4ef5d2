"""A cluster that is to have another size, as people see it."""

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from tests.unit.gateway import scaling, story
from tests.unit.gateway.story import BUYER, JOB, Cluster, Projected
from tests.unit.gateway.world import World, running
from volt.contracts import clusters
from volt.contracts.http import JobHappening
from volt.contracts.ids import lease_id
from volt.contracts.jobs import RequestJob, ScaleJob
from volt_gateway.entities import Job, events_ranking, job_doc

pytest_plugins = ["tests.support.valkey"]

BODY = {"gpu": "h100", "count": 4, "workload": {"command": ["python", "train.py"]}}
FIRST, SECOND = Cluster(), Cluster(generation=2)
N1, N2, N3 = (story.member(f"n{number}", number, number - 1) for number in (1, 2, 3))
READY = [story.admitted(), story.funded(), story.cleared(story.gang("n1", "n2")), story.forming(N1, N2), FIRST.ready()]
GROWING = [
    *READY,
    *scaling.wishes(),
    FIRST.wanted(2),
    story.cleared(story.gang("n3", first_lease=3, first_rank=2)),
    SECOND.joined(N3),
    SECOND.prepared(3),
]


@pytest.fixture
async def world(redis: Redis) -> AsyncIterator[World]:
    async with running(redis) as world:
        yield world


def test_a_cluster_that_grows_stays_ready_until_it_forms_again() -> None:
    shown = Projected().tell(*GROWING)
    job = _job(shown)
    assert (job.state, job.nodes_wanted, _states(job)) == ("ready", 3, ["started", "started", "prepared"])
    assert _job(shown.tell(_ended("growth"))).state == "scaling"
    job = _job(shown.tell(story.forming(N1, N2, N3, generation=2)))
    assert (job.state, _states(job)) == ("scaling", ["preparing", "preparing", "prepared"])
    job = _job(shown.tell(SECOND.ready()))
    assert (job.state, _states(job)) == ("ready", ["started"] * 3)


def test_who_is_prepared_joins_a_recovery_and_the_lost_one_is_told() -> None:
    shown = Projected().tell(*GROWING, FIRST.lost(2, "n2"), FIRST.ended(2))
    assert _job(shown).state == "recovering"
    shown.tell(story.forming(N1, N3, generation=2, replaces=(lease_id(JOB, 2),)))
    job = _job(shown)
    assert (job.state, [one.node for one in job.members]) == ("recovering", ["n1", "n3"])
    assert _states(job) == ["preparing", "prepared"]


def test_who_leaves_a_shrinking_cluster_is_shown_no_more() -> None:
    shown = Projected().tell(*READY, _ended("shrink", lease_id(JOB, 2)))
    job = _job(shown)
    assert (job.state, [one.node for one in job.members]) == ("scaling", ["n1"])
    assert _job(shown.tell(FIRST.cleared(2, "n2"))).members == job.members


def test_a_growth_that_failed_is_wanted_no_more() -> None:
    shown = Projected().tell(*GROWING, story.cleared(story.gang("n5", first_lease=5, first_rank=3)))
    job = _job(shown.tell(*scaling.growth_given_up()))
    assert (job.state, job.nodes_wanted, len(job.members)) == ("ready", None, 3)


def test_a_wish_for_another_size_leaves_the_job_as_it_is_and_is_told() -> None:
    shown = Projected().tell(story.admitted(), story.funded(), story.cleared(story.gang("n1", "n2")))
    before = _job(shown)
    shown.tell(*story.asked_of_the_market(), *scaling.wishes(), *scaling.growth_given_up())
    after = replace(_job(shown), scalings=())
    assert after == before, "neither a refused wish nor a refused quote makes it a rejected job"
    told = [msgspec.json.decode(line, type=JobHappening) for line in shown.views.ranked[events_ranking(JOB)]]
    assert [one.message for one in sorted(told, key=lambda one: one.seq)][-4:] == [
        "to be scaled to 3 nodes",
        f"not scaled: {story.REASON.message}",
        "n4 does not join: prepare_failed (no such image)",
        "gives up growing by ranks 2, 3: failed (rank 2 on node n4: the node could not prepare)",
    ]


def test_a_generation_that_ends_on_purpose_says_what_for() -> None:
    shown = Projected().tell(story.admitted())
    ended = clusters.GenerationEnded
    shown.tell(
        ended(account=story.BUYER, job=JOB, generation=1, at_ms=story.T0_MS, cause="growth"),
        ended(account=story.BUYER, job=JOB, generation=2, at_ms=story.T0_MS, cause="shrink", leaves=("a", "b")),
    )
    told = [msgspec.json.decode(line, type=JobHappening) for line in shown.views.ranked[events_ranking(JOB)]]
    assert {one.message for one in told} >= {
        "the generation ends to grow, and is billed no further",
        "the generation ends to shrink, without a, b, and is billed no further",
    }


async def test_a_wish_is_answered_with_the_job_once_it_is_accepted(world: World) -> None:
    job = await _created(world)
    answer = await _scale(world, job, 6, key="s1")
    assert (answer.status_code, answer.json()["nodes_wanted"]) == (200, 3)


async def test_the_same_wish_again_is_answered_as_before(world: World) -> None:
    job = await _created(world)
    for count, status in ((6, 200), (5, 422)):
        first, second = [await _scale(world, job, count, key=f"s{count}") for _ in range(2)]
        assert (first.status_code, second.status_code) == (status, status)
        assert first.json() == second.json()
    assert [type(command) for command in await world.commands()] == [RequestJob, ScaleJob, ScaleJob]


async def test_a_job_that_has_ended_is_scaled_no_more(world: World) -> None:
    job = await _created(world)
    await world.client.delete(f"/v1/jobs/{job}")
    answer = await _scale(world, job, 6)
    assert (answer.status_code, answer.json()["code"]) == (422, "job_ended")


async def test_what_is_not_there_or_somebody_elses_is_not_scaled(world: World) -> None:
    job = await _created(world)
    stranger = {"Authorization": "Bearer mallory's key"}
    for name, headers in (("jnothing", {}), (job, stranger)):
        answer = await world.client.post(f"/v1/jobs/{name}/scale", json={"count": 6}, headers=headers)
        assert answer.status_code == 404


@pytest.mark.parametrize("body", [{}, {"count": "6"}, {"count": -1}, {"count": 6, "nodes": 3}, {"count": 1.5}])
async def test_a_wish_that_cannot_be_read_is_a_422(world: World, body: dict[str, object]) -> None:
    job = await _created(world)
    answer = await world.client.post(f"/v1/jobs/{job}/scale", json=body)
    assert answer.status_code in (400, 422)
    assert [type(command) for command in await world.commands()] == [RequestJob]


async def _created(world: World) -> str:
    answer = await world.client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k1"})
    return str(answer.json()["id"])


async def _scale(world: World, job: str, count: int, key: str = "s1") -> httpx.Response:
    headers = {"Idempotency-Key": key}
    return await world.client.post(f"/v1/jobs/{job}/scale", json={"count": count}, headers=headers)


def _ended(cause: clusters.EndCause, *leaves: str) -> clusters.GenerationEnded:
    return clusters.GenerationEnded(account=BUYER, job=JOB, generation=1, at_ms=story.T0_MS, cause=cause, leaves=leaves)


def _job(shown: Projected) -> Job:
    job = shown.views.documents[job_doc(JOB)]
    assert isinstance(job, Job)
    return job


def _states(job: Job) -> list[str]:
    return [one.state for one in job.members]
