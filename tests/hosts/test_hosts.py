"""Hosts that are cut off, stand still or die, on a real network: no job runs twice, and each loss is answered once.

All cells share one control plane. What the workloads wrote to the shared disk decides; the log says what was meant.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.hosts.house import F_SECONDS, L_SECONDS, House, open_house
from tests.hosts.jobs import Job, closed, forming, running
from tests.hosts.network import why_no_hosts
from tests.hosts.progress import Run, is_gone, now_ns
from volt.contracts.clusters import ClusterReady
from volt.contracts.timing import EMBEDDED

_missing = why_no_hosts()
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(_missing is not None, reason=str(_missing)),
]

BLIP_SECONDS = 0.3
"""What was sent meanwhile is sent again within 0.4 s, long before F even on a busy machine."""
BLIPS = 9
"""Together they are longer than L."""
EXIT_REFUSED = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with open_house(tmp_path_factory.mktemp("hosts")) as house:
        yield house


async def test_a_host_that_is_away_for_moments_goes_on_as_if_nothing_had_been(house: House) -> None:
    async with running(house) as job:
        before = job.runs()
        for _ in range(BLIPS):
            async with house.cut(job.host(1)):
                await asyncio.sleep(BLIP_SECONDS)
            await asyncio.sleep(BLIP_SECONDS)
        await job.runs_on()
        _went_on(job, before)


async def test_a_host_that_is_away_for_nearly_too_long_is_replaced_once_or_not_at_all(house: House) -> None:
    async with running(house) as job:
        async with house.cut(job.host(1)):
            await asyncio.sleep(0.8 * L_SECONDS)
        await asyncio.sleep(L_SECONDS)
        await job.runs_on()
        assert len(job.lost_nodes()) <= 1


@pytest.mark.parametrize("back", ["when it is called lost", "when it is replaced", "long after"])
async def test_a_host_that_is_cut_off_is_replaced_once_and_comes_back_fenced(house: House, back: str) -> None:
    async with running(house) as job:
        victim, old = job.host(1), job.run(1)
        async with house.cut(victim):
            await job.loses(victim)
            if back != "when it is called lost":
                await job.ready(2)
            if back == "long after":
                await asyncio.sleep(L_SECONDS)
                assert not await _makes_steps(job, old)
        await job.ready(2)
        await job.runs_on()
        assert job.host(1) != victim
        assert job.lost_nodes() == [victim]


async def test_a_monitor_that_is_cut_off_loses_nobody(house: House) -> None:
    async with running(house) as job:
        before = job.runs()
        async with house.cut("watch"):
            await asyncio.sleep(2 * L_SECONDS)
        await asyncio.sleep(L_SECONDS)
        await job.runs_on()
        _went_on(job, before)


async def test_a_switch_that_fails_costs_everybody_a_pause_and_loses_nobody(house: House) -> None:
    async with running(house) as job:
        before = job.runs()
        async with house.cut(*house.network.hosts):
            await asyncio.sleep(1.5 * L_SECONDS)
        await asyncio.sleep(L_SECONDS)
        await job.runs_on()
        _went_on(job, before)


async def test_a_bus_that_is_away_for_longer_than_the_fence_costs_a_pause_and_loses_nobody(house: House) -> None:
    async with running(house) as job:
        before = job.runs()
        bus = house.services["nats"]
        bus.auto_restart = False
        await bus.kill()
        await asyncio.sleep(2 * F_SECONDS)
        await bus.restart()
        bus.auto_restart = True
        await asyncio.sleep(L_SECONDS)
        await job.runs_on()
        _went_on(job, before)


async def test_the_workload_of_an_agent_that_stands_still_does_not_run_on(house: House) -> None:
    async with running(house) as job:
        victim, old = job.host(1), job.run(1)
        agent = house.agents[victim].child
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            await job.ready(2)
            await job.runs_on()
            assert not await _makes_steps(job, old)
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        assert job.lost_nodes() == [victim]


async def test_the_workload_of_an_agent_that_is_killed_does_not_run_on(house: House) -> None:
    async with running(house) as job:
        victim, old = job.host(1), job.run(1)
        await house.agents[victim].child.kill()
        await job.ready(2)
        await job.runs_on()
        assert not await _makes_steps(job, old)
        await house.restart(victim)
        assert job.lost_nodes() == [victim]


async def test_hosts_that_are_all_cut_off_at_once_are_not_lost_at_once(house: House) -> None:
    """Reported as akash support#245: a blip of the control plane closed every lease."""
    async with running(house) as job:
        async with house.cut(*house.agents):
            await asyncio.sleep(1.5 * L_SECONDS)
        await asyncio.sleep(L_SECONDS)
        await job.runs_on()
        assert job.lost_nodes() == []


async def test_an_agent_that_starts_again_at_once_ends_what_it_finds(house: House) -> None:
    async with running(house) as job:
        victim, old = job.host(1), job.run(1)
        await house.agents[victim].child.kill()
        await house.restart(victim)
        await job.ready(2)
        assert is_gone(old.pid)
        await job.runs_on()


async def test_a_beat_process_that_dies_has_a_successor_and_the_job_goes_on(house: House) -> None:
    """Starting it may take longer than F on a busy machine: then the workload stands still meanwhile."""
    async with running(house) as job:
        before = job.runs()
        for _ in range(2):
            (beat,) = house.agents[job.host(1)].host.running("volt_agent.beat")
            os.kill(beat, signal.SIGKILL)
            await asyncio.sleep(L_SECONDS)
            await job.runs_on()
        _went_on(job, before)


async def test_a_host_that_loses_its_power_is_replaced_once_and_comes_back_clear(house: House) -> None:
    async with running(house) as job:
        victim = job.host(0)
        house.agents[victim].host.kill_all()
        await job.ready(2)
        await job.runs_on()
        await house.restart(victim)
        assert job.lost_nodes() == [victim]


async def test_a_host_that_is_cut_off_while_its_cluster_forms_is_replaced(house: House) -> None:
    """Reported as dstack#4146: one of four nodes cannot start, and three wait for it for ever."""
    async with forming(house) as job:
        victim = job.host(1)
        async with house.cut(victim):
            await job.loses(victim)
            await job.runs_on()
            assert job.host(1) != victim
        assert job.lost_nodes() == [victim]


async def test_a_job_that_is_cancelled_before_it_starts_leaves_nothing_on_a_host_that_is_away(house: House) -> None:
    """Reported as dstack#2068: a cancellation while a machine was being made left it busy for ever."""
    away = list(house.agents)[1:]
    async with AsyncExitStack() as outage:
        await outage.enter_async_context(house.cut(*away))
        async with forming(house) as job:
            await job.release()
            for host in away:
                await job.loses(host)
            assert (job.of(ClusterReady), job.runs()) == ([], [])
            await outage.aclose()


async def test_a_newcomer_with_the_identity_of_a_node_that_is_there_is_refused(house: House) -> None:
    async with running(house) as job:
        before = job.runs()
        async with house.newcomer(job.host(1), on=_idle(house, job)) as newcomer:
            assert await newcomer.wait() == EXIT_REFUSED
        await job.runs_on()
        _went_on(job, before)


async def test_a_newcomer_takes_the_place_of_a_node_that_is_lost_and_that_one_is_refused(house: House) -> None:
    async with running(house) as job:
        victim, old = job.host(1), job.run(1)
        async with AsyncExitStack() as newcomers:
            async with house.cut(victim):
                await job.loses(victim)
                await newcomers.enter_async_context(house.newcomer(victim, on=job.host(0)))
                await house.all_alive()
            assert await house.agents[victim].child.wait() == EXIT_REFUSED
            assert is_gone(old.pid)
            await job.runs_on()
            assert job.host(1) != victim
        await house.restart(victim)


async def test_nobody_is_billed_for_time_in_which_nothing_ran(house: House) -> None:
    bills = await closed(house)
    assert [bill for bill in bills if bill.billable_ms > bill.ran_ms + EMBEDDED.beat_ms] == []
    assert sum(bill.billable_ms > 0 for bill in bills) > len(bills) / 2


def _idle(house: House, job: Job) -> str:
    return next(host for host in house.agents if host not in (job.host(0), job.host(1)))


def _went_on(job: Job, before: list[Run]) -> None:
    """The same processes as before, of the same generation, and nobody was lost."""
    assert job.lost_nodes() == []
    assert [(run.generation, run.pid) for run in job.runs()] == [(run.generation, run.pid) for run in before]


async def _makes_steps(job: Job, old: Run) -> bool:
    asked_ns = now_ns()
    await asyncio.sleep(BLIP_SECONDS)
    return any(run.pid == old.pid and run.ended_ns >= asked_ns for run in job.runs())
