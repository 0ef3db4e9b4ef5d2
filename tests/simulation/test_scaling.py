"""A cluster grows and shrinks under the real services: bid-intake, matcher, provisioner, monitor and billing."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation.agents import GPUS_PER_NODE
from tests.simulation.test_crash_points import all_of, balances, bill
from tests.simulation.wire import STEP_MS, Crash, Moment
from tests.simulation.world import BUYER, JOB, LEASES, Outcome, World, plans, request
from volt.audit.ledger import audit
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    GenerationEnded,
    LeaseCleared,
    MemberLost,
    MembersWanted,
)
from volt.contracts.jobs import JobScaleAccepted, JobScaleRejected, ScaleJob
from volt.contracts.ledger import JobClosed, MembersFunded
from volt.contracts.nodes import NodeAlive
from volt.contracts.subjects import command_job

SIZES = (3, 1, 2)
WORKS_MS = 1_500
RUNS_MS = 500
"""How long each size but the last runs."""


class ScaledWorld(World):
    """Two nodes of three run a job; it is scaled to three, to one, and to two, each time once it is ready."""

    async def happen(self) -> None:
        steady = [replace(plan, works_ms=WORKS_MS, silent_after_ms=None) for plan in plans()]
        self._start_nodes(steady)
        await self._pass_until(NodeAlive, len(steady))
        await self._ask(command_job(BUYER), request())
        for number, nodes in enumerate(SIZES, start=1):
            await self._pass_until(ClusterReady, number)
            for _ in range(RUNS_MS // STEP_MS):
                await self._step()
            await self._ask(command_job(BUYER), scale(nodes * GPUS_PER_NODE, f"s{number}"))
            await self._ask(command_job(BUYER), scale(nodes * GPUS_PER_NODE, f"s{number}"))
        await self._pass_until(ClusterReady, len(SIZES) + 1)
        await self._ask(command_job(BUYER), scale(3, "odd"))
        await self._pass_until(JobClosed, 1)
        await self._pass_until(LeaseCleared, LEASES + 1)


async def play(crash: Crash | None = None) -> Outcome:
    world = ScaledWorld(crash)
    try:
        return await world.play()
    finally:
        await world.stop()


def scale(count: int, request_id: str) -> ScaleJob:
    return ScaleJob(account=BUYER, request_id=request_id, job=JOB, count=count)


def problems(outcome: Outcome) -> Iterator[str]:
    """What is wrong with a run."""
    sizes = [len(forming.members) for forming in all_of(outcome, ClusterForming)]
    if sizes != [2, *SIZES]:
        yield f"formed with {sizes}"
    causes = [ended.cause for ended in all_of(outcome, GenerationEnded)]
    if causes != ["growth", "shrink", "growth"]:
        yield f"generations ended by {causes}"
    if [released.reason for released in all_of(outcome, ClusterReleased)] != ["completed"]:
        yield f"released: {all_of(outcome, ClusterReleased)}"
    if outcome.stuck or outcome.dead_letters:
        yield f"stuck: {outcome.stuck}, dead: {outcome.dead_letters}"
    yield from (str(finding) for finding in audit(outcome.entries).findings)


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return asyncio.run(play())


def test_a_cluster_grows_and_shrinks_and_every_bill_is_right(undisturbed: Outcome) -> None:
    assert list(problems(undisturbed)) == []
    assert [event.nodes for event in all_of(undisturbed, JobScaleAccepted)] == list(SIZES), "each wish counts once"
    assert [event.reason.code for event in all_of(undisturbed, JobScaleRejected)] == ["count_not_whole_nodes"]
    assert [len(event.wanted) for event in all_of(undisturbed, MembersWanted)] == [1, 1]
    assert len(all_of(undisturbed, MembersFunded)) == 2
    assert not all_of(undisturbed, MemberLost)
    (job,) = audit(undisturbed.entries).jobs
    assert len(job.leases) == LEASES + 1
    assert all(lease.billable_ms > 0 for lease in job.leases)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_provisioner_that_dies_at_any_of_its_writes_changes_no_bill(moment: Moment, undisturbed: Outcome) -> None:
    found = []
    for write, subject in enumerate(undisturbed.writes["provisioner"], start=1):
        outcome = asyncio.run(play(Crash("provisioner", write, moment)))
        wrong = [*problems(outcome)]
        if (bill(outcome), balances(outcome)) != (bill(undisturbed), balances(undisturbed)):
            wrong.append(f"billed {bill(outcome)}")
        found += [f"{moment} write {write} to {subject}: {one}" for one in wrong]
    assert found == []
