"""SIGKILL of any one service at each stage of a job: it ends well, each loss has one replacement, the bill is right.

All cells share one control plane on a real nats-server and Valkey. A service that writes a stage's event dies before
and after its append; one that reads it dies before folding it; one that does neither dies when the stage is seen.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.market import Market, Seen, market
from tests.support.crashing import FOLDER_VARIABLE, Shot, When, arm, is_armed
from tests.support.losses import all_cleared, assert_each_loss_has_one_replacement
from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.cli.demo.farm import Node, Site, kill_tree
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
)
from volt.contracts.jobs import JobAdmitted
from volt.contracts.ledger import JobClosed, JobFunded
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeLost
from volt.embedded import SERVICES, Limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

SITES = tuple(Site(f"node-{number}", "north", "A", 1_000_000 + number) for number in range(4))
FIRED_POLLS_MAX = 200
FIRED_POLL_SECONDS = 0.05
KILLED_ON_PURPOSE = Limits(restart_window_seconds=1.0)
SHORT = ("sleep", "0.2")
LONG = ("sleep", "300")

STAGES: dict[str, tuple[type[Event], str]] = {
    "admitted": (JobAdmitted, "bid-intake"),
    "funded": (JobFunded, "billing"),
    "matched": (MarketCleared, "matcher"),
    "preparing": (ClusterForming, "provisioner"),
    "ready": (ClusterReady, "provisioner"),
    "lost": (NodeLost, "health-monitor"),
    "releasing": (ClusterReleased, "provisioner"),
}
"""Each stage by the event that begins it, and that event's writer."""

SEES_NOTHING = {("bid-intake", stage) for stage in STAGES if stage != "admitted"} | {
    ("health-monitor", "admitted"),
    ("health-monitor", "funded"),
    ("billing", "lost"),
}
"""Where a service does not read the stage's event."""


@dataclass(frozen=True)
class Cell:
    stage: str
    service: str
    when: When | None
    """None: from outside, when the stage is seen."""

    def __str__(self) -> str:
        return f"{self.service}-{self.when or 'at'}-{self.stage}"


def cells() -> list[Cell]:
    """Every service at every stage; none is left out."""
    made: list[Cell] = []
    for stage, (_, writer) in STAGES.items():
        for service in SERVICES:
            if service == writer:
                made += [Cell(stage, service, "before_append"), Cell(stage, service, "after_append")]
            elif (service, stage) in SEES_NOTHING:
                made.append(Cell(stage, service, None))
            else:
                made.append(Cell(stage, service, "before_fold"))
    made += [Cell(stage, "provisioner", "before_publish") for stage in ("preparing",)]
    made += [Cell(stage, "provisioner", "after_publish") for stage in ("preparing",)]
    return made


@dataclass(frozen=True)
class Range:
    """The shared market and the folder in which shots are armed."""

    run: Market
    folder: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shooting_range(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Range]:
    folder = tmp_path_factory.mktemp("shots")
    root = str(Path(__file__).parents[2])
    services = {
        name: (
            "env",
            f"{FOLDER_VARIABLE}={folder}",
            f"PYTHONPATH={root}",
            argv[0],
            "-m",
            "tests.support.crashing",
            name,
            argv[-1],
        )
        for name, argv in SERVICES.items()
    }
    async with market(SITES, services, KILLED_ON_PURPOSE) as run:
        yield Range(run, folder)


@pytest.mark.parametrize("cell", cells(), ids=str)
async def test_a_service_killed_at_a_stage_costs_nobody_anything(cell: Cell, shooting_range: Range) -> None:
    run = shooting_range.run
    job = await (_with_a_loss if cell.stage == "lost" else _without_a_loss)(cell, shooting_range)
    if cell.when is not None:
        await _fired(shooting_range.folder, cell.service)
    await run.control_plane.service(cell.service).until_ready()
    await run.observer.until(lambda: _closed(run, job))
    released = [seen.entry.event for seen in run.observer.by_job[job] if isinstance(seen.entry.event, ClusterReleased)]
    assert len(released) == 1
    assert_each_loss_has_one_replacement(_events(run, job))


async def test_the_audit_finds_every_bill_right_to_the_micro_dollar(shooting_range: Range) -> None:
    run = shooting_range.run
    report = audit([seen.entry for seen in run.observer.all])
    assert report.findings == ()
    assert len(report.jobs) == len(cells())
    assert all(job.stage == "closed" and job.held_microusd == 0 for job in report.jobs)
    assert report.charged_microusd == report.paid_microusd + report.fee_microusd > 0


async def test_no_gpu_was_leased_twice_and_every_grant_kept_the_rules_of_the_market(shooting_range: Range) -> None:
    report = audit_market([seen.entry for seen in shooting_range.run.observer.all])
    assert report.findings == ()
    assert report.held == 0
    assert report.gangs >= len(cells())


async def _fired(folder: Path, service: str) -> None:
    """The shot was fired: the service reaches its point a moment after this observer has seen the stage, at most."""
    for _ in range(FIRED_POLLS_MAX):
        if not is_armed(folder, service):
            return
        await asyncio.sleep(FIRED_POLL_SECONDS)
    pytest.fail(f"the shot at {service} was never fired")


async def _without_a_loss(cell: Cell, range_: Range) -> str:
    run = range_.run
    job, arrived = await _requested(cell, range_, SHORT)
    await arrived
    await run.observer.event(job, ClusterReleased)
    return job


async def _with_a_loss(cell: Cell, range_: Range) -> str:
    run = range_.run
    job, _ = await run.request(LONG)
    forming = (await run.observer.event(job, ClusterForming)).entry.event
    assert isinstance(forming, ClusterForming)
    await run.observer.event(job, ClusterReady)
    victim = next(node for node in run.nodes if node.id == forming.members[1].node)
    before = len(run.observer.all)
    if cell.when is not None:
        arm(range_.folder, cell.service, Shot(when=cell.when, event="NodeLost", about=victim.id))
    kill_tree(victim.child.pid)
    await run.observer.until(lambda: _about(run, victim, NodeLost, before))
    if cell.when is None:
        await run.control_plane.service(cell.service).kill()
    await run.observer.event(job, ClusterReady, generation=2)
    await victim.child.wait()
    await victim.child.start({}, [])
    await run.observer.until(lambda: _about(run, victim, NodeAlive, before))
    await run.release(job)
    return job


async def _requested(cell: Cell, range_: Range, command: tuple[str, ...]) -> "tuple[str, asyncio.Task[None]]":
    run = range_.run
    event, _ = STAGES[cell.stage]
    job, request = run.draft(command)
    if cell.when is not None:
        arm(range_.folder, cell.service, Shot(when=cell.when, event=event.__name__, about=job))
    await run.send(request)

    async def arrive() -> None:
        await run.observer.event(job, event)
        if cell.when is None:
            await run.control_plane.service(cell.service).kill()

    return job, asyncio.create_task(arrive())


def _closed(run: Market, job: str) -> Seen | None:
    """The end of the job, once its bill is final and every lease of it is cleared."""
    return run.observer.find(job, JobClosed) if all_cleared(_events(run, job)) else None


def _events(run: Market, job: str) -> list[Event]:
    return [seen.entry.event for seen in run.observer.by_job[job]]


def _about(run: Market, node: Node, kind: type[NodeLost] | type[NodeAlive], after: int) -> Seen | None:
    for seen in run.observer.all[after:]:
        if isinstance(seen.entry.event, kind) and seen.entry.event.node == node.id:
            return seen
    return None
