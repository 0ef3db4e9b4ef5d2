"""Nothing that a workload has started outlives its lease, whoever is killed and however well it hides."""

import asyncio
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.unit.agent.shims import alive, ends_within
from volt_agent.kernel import boot_ms
from volt_agent.process import MARK, ProcessRuntime
from volt_agent.processes import PR_SET_CHILD_SUBREAPER, become_subreaper
from volt_agent.runtimes import Launch, LogLine

ADDRESS = "127.0.0.1"
LONG_MS = 60_000
SECONDS_MAX = 10.0
HIDES = "setsid sh -c 'setsid sleep 60 & echo $!; exec sleep 60' & exec sleep 60"
"""A helper in a session of its own, whose parent is in another one."""


@pytest.fixture
def _subreaper() -> Iterator[None]:
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Heard:
    """What a workload says: the pid of its helper."""

    def __init__(self) -> None:
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_line(self, line: LogLine) -> None:
        self.pid.set_result(int(line.text))

    async def helper(self) -> psutil.Process:
        return psutil.Process(await asyncio.wait_for(self.pid, SECONDS_MAX))


def launch(runtime: ProcessRuntime, *, environment: dict[str, str] | None = None) -> Launch:
    env = {"PATH": os.environ["PATH"], MARK: str(runtime.jobs / "j1" / "manifest-1.json")}
    return Launch(("sh", "-c", HIDES), env if environment is None else environment, "/")


@pytest.mark.usefixtures("_subreaper")
async def test_a_helper_that_hides_ends_with_its_shim(tmp_path: Path) -> None:
    own = {child.pid for child in psutil.Process().children()}
    runtime, heard = ProcessRuntime(ADDRESS, tmp_path, own=lambda: own), Heard()
    bare = launch(runtime, environment={"PATH": os.environ["PATH"]})
    workload = await runtime.start("job-1", 1, (bare,), boot_ms() + LONG_MS, heard.on_line)
    (pid,) = await workload.started()
    helper = await heard.helper()
    psutil.Process(psutil.Process(pid).ppid()).kill()
    (end,) = await asyncio.wait_for(workload.ended(), SECONDS_MAX)
    assert end.reason == "gone"
    assert not alive(helper)


async def test_a_helper_that_hides_from_two_dead_parents_is_found_by_the_next_agent(tmp_path: Path) -> None:
    runtime, heard = ProcessRuntime(ADDRESS, tmp_path), Heard()
    workload = await runtime.start("job-1", 1, (launch(runtime),), boot_ms() + LONG_MS, heard.on_line)
    (pid,) = await workload.started()
    helper = await heard.helper()
    psutil.Process(psutil.Process(pid).ppid()).kill()
    await asyncio.wait_for(workload.ended(), SECONDS_MAX)
    assert helper.is_running(), "nobody above it is left"
    await ProcessRuntime(ADDRESS, tmp_path).end_leftovers()
    assert ends_within(helper, SECONDS_MAX)
