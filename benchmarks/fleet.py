"""A large fleet on a real bus: nodes lost at once, and none lost that is not, with every core busy.

The control plane is the real one, as processes; the agents are simulated, a few hundred in each of four processes.
Every node that is lost holds the lease of a job of its own, and its replacement counts as leased at `MemberJoined`.
"""

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from benchmarks.figures import spread
from benchmarks.market import Market, Seen, market
from volt.contracts.clusters import ClusterReady, MemberJoined
from volt.contracts.fleet import LossesHeld, PaceSet
from volt.contracts.jobs import RequestJob, Workload
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeLost, NodeUnknown
from volt.contracts.timing import EMBEDDED
from volt.embedded.accounts import new_api_key, open_account

PROCESSES = 4
LOSSES = (1, 10, 100)
CAP_MICROUSD = 20_000
BURNERS_PER_CORE = 2
STEADY_SECONDS = 10.0
WAIT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.1
BEATS_EACH = 120
"""So often a small fleet that is served beats in ten minutes; busy cores make it a few fewer."""


async def measure(nodes: int) -> dict[str, object]:
    """The figures, times in milliseconds."""
    async with market(()) as run, _agents(run, nodes) as processes:
        await _until(lambda: len(_named(run, NodeAlive)) >= nodes)
        await asyncio.sleep(STEADY_SECONDS)
        leased = await _lease(run, sum(LOSSES))
        figures: dict[str, object] = {"nodes": nodes, "beat_ms": _pace(run)[0], "lost_after_ms": _pace(run)[1]}
        for count in LOSSES:
            victims = [leased.pop(job) for job in list(islice(leased, count))]
            figures[f"{count}_lost"] = await _lose(run, processes, victims)
        figures["under_load"] = await _under_load(run, processes)
        figures["losses_held"] = len(_events(run, LossesHeld))
    return figures


@asynccontextmanager
async def _agents(run: Market, nodes: int) -> AsyncIterator[list[Process]]:
    processes = []
    try:
        for number in range(PROCESSES):
            account = f"farm{number}"
            await open_account(run.bus, account, new_api_key())
            arguments = (run.control_plane.nats_url, account, str(nodes // PROCESSES), "embedded")
            program = (sys.executable, "-m", "benchmarks.agents", *arguments)
            processes.append(await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE))
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _lease(run: Market, jobs: int) -> dict[str, str]:
    """The node of each of so many jobs of one GPU, once all of them run."""
    for number in range(jobs):
        request = RequestJob(
            account=run.buyer,
            request_id=f"fleet-{number}",
            gpu="h100-80gb",
            count=1,
            nodes=1,
            workload=Workload(kind="ddp", command=("sleep", "600"), processes_per_node=1),
            max_price_microusd_per_gpu_hour=CAP_MICROUSD,
        )
        await run.send(request)
    await _until(lambda: len(_events(run, ClusterReady)) >= jobs)
    cleared = [seen.entry.event for seen in _events(run, MarketCleared)]
    gangs = (gang for event in cleared if isinstance(event, MarketCleared) for gang in event.gangs)
    return {gang.job: gang.grants[0].node for gang in gangs}


async def _lose(run: Market, processes: Sequence[Process], victims: Sequence[str]) -> dict[str, object]:
    """Silences these nodes at once; how long until each is lost, and until all are replaced."""
    before = len(run.observer.all)
    silenced_ns = time.monotonic_ns()
    for process in processes:
        _tell(process, f"die {' '.join(victims)}")
    await _until(lambda: len(_named(run, NodeLost, before)) >= len(victims))
    await _until(lambda: len(_events(run, MemberJoined, before)) >= len(victims))
    lost = _named(run, NodeLost, before)
    joined_ns = [seen.at_ns for seen in _events(run, MemberJoined, before)]
    return {
        "detected_ms": spread([(lost[node] - silenced_ns) / 1e6 for node in victims]),
        "all_replacements_leased_ms": round((max(joined_ns) - silenced_ns) / 1e6, 3),
        "leased_after_last_loss_ms": round((max(joined_ns) - max(lost.values())) / 1e6, 3),
        "false_positives": len(set(lost) - set(victims)),
    }


async def _under_load(run: Market, processes: Sequence[Process]) -> dict[str, object]:
    """Every core is busy while each node that is left beats as often as in ten minutes; nobody may be lost."""
    before, begun = len(run.observer.all), await _beats(processes)
    seconds = BEATS_EACH * _pace(run)[0] / 1000
    burners = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        for _ in range(BURNERS_PER_CORE * (os.cpu_count() or 1))
    ]
    try:
        await asyncio.sleep(seconds)
    finally:
        for burner in burners:
            burner.kill()
            await burner.wait()
    return {
        "seconds": seconds,
        "busy_processes": len(burners),
        "cores": os.cpu_count(),
        "beats": await _beats(processes) - begun,
        "unknown": len(_events(run, NodeUnknown, before)),
        "false_positives": len(_events(run, NodeLost, before)),
    }


async def _beats(processes: Sequence[Process]) -> int:
    total = 0
    for process in processes:
        _tell(process, "count")
        assert process.stdout is not None
        total += int(await process.stdout.readline())
    return total


def _tell(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())


def _pace(run: Market) -> tuple[int, int]:
    """How often agents beat by now, and their L."""
    told = [seen.entry.event for seen in _events(run, PaceSet)]
    pace = EMBEDDED.at_level(told[-1].level) if told and isinstance(told[-1], PaceSet) else EMBEDDED
    return pace.beat_ms, pace.lost_after_ms


def _events(run: Market, kind: type[Event], after: int = 0) -> list[Seen]:
    return [seen for seen in run.observer.all[after:] if isinstance(seen.entry.event, kind)]


def _named(run: Market, kind: type[NodeAlive] | type[NodeLost], after: int = 0) -> dict[str, int]:
    """The nodes of which that is said, and when the observer had it, in nanoseconds."""
    named: dict[str, int] = {}
    for seen in _events(run, kind, after):
        if isinstance(seen.entry.event, NodeAlive | NodeLost):
            named.setdefault(seen.entry.event.node, seen.at_ns)
    return named


async def _until(is_so: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not is_so():  # noqa: ASYNC110 -- the observer's log is looked at, not waited for
            await asyncio.sleep(POLL_SECONDS)
