"""The processes of this machine as the kernel shows them: whose they are, and how those that nobody minds are ended.

A workload's processes are below their shim, which is the subreaper of all of them. When a shim is killed, what it had
adopted goes to the nearest subreaper above it, which is the agent; when that is killed too, only the environment that
they were started with tells whose they are.
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
END_MS_MAX = 3_000
END_POLL_MS = 10


def become_subreaper() -> None:
    """Orphans below this process become its own children (see prctl(2))."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


async def end_adopted(known: Collection[int]) -> None:
    """Kills and reaps every child of this process that it did not start itself, with all that is below it."""

    def adopted() -> list[int]:
        below = _children()
        found = [pid for pid in below.get(os.getpid(), []) if pid not in known]
        for pid in found:  # It grows as it is walked.
            found += below.get(pid, [])
        for pid in found:
            with suppress(ChildProcessError):  # Not a child, but the child of one.
                os.waitpid(pid, os.WNOHANG)
        return [pid for pid in found if stat(pid)]

    await end_all(adopted)


def started_with(name: str, prefix: str) -> list[int]:
    """The processes in whose first environment this variable has a value that begins so."""
    mark = f"{name}={prefix}".encode()
    found = []
    for pid in _pids():
        with suppress(OSError):  # It has just ended, or is another user's.
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(one.startswith(mark) for one in variables):
                found.append(pid)
    return found


async def end_all(pids: Callable[[], list[int]]) -> None:
    """Kills whatever is found, again and again until nothing is, or for `END_MS_MAX`."""
    for _ in range(END_MS_MAX // END_POLL_MS):
        found = pids()
        if not found:
            return
        kill(found)
        await asyncio.sleep(END_POLL_MS / 1000)


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # It has just ended by itself.
            os.kill(pid, number)


def identify(pids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Pids with their starts, without those that have ended already."""
    starts = [(pid, start_ticks(pid)) for pid in pids]
    return tuple((pid, start) for pid, start in starts if start is not None)


def start_ticks(pid: int) -> int | None:
    fields = stat(pid)
    return int(fields[19]) if fields else None


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    return [pid for pid in _pids() if (fields := stat(pid)) and int(fields[3]) == leader]


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (see proc(5)); none if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if fields[0] in "ZX" else fields  # A zombie has ended and waits for its parent to see it.


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _children() -> dict[int, list[int]]:
    """Every process by its parent; those that have ended and are not reaped too."""
    found: dict[int, list[int]] = {}
    for pid in _pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            found.setdefault(int(fields[1]), []).append(pid)
    return found
