"""A lease from preparing to its end, with real processes that write checkpoints: what its agent reports, and when."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from tests.unit.agent.checkpointing import PLACE, checkpoint, contents, desired, noise, write_step
from volt.contracts.checkpoints import CHUNK_BYTES
from volt.contracts.clusters import Checkpoint
from volt.contracts.jobs import Workload
from volt.contracts.messages import Decoder
from volt.contracts.nodes import (
    DesiredLease,
    Report,
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportPrepared,
    ReportStarted,
)
from volt.contracts.streams import COMMANDS, LOGS
from volt.runtime.memory import MemoryBus, MemoryClock
from volt_agent.checkpoints import restoring
from volt_agent.checkpoints.lease import SharedStore
from volt_agent.checkpoints.storing import Uploader
from volt_agent.effects import Keeper
from volt_agent.heart import Heart
from volt_agent.kernel import boot_ms
from volt_agent.node import Node
from volt_agent.process import ProcessRuntime
from volt_agent.settings import Settings
from volt_agent.store.folder import FolderStore

SECONDS_MAX = 20.0
LONG_MS = 60_000
_reports: Decoder[Report] = Decoder(
    ReportCheckpoint, ReportCleared, ReportEnded, ReportFailed, ReportPrepared, ReportStarted
)


class Agent:
    """One lease in the keeping of an agent that stores in a folder."""

    def __init__(self, folder: Path, bus: MemoryBus) -> None:
        self.store = folder / "store"
        settings = Settings(
            nats_url="nats://127.0.0.1:1", account="lab", state=str(folder), price=1, checkpoints=f"file://{self.store}"
        )
        beating = Heart(settings, "n1", "run")
        beating.acknowledged_ms = boot_ms() + LONG_MS
        runtime, shared = ProcessRuntime("127.0.0.1", folder), SharedStore(settings.checkpoints_url, "n1")
        gpus = frozenset({"GPU-0"})
        self._node = Node("n1", settings, gpus, bus, runtime, beating, lambda: None, shared)
        self._bus = bus
        self.root = runtime.jobs / "j1/j1-1"

    def keep(self, wanted: DesiredLease) -> None:
        self.keeper = Keeper(self._node, wanted)
        self.keeping = asyncio.create_task(self.keeper.keep())

    async def reports(self, last: type[Report]) -> list[Report]:
        """All reports up to the first of this kind."""
        heard: list[Report] = []
        async with asyncio.timeout(SECONDS_MAX):
            async for batch in self._bus.read(COMMANDS.name, COMMANDS.subjects):
                for record in batch.records:
                    heard.append(_reports.decode(record.data))
                    if isinstance(heard[-1], last):
                        return heard
        raise AssertionError("the stream ended")

    async def committed(self, step: int, data: bytes) -> Checkpoint:
        """A step that generation 1 has stored."""
        work = self.store.parent / "work"
        write_step(work, step, {"weights": data})
        store = await FolderStore.open(self.store)
        return checkpoint(step, await Uploader(store, PLACE, lambda: 0.0).store(work, str(step)))


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    monkeypatch.setattr(Heart, "beat_now", AsyncMock(return_value=True))
    monkeypatch.setattr(restoring, "GET_RETRY_SECONDS", 0.001)
    bus = MemoryBus(MemoryClock())
    for stream in (COMMANDS, LOGS):
        await bus.ensure(stream)
    agent = Agent(tmp_path, bus)
    yield agent
    agent.keeping.cancel()
    await agent.keeper.abandon()


def preparing(generation: int, resume: Checkpoint | None = None, command: tuple[str, ...] = ("true",)) -> DesiredLease:
    return replace(desired(generation, resume=resume), phase="prepare", workload=Workload(command=command))


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", f'cd "$VOLT_CHECKPOINT_DIR" && {script}')


async def test_the_last_checkpoint_of_a_workload_is_reported_before_its_end(agent: Agent) -> None:
    script = shell("mkdir 7.tmp && head -c 5000000 /dev/urandom > 7.tmp/weights && mv 7.tmp 7")
    agent.keep(preparing(1, command=script))
    await agent.reports(ReportPrepared)
    agent.keeper.desire(replace(agent.keeper.desired, phase="start"))
    *before, stored, ended = await agent.reports(ReportEnded)
    assert [type(one) for one in before] == [ReportPrepared, ReportStarted]
    assert isinstance(stored, ReportCheckpoint)
    assert (stored.step, stored.size_bytes, stored.generation) == (7, 5_000_000, 1)
    assert isinstance(ended, ReportEnded)
    assert len(contents(agent.store)) == -(-5_000_000 // CHUNK_BYTES) + 2


async def test_what_a_workload_writes_in_its_grace_is_stored_before_its_end_is_told(agent: Agent) -> None:
    final = "mkdir 9.tmp && head -c 5000000 /dev/urandom > 9.tmp/weights && mv 9.tmp 9; exit 0"
    begin = "mkdir 1.tmp && mv 1.tmp 1; while :; do sleep 0.02; done"
    agent.keep(preparing(1, command=shell(f"trap '{final}' TERM; {begin}")))
    await agent.reports(ReportPrepared)
    agent.keeper.desire(replace(agent.keeper.desired, phase="start"))
    await agent.reports(ReportCheckpoint)
    agent.keeper.desire(replace(agent.keeper.desired, phase="halt", grace_ms=LONG_MS, store_ms=LONG_MS))
    *_, stored, ended = await agent.reports(ReportEnded)
    assert isinstance(stored, ReportCheckpoint)
    assert stored.step == 9
    assert isinstance(ended, ReportEnded)
    assert [one.code for one in ended.exits] == [0]


async def test_a_workload_finds_what_was_committed_and_nothing_else(agent: Agent) -> None:
    resume = await agent.committed(7, b"seven")
    script = shell(
        "ls -A > 8.tmp.list && cat 7/weights >> 8.tmp.list && mkdir 8.tmp && mv 8.tmp.list 8.tmp/ && mv 8.tmp 8"
    )
    agent.keep(preparing(2, resume, script))
    await agent.reports(ReportPrepared)
    agent.keeper.desire(replace(agent.keeper.desired, phase="start"))
    await agent.reports(ReportEnded)
    assert (agent.root / "checkpoints-2/8/8.tmp.list").read_bytes() == b"7\n8.tmp.list\nseven"


async def test_who_is_told_where_to_begin_only_at_the_start_restores_then(agent: Agent) -> None:
    resume = await agent.committed(7, b"seven")
    agent.keep(preparing(2, None, shell("test -f 7/weights")))
    await agent.reports(ReportPrepared)
    assert not (agent.root / "checkpoints-2/7").exists()
    agent.keeper.desire(replace(agent.keeper.desired, phase="start", resume=resume))
    ended = (await agent.reports(ReportEnded))[-1]
    assert isinstance(ended, ReportEnded)
    assert [one.code for one in ended.exits] == [0]


@pytest.mark.parametrize("harm", ["corrupt", "missing"])
async def test_a_checkpoint_that_is_not_true_is_a_failure_to_prepare_that_says_why(agent: Agent, harm: str) -> None:
    resume = await agent.committed(7, b"seven")
    for path in (agent.store / PLACE.prefix).iterdir():
        path.write_bytes(b"corrupt") if harm == "corrupt" else path.unlink()
    agent.keep(preparing(2, resume))
    failed = (await agent.reports(ReportFailed))[-1]
    assert isinstance(failed, ReportFailed)
    assert failed.stage == "prepare"
    assert failed.message.startswith(f"Checkpoint{harm.capitalize()}: ")
    assert resume.parts[0].manifest in failed.message


async def test_a_lease_that_is_taken_back_while_it_restores_is_cleared_and_leaves_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = await agent.committed(7, noise(2))
    reading, never = asyncio.Event(), asyncio.Event()

    async def stuck(*_: object) -> bytes:
        reading.set()
        await never.wait()
        raise AssertionError("it never comes here")

    monkeypatch.setattr(FolderStore, "get", stuck)
    agent.keep(preparing(2, resume))
    async with asyncio.timeout(SECONDS_MAX):
        await reading.wait()
    agent.keeper.desire(replace(agent.keeper.desired, phase="stop"))
    assert [type(one) for one in await agent.reports(ReportCleared)] == [ReportCleared]
    assert not agent.root.exists()
