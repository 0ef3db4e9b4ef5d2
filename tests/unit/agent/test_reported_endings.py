"""How the processes of one node end, with real ones: who failed first, what they wrote last, what they were given."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest

from volt.contracts.clusters import Exit, Manifest, ManifestNode
from volt.contracts.jobs import Workload
from volt.contracts.letters import LogLines
from volt.contracts.messages import Decoder
from volt.contracts.nodes import DesiredLease, Phase, Report, ReportEnded, ReportPrepared, ReportStarted
from volt.contracts.streams import COMMANDS, LOGS
from volt.contracts.telemetry import GpuReading
from volt.runtime.memory import MemoryBus, MemoryClock
from volt_agent.checkpoints.lease import SharedStore
from volt_agent.effects import Keeper
from volt_agent.endings import exit_of
from volt_agent.gauge import BLAME_MS, Gauge
from volt_agent.heart import Heart
from volt_agent.kernel import boot_ms
from volt_agent.node import Node
from volt_agent.process import ProcessRuntime
from volt_agent.runtimes import RankExit
from volt_agent.settings import Settings
from volt_provisioner.causes import exit_code

ADDRESS = "127.0.0.1"
GRACE_MS = 2_000
LONG_MS = 60_000
GPUS = tuple(f"GPU-{number}" for number in range(8))
SECONDS_MAX = 8.0
_reports: Decoder[Report] = Decoder(ReportEnded, ReportPrepared, ReportStarted)
_lines: Decoder[LogLines] = Decoder(LogLines)


class Lease:
    """One gang lease in the keeping of an agent, whose reports and output are read from the bus."""

    def __init__(self, folder: Path, bus: MemoryBus) -> None:
        settings = Settings(nats_url="nats://127.0.0.1:1", account="provider", state=str(folder), price=1)
        beating = Heart(settings, "n1", "run")
        beating.acknowledged_ms = boot_ms() + LONG_MS
        runtime = ProcessRuntime(ADDRESS, folder)
        store = SharedStore(settings.checkpoints_url, "n1")
        self.gauge = Gauge(GPUS, boot_ms)
        self._node = Node("n1", settings, frozenset(GPUS), bus, runtime, beating, lambda: None, store, self.gauge)
        self._bus = bus
        self.keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, *command: str, processes: int = 1, env: dict[str, str] | None = None) -> None:
        """Has the command run as so many processes, and returns when they do."""
        workload = Workload(kind="ddp", command=command, env=env or {})
        self.keeper = Keeper(self._node, _desired("prepare", processes, workload))
        self._keeping = asyncio.create_task(self.keeper.keep())
        await self._reported(ReportPrepared)
        self.keeper.desire(_desired("start", processes, workload))
        await self._reported(ReportStarted, ReportEnded)

    def halt(self) -> None:
        """What the provisioner desires when another member has failed."""
        assert self.keeper is not None
        self.keeper.desire(msgspec.structs.replace(self.keeper.desired, phase="halt"))

    async def ended(self) -> tuple[Exit, ...]:
        """The exits that are reported, within `SECONDS_MAX`."""
        report = await self._reported(ReportEnded)
        assert isinstance(report, ReportEnded)
        return report.exits

    async def written(self, text: str) -> None:
        """Waits until the line is stored."""
        async with asyncio.timeout(SECONDS_MAX):
            async for batch in self._bus.read(LOGS.name, LOGS.subjects):
                if any(line.text == text for record in batch.records for line in _lines.decode(record.data).lines):
                    return

    async def output(self) -> tuple[list[str], bool]:
        """The lines that are stored by now, and whether it was said that none follows."""
        batch = await anext(aiter(self._bus.read(LOGS.name, LOGS.subjects)))
        stored = [_lines.decode(record.data) for record in batch.records]
        return [line.text for one in stored for line in one.lines], any(one.last for one in stored)

    async def abandon(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self.keeper is not None:
            await self.keeper.abandon()

    async def _reported(self, *kinds: type[Report]) -> Report:
        async with asyncio.timeout(SECONDS_MAX):
            async for batch in self._bus.read(COMMANDS.name, COMMANDS.subjects):
                for record in batch.records:
                    report = _reports.decode(record.data)
                    if isinstance(report, kinds):
                        return report
        raise AssertionError("the stream ended")


def _desired(phase: Phase, processes: int, workload: Workload) -> DesiredLease:
    place = ManifestNode(node="n1", node_rank=0, address=ADDRESS, processes=processes, first_rank=0)
    manifest = Manifest(
        job="job", generation=1, master_address=ADDRESS, master_port=29_500, world_size=processes, nodes=(place,)
    )
    return DesiredLease(
        lease="job-1",
        job="job",
        account="buyer",
        generation=1,
        phase=phase,
        node_rank=0,
        gpus=GPUS[:processes],
        processes=processes,
        workload=workload,
        manifest=manifest,
        grace_ms=GRACE_MS,
    )


@pytest.fixture
async def lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lease]:
    monkeypatch.setattr(Heart, "beat_now", AsyncMock(return_value=True))
    bus = MemoryBus(MemoryClock())
    for stream in (COMMANDS, LOGS):
        await bus.ensure(stream)
    lease = Lease(tmp_path, bus)
    yield lease
    await lease.abandon()


async def test_a_rank_that_fails_does_not_leave_the_others_of_its_node_running(lease: Lease) -> None:
    """Reported as skypilot#3116: rank 2 exits 1, and the others run on."""
    await lease.start("sh", "-c", "test $RANK = 2 && { sleep 0.3; exit 1; }; exec sleep 60", processes=3)
    exits = {one.local_rank: one for one in await lease.ended()}
    assert exits[2].code == 1
    assert exits[0].code != 0
    assert exits[1].code != 0


async def test_of_the_ranks_of_a_node_the_one_that_failed_first_gives_the_exit_code(lease: Lease) -> None:
    """Reported as skypilot#4232: a rank that ends with an error because it was told to hides the culprit."""
    script = "test $RANK = 1 && { sleep 0.3; exit 3; }; trap 'exit 7' TERM; sleep 60 & wait"
    await lease.start("sh", "-c", script, processes=2)
    exits = await lease.ended()
    assert {one.local_rank: one.code for one in exits} == {0: 7, 1: 3}
    assert exit_code(exits) == 3


async def test_a_rank_that_is_done_does_not_end_the_others(lease: Lease) -> None:
    await lease.start("sh", "-c", "test $RANK = 0 && exit 0; sleep 0.4; exit 0", processes=2)
    assert [(one.code, one.signal) for one in await lease.ended()] == [(0, None), (0, None)]


async def test_what_is_written_at_the_stop_is_stored_before_the_end_is_told(lease: Lease) -> None:
    """Reported as dstack#4285 and dstack#2570."""
    await lease.start("sh", "-c", "trap 'seq 1 500; printf last; exit 5' TERM; echo first; sleep 60 & wait")
    await lease.written("first")
    lease.halt()
    assert [one.code for one in await lease.ended()] == [5]
    assert await lease.output() == (["first", *map(str, range(1, 501)), "last"], True)


def test_a_death_by_lack_of_memory_is_told_as_one() -> None:
    """Reported as dstack#2570."""
    told = exit_of(RankExit(0, None, 9, True, "exited"))
    assert (told.signal, told.out_of_memory) == (9, True)


async def test_a_process_has_the_buyers_variables_and_nothing_of_the_agents_shell(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported as skypilot#9314 and dstack#4161."""
    monkeypatch.setenv("BASH_FUNC_module%%", "() {  eval `modulecmd bash $*`\n}")
    monkeypatch.setenv("AGENT_SECRET", "x")
    given = {
        "A": " a  b ",
        "Q": "'\"`\\",
        "E": "=x=",
        "N": "one\ntwo\n",
        "D": "$HOME ${x} $(id)",
        "U": "żółw 🐢",
        "Z": "",
    }
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    await lease.start(sys.executable, "-I", "-S", "-c", code, env=given)
    await lease.ended()
    (line,), _ = await lease.output()
    seen: dict[str, str] = json.loads(line)
    assert {name: seen[name] for name in given} == given
    others = seen.keys() - given.keys()
    assert others == {
        *("PATH", "HOME", "LANG", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *(
            "NODE_RANK",
            "CUDA_VISIBLE_DEVICES",
            "VOLT_JOB_ID",
            "VOLT_GENERATION",
            "VOLT_MANIFEST",
            "VOLT_CHECKPOINT_DIR",
        ),
    }


@pytest.mark.parametrize(
    ("gpu", "code", "is_failure"),
    [(GPUS[0], 48, False), (GPUS[0], 94, False), (GPUS[0], 13, True), (GPUS[0], 45, True), (GPUS[1], 48, True)],
)
async def test_what_a_broken_gpu_has_ended_did_not_fail(lease: Lease, gpu: str, code: int, is_failure: bool) -> None:
    """XIDs of the workload's own making, and those of a GPU that the lease does not hold, excuse nothing."""
    await lease.start(sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(1)")
    lease.gauge._tell_xid(gpu, code, boot_ms())
    assert await lease.ended() == (Exit(local_rank=0, code=1) if is_failure else Exit(local_rank=0),)


async def test_a_workload_that_succeeds_beside_a_broken_gpu_has_succeeded(lease: Lease) -> None:
    await lease.start(sys.executable, "-c", "import time; time.sleep(0.5)")
    lease.gauge._tell((GpuReading(gpu=GPUS[0], vanished=True),))
    assert await lease.ended() == (Exit(local_rank=0, code=0),)


async def test_a_fault_of_long_ago_excuses_nothing(lease: Lease) -> None:
    await lease.start(sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(1)")
    lease.gauge._tell_xid(GPUS[0], 48, boot_ms() - BLAME_MS - 1_000)
    assert await lease.ended() == (Exit(local_rank=0, code=1),)
