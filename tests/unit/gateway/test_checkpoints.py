"""What a job has committed, as its owner sees it."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.unit.gateway import story
from tests.unit.gateway.committing import committed, stored
from tests.unit.gateway.story import JOB, Projected
from tests.unit.gateway.world import World, running
from volt.contracts.http import CHECKPOINTS_PER_JOB_MAX
from volt_gateway.entities import Job, events_ranking, job_doc

TOO_MANY = CHECKPOINTS_PER_JOB_MAX + 5


pytest_plugins = ["tests.support.valkey"]


@pytest.fixture
async def world(redis: Redis) -> AsyncIterator[World]:
    async with running(redis) as world:
        yield world


async def test_committed_checkpoints_are_listed_the_newest_first_with_those_that_are_kept(world: World) -> None:
    await world.tell(story.admitted(), *(committed(step) for step in (10, 20, 30)))
    answered = (await world.client.get(f"/v1/jobs/{JOB}/checkpoints")).json()
    assert answered["job"] == JOB
    assert [(one["step"], one["kept"]) for one in answered["checkpoints"]] == [(30, True), (20, True), (10, False)]
    assert answered["checkpoints"][0] == {
        "step": 30,
        "generation": 1,
        "committed_at_ms": story.T0_MS + 11,
        "ranks": 2,
        "size_bytes": 2_000,
        "kept": True,
    }


async def test_a_job_without_checkpoints_has_an_empty_list_and_a_strangers_job_none(world: World) -> None:
    await world.tell(story.admitted())
    assert (await world.client.get(f"/v1/jobs/{JOB}/checkpoints")).json()["checkpoints"] == []
    assert (await world.client.get("/v1/jobs/j-of-somebody/checkpoints")).status_code == 404


async def test_what_is_not_committed_says_which_ranks_are_missing(world: World) -> None:
    forming = story.forming(story.member("n1", 1, 0), story.member("n2", 2, 1))
    await world.tell(story.admitted(), forming, stored(1, 10), stored(1, 20), stored(0, 10), committed(10))
    listed = (await world.client.get(f"/v1/jobs/{JOB}/checkpoints")).json()
    assert listed["stored"] == [{"step": 20, "ranks": [1], "missing": [0]}]
    await world.tell(story.forming(story.member("n1", 1, 0), generation=2), stored(1, 30))
    listed = (await world.client.get(f"/v1/jobs/{JOB}/checkpoints")).json()
    assert listed["stored"] == [], "what the generation before has stored is of no use any more"


def test_what_one_rank_has_stored_is_not_told_and_a_commit_is() -> None:
    shown = Projected().tell(story.admitted(), stored(0, 10), stored(1, 10), committed(10))
    told = " ".join(shown.views.ranked[events_ranking(JOB)])
    assert "CheckpointStored" not in told
    assert "checkpoint of step 10 committed by 2 ranks" in told


def test_the_list_is_bounded() -> None:
    shown = Projected().tell(story.admitted(), *(committed(step) for step in range(TOO_MANY)))
    job = shown.views.documents[job_doc(JOB)]
    assert isinstance(job, Job)
    assert [one.step for one in job.checkpoints] == list(range(5, TOO_MANY))
