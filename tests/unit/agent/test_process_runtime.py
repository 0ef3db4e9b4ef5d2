"""The process runtime with real processes: what is started, said, ended, and found again by the next agent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.unit.agent.shims import LONG_MS, SECONDS_MAX, alive, ends_within
from volt_agent import process, processes
from volt_agent.kernel import boot_ms
from volt_agent.leftovers import Record
from volt_agent.process import ProcessRuntime, Workload
from volt_agent.runtimes import (
    Launch,
    LaunchFailed,
    LeaseBusy,
    LogLine,
    NoFreePort,
    RankExit,
    StaleGeneration,
)

ADDRESS = "127.0.0.1"
ENV = {"PATH": os.defpath}


class Node:
    """A runtime, the lines that its workloads wrote, and whatever of it is still to be ended."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.runtime = ProcessRuntime(ADDRESS, state)
        self.lines: defaultdict[int, list[str]] = defaultdict(list)
        self.heard: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.workloads: list[Workload] = []

    async def start(self, *scripts: str, lease: str = "job-1", generation: int = 1, left_ms: int = LONG_MS) -> Workload:
        launches = tuple(Launch(("sh", "-c", script), ENV, "/") for script in scripts)
        deadline_ms = boot_ms() + left_ms
        self.workloads.append(await self.runtime.start(lease, generation, launches, deadline_ms, self.on_line))
        return self.workloads[-1]

    async def on_line(self, line: LogLine) -> None:
        self.lines[line.local_rank].append(line.text)
        self.heard[line.local_rank].set()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path / "state")
    yield node
    for workload in node.workloads:
        workload.stop(0)
        await workload.ended()
    node.runtime.cancel("job-1")


async def test_every_rank_runs_writes_and_ends_on_its_own(node: Node) -> None:
    workload = await node.start("echo zero; exit 0", "echo one; printf last; exit 1", "kill -9 $$")
    assert len(set(await workload.started())) == 3
    assert {*await workload.ended()} == {
        RankExit(0, 0, None, False, "exited"),
        RankExit(1, 1, None, False, "exited"),
        RankExit(2, None, signal.SIGKILL, False, "exited"),
    }
    assert node.lines == {0: ["zero"], 1: ["one", "last"]}


async def test_nothing_of_the_agents_own_environment_leaks_in(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_SECRET", "x")
    env = {"ONE": "a b\n'$\"=é", "EMPTY": ""}
    code = "import os; print([open(f'/proc/{pid}/environ', 'rb').read() for pid in (os.getpid(), os.getppid())])"
    launch = Launch((sys.executable, "-S", "-c", code), env, "/")
    workload = await node.runtime.start("job-1", 1, (launch,), boot_ms() + LONG_MS, node.on_line)
    await workload.ended()
    assert node.lines[0] == [str(["ONE=a b\n'$\"=é\0EMPTY=\0".encode(), b""])], "the process, and its shim"


async def test_the_end_is_told_only_when_every_line_was_handed_over(tmp_path: Path) -> None:
    runtime, handed, gate = ProcessRuntime(ADDRESS, tmp_path), list[str](), asyncio.Event()

    async def on_line(line: LogLine) -> None:
        await gate.wait()
        handed.append(line.text)

    launch = Launch(("seq", "1", "15000"), ENV, "/")
    workload = await runtime.start("job-1", 1, (launch,), boot_ms() + LONG_MS, on_line)
    (pid,) = await workload.started()
    ended = asyncio.create_task(workload.ended())
    await asyncio.wait([ended], timeout=0.2)
    assert not ended.done()
    gate.set()
    assert (await ended)[0].code == 0
    assert handed == [str(i) for i in range(1, 15_001)]
    assert not psutil.pid_exists(pid)


async def test_a_flood_of_lines_leaves_the_agent_its_turns(node: Node) -> None:
    workload = await node.start(*["seq 1 8000"] * 4)
    ended, handed, burst = asyncio.create_task(workload.ended()), 0, 0
    while not ended.done():
        await asyncio.sleep(0)
        now_handed = sum(map(len, node.lines.values()))
        handed, burst = now_handed, max(burst, now_handed - handed)
    assert handed == 4 * 8_000
    assert burst <= 4 * process.LINES_PER_TURN_MAX


async def test_a_start_is_on_record_before_anything_runs(node: Node) -> None:
    workload = await node.start("true", "true")
    (path,) = (node.state / "workloads").iterdir()
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    assert (path.name, record.generation, len(record.shims)) == ("job-1.json", 1, 2)
    await workload.ended()
    assert not path.exists()


async def test_a_rank_that_cannot_start_ends_the_others_and_names_the_cause(node: Node) -> None:
    launches = (Launch(("sleep", "60"), ENV, "/"), Launch(("no-such-command", "x"), ENV, "/tmp"))
    workload = await node.runtime.start("job-1", 1, launches, boot_ms() + LONG_MS, node.on_line)
    with pytest.raises(LaunchFailed, match=r"local rank 1 .*command_not_found: no-such-command in /tmp") as failure:
        await workload.started()
    assert (failure.value.local_rank, failure.value.kind) == (1, "command_not_found")
    first, other = await workload.ended()
    assert other.reason == "signalled"
    assert first == RankExit(1, 127, None, False, "not_started")
    assert node.lines[1] == [str(failure.value)]


async def test_a_launch_too_large_for_the_kernel_or_for_the_shim_is_refused(node: Node) -> None:
    large, larger = (Launch(("true",), {"LARGE": "x" * size}, "/") for size in (400_000, 2_000_000))
    workload = await node.runtime.start("job-1", 1, (large,), boot_ms() + LONG_MS, node.on_line)
    with pytest.raises(LaunchFailed, match="spawn_failed"):
        await workload.started()
    await workload.ended()
    with pytest.raises(LaunchFailed, match="order_too_large"):
        await node.runtime.start("job-1", 1, (larger,), boot_ms() + LONG_MS, node.on_line)


async def test_a_workload_runs_as_long_as_it_is_extended(node: Node) -> None:
    workload = await node.start("sleep 60", left_ms=700)
    froze = asyncio.create_task(workload.froze())
    for _ in range(8):
        await asyncio.wait([froze], timeout=0.1)
        workload.extend(boot_ms() + 700)
    assert not froze.done()
    await froze
    workload.stop(60_000)
    assert await workload.ended() == (RankExit(0, None, signal.SIGKILL, False, "signalled"),)


async def test_a_workload_that_is_frozen_goes_on_when_it_is_thawed(node: Node) -> None:
    workload = await node.start("sleep 0.6; exit 3", left_ms=300)
    await workload.froze()
    workload.thaw(boot_ms() + 60_000)
    assert await workload.ended() == (RankExit(0, 3, None, False, "exited"),)


async def test_stop_lets_the_processes_finish_within_their_grace(node: Node) -> None:
    workload = await node.start("trap 'exit 5' TERM; sleep 60 & echo ready; wait", "trap '' TERM; echo ready; sleep 60")
    await asyncio.gather(node.heard[0].wait(), node.heard[1].wait())
    workload.stop(1_000)
    polite, stubborn = await workload.ended()
    assert polite == RankExit(0, 5, None, False, "signalled")
    assert stubborn == RankExit(1, None, signal.SIGKILL, False, "signalled")


async def test_ends_are_in_their_order_though_the_agent_hears_of_them_at_once(node: Node, tmp_path: Path) -> None:
    waits = (f"until test -e {tmp_path}/{rank}; do :; done; exit {rank}" for rank in (0, 1))
    workload = await node.start(*waits)
    pids = await workload.started()
    for rank in (1, 0):  # Without a turn of the event loop between the two.
        (tmp_path / str(rank)).touch()
        while psutil.pid_exists(pids[rank]):
            pass
    assert [end.code for end in await workload.ended()] == [1, 0]


async def test_a_stop_right_behind_a_long_order_is_not_lost(node: Node) -> None:
    launch = Launch(("sleep", "60"), {**ENV, **{f"LARGE_{number}": "x" * 100_000 for number in range(8)}}, "/")
    workload = await node.runtime.start("job-1", 1, (launch,), boot_ms() + LONG_MS, node.on_line)
    workload.stop(0)
    (end,) = await workload.ended()
    assert end.reason == "signalled"


async def test_a_shim_gone_without_a_word_is_an_exit_that_nobody_saw(node: Node) -> None:
    workload = await node.start("sleep 60 & sleep 60 & echo ready; wait", "sleep 60")
    pids = await workload.started()
    await node.heard[0].wait()
    first = psutil.Process(pids[0])
    below = [first, *first.children()]
    psutil.Process(first.ppid()).kill()
    assert await all_end(below)
    workload.stop(0)
    assert [end.reason for end in await workload.ended()] == ["gone", "signalled"]


async def test_a_handler_that_fails_ends_the_workload_and_says_so(tmp_path: Path) -> None:
    async def on_line(line: LogLine) -> None:
        raise ValueError(line.text)

    runtime = ProcessRuntime(ADDRESS, tmp_path)
    launch = Launch(("sh", "-c", "sleep 60 & setsid sleep 60 & sleep 0.3; echo x; wait"), ENV, "/")
    workload = await runtime.start("job-1", 1, (launch, launch), boot_ms() + LONG_MS, on_line)
    below = [child for pid in await workload.started() for child in psutil.Process(pid).children()]
    with pytest.raises(ExceptionGroup):
        await workload.ended()
    assert await all_end(below)


@pytest.mark.parametrize(
    "junk",
    [
        r"head -c 5000000 /dev/zero",
        r"echo junk",
        r"echo '{\"started\": 1}'; echo '{'",
        r"echo '{\"failed\": \"x\"}'; echo [",
    ],
)
async def test_a_workload_that_writes_to_its_shims_pipe_harms_only_itself(node: Node, junk: str) -> None:
    workload = await node.start(f"sleep 0.3; {{ {junk}; }} > /proc/$PPID/fd/1; sleep 60")
    pids = await workload.started()
    ends = await asyncio.wait_for(workload.ended(), 10)
    assert [end.reason for end in ends] == ["gone"]
    assert not any(map(psutil.pid_exists, pids))
    assert (await (await node.start("true", generation=2)).ended())[0].code == 0


async def test_a_state_folder_that_is_named_from_here_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = ProcessRuntime(ADDRESS, Path("state") / "of-another")
    launch = Launch(("true",), ENV, "/")
    workload = await runtime.start("job-2", 1, (launch,), boot_ms() + LONG_MS, node.on_line)
    assert [end.code for end in await workload.ended()] == [0]


async def test_a_lease_runs_one_workload_at_a_time(node: Node) -> None:
    workload = await node.start("sleep 60")
    with pytest.raises(LeaseBusy):
        await node.start("true", generation=2)
    workload.stop(0)
    await workload.ended()
    again = await node.start("true", generation=2)
    assert (await again.ended())[0].code == 0


async def test_an_older_generation_is_refused_for_ever(node: Node) -> None:
    await node.runtime.prepare("job-1", 3)
    reborn = ProcessRuntime(ADDRESS, node.state)
    assert (reborn.highest_generation("job-1"), reborn.highest_generation("job-2")) == (3, 0)
    for runtime in (node.runtime, reborn):
        with pytest.raises(StaleGeneration):
            await runtime.start("job-1", 2, (Launch(("true",), ENV, "/"),), boot_ms() + LONG_MS, node.on_line)
        with pytest.raises(StaleGeneration):
            await runtime.prepare("job-1", 2)
    assert (await (await node.start("true", generation=3)).ended())[0].code == 0


async def test_no_two_jobs_of_a_machine_get_the_same_port(tmp_path: Path) -> None:
    agents = [ProcessRuntime(ADDRESS, tmp_path / name) for name in "ab"]
    leases = [f"job-{number}" for number in range(20)]
    ports = [(await agent.prepare(lease, 1)).port for lease in leases for agent in agents]
    assert len(set(ports)) == 40
    assert (await agents[0].prepare("job-0", 1)).port == ports[0]
    assert (await agents[0].prepare("job-0", 2)).port not in ports
    for agent in agents:
        for lease in leases:
            agent.cancel(lease)


async def test_rank_zero_can_listen_on_a_port_that_stays_its_own_to_the_end(node: Node) -> None:
    prepared = await node.runtime.prepare("job-1", 1)
    with pytest.raises(OSError, match="in use"):
        listen(prepared.port)
    workload = await node.start("sleep 60")
    await workload.started()
    listen(prepared.port)
    with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match="in use"):
        other.bind(f"\0volt/port/{prepared.port}")
    newer = await node.runtime.prepare("job-1", 2)
    workload.stop(0)
    await workload.ended()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0volt/port/{prepared.port}")
    with pytest.raises(OSError, match="in use"):
        listen(newer.port)


async def test_a_cancelled_launch_gives_its_port_back(node: Node) -> None:
    prepared = await node.runtime.prepare("job-1", 1)
    node.runtime.cancel("job-1")
    node.runtime.cancel("job-1")
    listen(prepared.port)


async def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoFreePort, match=r"203\.0\.113\.1"):
        await ProcessRuntime("203.0.113.1", tmp_path).prepare("job-1", 1)


async def test_what_a_killed_agent_left_is_ended_before_its_deadline(tmp_path: Path) -> None:
    agent, left = start_agent(tmp_path, "setsid sleep 60 & sleep 60 & echo ready; wait")
    agent.kill()
    agent.communicate()
    reborn = ProcessRuntime(ADDRESS, tmp_path)
    assert all(alive(process) for process in left)
    assert await reborn.end_leftovers() == (("job-7", 4),)
    assert not any(alive(process) for process in left)
    assert reborn.highest_generation("job-7") == 4
    assert await reborn.end_leftovers() == ()


async def test_what_has_lost_both_its_agent_and_its_shim_is_ended_too(tmp_path: Path) -> None:
    agent, left = start_agent(tmp_path, "sleep 60 & echo ready; wait")
    agent.kill()
    agent.communicate()
    left[0].kill()
    assert await all_end(left[:2])
    assert alive(left[2]), "a helper outlives its shim"
    assert await ProcessRuntime(ADDRESS, tmp_path).end_leftovers() == (("job-7", 4),)
    assert not any(alive(process) for process in left)


async def test_a_pid_that_means_another_process_by_now_is_left_alone(tmp_path: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        started = processes.start_ticks(stranger.pid)
        assert started is not None
        for boot, start in ((processes.boot_id(), started - 1), ("another boot", started)):
            named = ((stranger.pid, start),)
            record = Record(boot, 1, named, named)
            (tmp_path / "workloads").mkdir(exist_ok=True)
            (tmp_path / "workloads" / "job-1.json").write_bytes(msgspec.json.encode(record))
            assert await ProcessRuntime(ADDRESS, tmp_path).end_leftovers() == (("job-1", 1),)
        assert alive(psutil.Process(stranger.pid))
    finally:
        stranger.kill()
        await stranger.wait()


AGENT = """
import asyncio, os, sys
from pathlib import Path
from volt_agent.process import ProcessRuntime
from volt_agent.runtimes import Launch
from volt_agent.kernel import boot_ms

async def main():
    ready = asyncio.Event()
    async def on_line(line):
        ready.set()
    runtime = ProcessRuntime("127.0.0.1", Path(sys.argv[1]))
    launch = Launch(("sh", "-c", sys.argv[2]), {"PATH": os.defpath}, "/")
    workload = await runtime.start("job-7", 4, (launch,), boot_ms() + 60_000, on_line)
    (pid,) = await workload.started()
    await ready.wait()
    print(pid, flush=True)
    await workload.ended()

asyncio.run(main())
"""


def start_agent(state: Path, script: str) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """An agent that runs a workload; return it and what it would leave: shim, process, helpers."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(state), script], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    workload = psutil.Process(int(agent.stdout.readline()))
    shim = workload.parent()
    assert shim is not None
    return agent, [shim, *shim.children(recursive=True)]


def listen(port: int) -> None:
    with socket.socket() as server:
        server.bind((ADDRESS, port))


async def all_end(processes: list[psutil.Process]) -> bool:
    """Whether all of them end, soon enough."""
    return await asyncio.to_thread(lambda: all(ends_within(process, SECONDS_MAX) for process in processes))
