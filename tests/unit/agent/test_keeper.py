"""A keeper tells what became of its lease again and again, until the lease is no longer listed."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from volt.contracts.clusters import Manifest, ManifestNode
from volt.contracts.jobs import Workload
from volt.contracts.messages import Decoder
from volt.contracts.nodes import DesiredLease, Phase, Report, ReportCleared, ReportFailed, ReportPrepared
from volt.contracts.streams import COMMANDS
from volt.runtime.memory import MemoryBus, MemoryClock
from volt_agent import effects
from volt_agent.checkpoints.lease import SharedStore
from volt_agent.domain import Prepared
from volt_agent.effects import Keeper
from volt_agent.heart import Heart
from volt_agent.kernel import boot_ms
from volt_agent.node import Node
from volt_agent.process import ProcessRuntime
from volt_agent.settings import Settings

REPORTS_HEARD = 3
MANIFEST = Manifest(
    job="job",
    generation=1,
    master_address="127.0.0.1",
    master_port=29_500,
    world_size=1,
    nodes=(ManifestNode(node="n1", node_rank=0, address="127.0.0.1", processes=1, first_rank=0),),
)
SECONDS_MAX = 10.0
_decoder: Decoder[Report] = Decoder(ReportCleared, ReportFailed, ReportPrepared)


def desired(phase: Phase, *gpus: str) -> DesiredLease:
    return DesiredLease(
        lease="job-1",
        job="job",
        account="buyer",
        generation=1,
        phase=phase,
        node_rank=0,
        gpus=gpus or ("GPU-0",),
        processes=1,
        workload=Workload(command=("true",)),
        grace_ms=1000,
    )


async def keeper_of(folder: Path, phase: Phase, *gpus: str) -> tuple[Keeper, MemoryBus]:
    settings = Settings(nats_url="nats://127.0.0.1:1", account="provider", state=str(folder), price=1)
    bus = MemoryBus(MemoryClock())
    await bus.ensure(COMMANDS)
    heart = Heart(settings, "n1", "run")
    heart.acknowledged_ms = boot_ms()
    node = Node(
        "n1",
        settings,
        frozenset({"GPU-0"}),
        bus,
        ProcessRuntime("127.0.0.1", folder),
        heart,
        lambda: None,
        SharedStore(settings.checkpoints_url, "n1"),
    )
    return Keeper(node, desired(phase, *gpus)), bus


async def heard(bus: MemoryBus) -> list[Report]:
    """The first `REPORTS_HEARD` reports."""
    reports: list[Report] = []
    async with asyncio.timeout(SECONDS_MAX):
        async for batch in bus.read(COMMANDS.name, COMMANDS.subjects):
            reports += [_decoder.decode(record.data) for record in batch.records]
            if len(reports) >= REPORTS_HEARD:
                break
    return reports[:REPORTS_HEARD]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "REPORT_AGAIN_SECONDS_MIN", 0.01)


async def test_that_a_lease_is_cleared_is_said_until_it_is_no_longer_listed(tmp_path: Path) -> None:
    keeper, bus = await keeper_of(tmp_path, "stop")
    keeping = asyncio.create_task(keeper.keep())
    assert await heard(bus) == REPORTS_HEARD * [
        ReportCleared(account="provider", node="n1", lease="job-1", generation=1)
    ]
    keeper.unlist()
    await asyncio.wait_for(keeping, SECONDS_MAX)


async def test_that_a_lease_is_prepared_is_said_until_something_else_is_desired(tmp_path: Path) -> None:
    keeper, bus = await keeper_of(tmp_path, "prepare")
    keeping = asyncio.create_task(keeper.keep())
    reports = await heard(bus)
    assert len(set(map(repr, reports))) == 1
    assert isinstance(reports[0], ReportPrepared)
    keeper.unlist()
    await asyncio.wait_for(keeping, SECONDS_MAX)


async def test_a_lease_of_a_card_that_has_fallen_out_is_refused_and_named(tmp_path: Path) -> None:
    """Reported as akash support#137: of eight that were leased six came back. Each lease is judged by itself."""
    keeper, bus = await keeper_of(tmp_path, "prepare", "GPU-0", "GPU-1")
    keeping = asyncio.create_task(keeper.keep())
    report = (await heard(bus))[0]
    assert isinstance(report, ReportFailed)
    assert (report.stage, report.message) == ("prepare", "WorkloadError: this node no longer has GPU-1")
    keeper.unlist()
    await asyncio.wait_for(keeping, SECONDS_MAX)


async def test_a_start_waits_for_a_bus_that_is_away_and_no_node_is_blamed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Semaphore(0)

    async def unheard(_heart: Heart) -> bool:
        asked.release()
        await asyncio.sleep(0)
        return False

    monkeypatch.setattr(Heart, "beat_now", unheard)
    keeper, bus = await keeper_of(tmp_path, "prepare")
    keeping = asyncio.create_task(keeper.keep())
    assert isinstance((await heard(bus))[0], ReportPrepared)
    keeper.desire(replace(desired("start"), manifest=MANIFEST))
    async with asyncio.timeout(SECONDS_MAX):
        for _ in range(REPORTS_HEARD):
            await asked.acquire()
    assert isinstance(keeper.local, Prepared)
    keeper.unlist()
    await asyncio.wait_for(keeping, SECONDS_MAX)
