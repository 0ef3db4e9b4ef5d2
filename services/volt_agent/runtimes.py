"""What every runtime of the agent shares: launches in, lines and exits out, and a memory that outlives the agent.

WorkloadError
├── LaunchFailed      a process of a workload could not be started
├── StaleGeneration   a newer generation of the lease has been seen
├── LeaseBusy         the lease's workload has not ended yet
├── NoFreePort        no port could be reserved on the node's address
├── LeftoverAlive     what an earlier agent started cannot be ended
└── StateUnreadable   a file of the state folder is not what this program wrote
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

PORT_ATTEMPTS_MAX = 16
GENERATIONS_KEPT_MAX = 1_000
"""Leases whose highest generation is remembered, the latest ones; a node holds a few at a time."""


@dataclass(frozen=True)
class Launch:
    """One process of a workload: its whole environment, and nothing is added to it."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str


@dataclass(frozen=True)
class Prepared:
    """Where rank 0 may listen: the port is reserved until the workload ends or is cancelled."""

    address: str
    port: int


@dataclass(frozen=True)
class LogLine:
    """A line of output without its end, in the order in which the process wrote it to that stream."""

    local_rank: int
    stream: Literal["out", "err"]
    text: str


OnLine = Callable[[LogLine], Awaitable[None]]

EndReason = Literal["exited", "deadline", "signalled", "not_started", "gone"]


@dataclass(frozen=True)
class RankExit:
    """How a process ended: its exit code, or the signal that killed it, or neither when nobody saw its end."""

    local_rank: int
    code: int | None
    signal: int | None
    oom: bool
    reason: EndReason


EXITS_OF_UNSTARTED = {"command_not_found": 127, "not_executable": 126}
"""What a shell exits with when its command cannot be run: it is the command's fault, not the node's."""


class WorkloadError(Exception):
    """Anything that keeps a workload from running."""


class LaunchFailed(WorkloadError):
    """A process could not be started. `kind` is one of command_not_found, not_executable, cwd_missing,
    deadline_passed, order_too_large, spawn_failed and shim_gone."""

    def __init__(self, local_rank: int, kind: str, launch: Launch, detail: str) -> None:
        super().__init__(f"local rank {local_rank} did not start, {kind}: {launch.argv[0]} in {launch.cwd}: {detail}")
        self.local_rank, self.kind = local_rank, kind


class StaleGeneration(WorkloadError):
    def __init__(self, lease: str, generation: int, highest: int) -> None:
        super().__init__(f"generation {generation} of lease {lease} is older than {highest}, which this node has seen")
        self.lease, self.generation, self.highest = lease, generation, highest


class LeaseBusy(WorkloadError):
    def __init__(self, lease: str) -> None:
        super().__init__(f"the workload of lease {lease} has not ended; end it before starting another")
        self.lease = lease


class NoFreePort(WorkloadError):
    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"no port can be reserved on {address}: {why}")


class LeftoverAlive(WorkloadError):
    def __init__(self, lease: str, pids: list[int]) -> None:
        super().__init__(f"processes {pids} of lease {lease}, left by an earlier agent, do not end when killed")
        self.lease, self.pids = lease, pids


class StateUnreadable(WorkloadError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is unreadable: {why}; if no workload runs on this node, remove it")


class Generations:
    """The highest generation of each lease that this node has seen. On disk before it counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._highest = read_state(path, dict[str, int]) or {}
        self._writing = asyncio.Lock()

    def highest(self, lease: str) -> int:
        """The highest generation seen of a lease, 0 if none."""
        return self._highest.get(lease, 0)

    async def see(self, lease: str, generation: int) -> None:
        """Remember a generation durably. Raises StaleGeneration when a higher one was seen."""
        async with self._writing:
            if generation < self.highest(lease):
                raise StaleGeneration(lease, generation, self.highest(lease))
            if generation == self.highest(lease):
                return
            others = [(other, seen) for other, seen in self._highest.items() if other != lease]
            highest = dict([*others, (lease, generation)][-GENERATIONS_KEPT_MAX:])
            await asyncio.to_thread(write_state, self._path, highest)
            self._highest = highest


@dataclass
class ReservedPort:
    """A port that is nobody else's: bound until rank 0 is about to, and claimed by name until the workload ends.

    The claim keeps out the other agents of this machine while rank 0 starts: it is a socket in the abstract
    namespace, which like the ports belongs to one network namespace, and vanishes with the agent.
    """

    number: int
    generation: int
    holder: socket.socket
    claim: socket.socket

    @classmethod
    def reserve(cls, address: str, generation: int) -> "ReservedPort":
        why = ""
        for _ in range(PORT_ATTEMPTS_MAX):
            holder = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            claim = socket.socket(socket.AF_UNIX)
            try:
                holder.bind((address, 0))
                number: int = holder.getsockname()[1]
                claim.bind(f"\0volt/port/{number}")
            except OSError as error:
                holder.close()
                claim.close()
                why = str(error)
            else:
                return cls(number, generation, holder, claim)
        raise NoFreePort(address, why)

    def make_way(self) -> None:
        """Let rank 0 listen, and no other job of this machine."""
        self.holder.close()

    def give_up(self) -> None:
        self.holder.close()
        self.claim.close()


def read_state(path: Path, kind: type[T]) -> T | None:
    """Read a file of the state folder, None if there is none. Raises StateUnreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StateUnreadable(path, str(error)) from error


def write_state(path: Path, value: object) -> None:
    """Replace a file of the state folder, whole and durably: it survives a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
