"""What an earlier agent left running: the record of each workload's processes, and how they are ended by it."""

import asyncio
import signal
from collections.abc import Callable

import msgspec

from volt_agent.processes import boot_id, kill, session, start_ticks
from volt_agent.runtimes import LeftoverAlive

LEFTOVER_MS_MAX = 3_000
LEFTOVER_POLL_MS = 10


class Record(msgspec.Struct, frozen=True):
    """The processes of a workload, each by its pid and its start in clock ticks since `boot`: together unique."""

    boot: str
    generation: int
    shims: tuple[tuple[int, int], ...]
    workload: tuple[tuple[int, int], ...] = ()


async def end_leftover(lease: str, record: Record) -> None:
    """End shims in order, then whatever has lost its shim. Raises LeftoverAlive."""
    if record.boot != boot_id():
        return  # No process outlives its machine, and the numbers mean others now.

    def shims() -> list[int]:
        return [pid for pid, start in record.shims if start_ticks(pid) == start]

    def all_left() -> list[int]:
        # The kernel gives a pid to no other while it still names a session.
        leaders = [pid for pid, start in record.workload if start_ticks(pid) in (start, None)]
        return shims() + [pid for leader in leaders for pid in session(leader)]

    kill(shims(), signal.SIGTERM)
    await _until_none(shims)
    kill(all_left())
    await _until_none(all_left)
    if all_left():
        raise LeftoverAlive(lease, all_left())


async def _until_none(pids: Callable[[], list[int]]) -> None:
    for _ in range(LEFTOVER_MS_MAX // LEFTOVER_POLL_MS):
        if not pids():
            return
        await asyncio.sleep(LEFTOVER_POLL_MS / 1000)
