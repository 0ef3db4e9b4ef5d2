"""The `process` runtime: a workload as plain processes of this machine, each under a shim (see shim.py).

    prepare ──▶ port reserved ──start──▶ shims ──▶ record on disk ──▶ orders ──▶ Workload: lines, exits
                     └──cancel                                            extend, stop ──┘

A record of the shims is on disk before any of them gets its order, and a shim that loses its agent before that starts
nothing: so an agent that starts finds in the records all that an earlier one can have left running.
"""

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from volt.contracts.timing import SERVED
from volt_agent import shim
from volt_agent.kernel import boot_us
from volt_agent.leftovers import Record, end_leftover
from volt_agent.processes import boot_id, end_adopted, end_all, identify, kill, session, started_with
from volt_agent.program import shim_command
from volt_agent.runtimes import (
    EXITS_OF_UNSTARTED,
    Generations,
    Launch,
    LaunchFailed,
    LeaseBusy,
    LogLine,
    OnLine,
    Prepared,
    RankExit,
    ReservedPort,
    read_state,
    write_state,
)

COMMANDS_UNREAD_BYTES_MAX = 4_096
"""A shim with so many commands unread stands still; an extension would not reach it in time."""
LINES_PER_TURN_MAX = 64
"""Lines of one process handed over before the other tasks of the agent get their turn."""
MARK = "VOLT_MANIFEST"
"""The variable of a workload's processes that tells whose they are when nothing else does."""

_log = structlog.get_logger("volt.process")


class ProcessRuntime:
    """Runs the workloads of one node as processes. Its state folder belongs to one agent at a time."""

    def __init__(
        self,
        address: str,
        state: Path,
        own: Callable[[], Collection[int]] | None = None,
        frozen_ms_max: int = SERVED.frozen_ms_max,
    ) -> None:
        """`own`: the children of this process that are nobody's workload; to be given if it is a subreaper."""
        # Shims are started from another folder than this process: nothing of theirs may be relative.
        state = state.absolute()
        state.mkdir(parents=True, exist_ok=True)
        self.jobs = state / "jobs"
        """The folder of each job that runs here. What was started for one is known by `MARK`, a path in it."""
        self._own, self._frozen_ms_max = own, frozen_ms_max
        self._shims: set[int] = set()
        self._spawning = asyncio.Lock()
        self._address = address
        self._records = state / "workloads"
        self._generations = Generations(state / "generations.json")
        self._ports: dict[str, ReservedPort] = {}
        self._busy: set[str] = set()
        self._shim = shim_command(state / "program")

    async def end_leftovers(self) -> tuple[tuple[str, int], ...]:
        """End what an earlier agent left running; return its (lease, generation) pairs, whose ends nobody saw.

        To be called before anything is started. Raises LeftoverAlive, StateUnreadable.
        """
        found: list[tuple[str, int]] = []
        for path in sorted(self._records.glob("*.json")):
            record = read_state(path, Record)
            assert record is not None, f"{path} was there a moment ago"
            await end_leftover(path.stem, record)
            path.unlink()
            found.append((path.stem, record.generation))
        await end_all(partial(started_with, MARK, f"{self.jobs}/"))
        return tuple(found)

    def highest_generation(self, lease: str) -> int:
        """The highest generation of a lease that this node has seen, 0 if none; it survives the agent."""
        return self._generations.highest(lease)

    async def prepare(self, lease: str, generation: int) -> Prepared:
        """Reserve a port on the node's address; the same one again for the same generation.

        Raises StaleGeneration, NoFreePort.
        """
        await self._generations.see(lease, generation)
        port = self._ports.get(lease)
        if port is None or port.generation != generation:
            self.cancel(lease)
            port = self._ports[lease] = ReservedPort.reserve(self._address, generation)
        return Prepared(self._address, port.number)

    def cancel(self, lease: str) -> None:
        """Give up what was prepared and not started."""
        port = self._ports.pop(lease, None)
        if port is not None:
            port.give_up()

    async def start(
        self, lease: str, generation: int, launches: tuple[Launch, ...], deadline_ms: int, on_line: OnLine
    ) -> "Workload":
        """Start one process for each launch, in the order of local ranks.

        `deadline_ms` is an instant on the boot-time clock (CLOCK_BOOTTIME): past it, unless it was extended, the
        processes are frozen, and killed when they have been so for too long. `on_line` is awaited for every line; while
        it waits, so does the process that wrote.
        Raises StaleGeneration, LeaseBusy, LaunchFailed.
        """
        orders = [_order(rank, launch, deadline_ms, self._frozen_ms_max) for rank, launch in enumerate(launches)]
        await self._generations.see(lease, generation)
        if lease in self._busy:
            raise LeaseBusy(lease)
        self._busy.add(lease)
        path, port = self._records / f"{lease}.json", self._ports.pop(lease, None)
        shims: list[Process] = []

        def end() -> None:
            path.unlink(missing_ok=True)
            if port is not None:
                port.give_up()
            self._busy.discard(lease)
            self._shims.difference_update(one.pid for one in shims)

        try:
            async with self._spawning:
                shims += await self._spawn(launches)
                self._shims.update(one.pid for one in shims)
            record = Record(boot_id(), generation, identify(one.pid for one in shims))
            await asyncio.to_thread(write_state, path, record)
        except BaseException:
            _end_shims(shims)
            end()
            raise
        if port is not None:
            port.make_way()
        for one, order in zip(shims, orders, strict=True):
            _tell(one, order)
        return Workload(launches, shims, on_line, record, path, end, self._end_orphans)

    async def _end_orphans(self) -> None:
        """Ends what a shim had adopted, once it is gone. None of it could be told from a child that is just begun."""
        if self._own is not None:
            async with self._spawning:
                await end_adopted({*self._own(), *self._shims})

    async def _spawn(self, launches: tuple[Launch, ...]) -> list[Process]:
        """Start all shims at once, each waiting for its order. Raises LaunchFailed."""
        attempts = (
            asyncio.create_subprocess_exec(
                *self._shim,
                stdin=PIPE,
                stdout=PIPE,
                limit=shim.MESSAGE_BYTES_MAX,
                env={},
                cwd="/",
                start_new_session=True,
            )
            for _ in launches
        )
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                _end_shims(one for one in outcomes if isinstance(one, Process))
                raise LaunchFailed(rank, "spawn_failed", launches[rank], str(outcome)) from outcome
        return [one for one in outcomes if isinstance(one, Process)]


class Workload:
    """The processes of one lease's generation, from their start to their end."""

    def __init__(
        self,
        launches: tuple[Launch, ...],
        shims: list[Process],
        on_line: OnLine,
        record: "Record",
        path: Path,
        end: Callable[[], None],
        end_orphans: Callable[[], Awaitable[None]],
    ) -> None:
        self._launches = launches
        self._shims = shims
        self._on_line = on_line
        self._end_orphans = end_orphans
        self._pids: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in shims]
        self._ends: list[tuple[int, RankExit]] = []
        self._failing, self._freezing = asyncio.Event(), asyncio.Event()
        self._started = asyncio.create_task(self._see_started(record, path))
        self._ended = asyncio.create_task(self._see_ended(end))

    async def started(self) -> tuple[int, ...]:
        """Wait until every process runs its command; return their pids.

        Raises LaunchFailed for the first that does not; then all the others are being ended.
        """
        return await asyncio.shield(self._started)

    async def ended(self) -> tuple[RankExit, ...]:
        """Wait for the end of every process, its descendants gone and each of its lines handed over.

        The ends are in the order of the instants at which they came, so that the first that failed can be told, even
        by an agent that heard of several at once.
        """
        return await asyncio.shield(self._ended)

    async def failed(self) -> bool:
        """Wait until a process has ended otherwise than by exiting with 0; False if all of them did just that."""
        failing = asyncio.create_task(self._failing.wait())
        try:
            await asyncio.wait({failing, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failing.cancel()
        return self._failing.is_set()

    async def froze(self) -> None:
        """Wait until a process has been frozen since the last time that this was waited for."""
        await self._freezing.wait()
        self._freezing.clear()

    def thaw(self, deadline_ms: int) -> None:
        """Let what is frozen go on until an instant of the boot-time clock."""
        self.extend(deadline_ms)
        for one in self._shims:
            _tell(one, msgspec.json.encode({"thaw_to_ms": deadline_ms}))

    def extend(self, deadline_ms: int) -> None:
        """Let the workload run until an instant of the boot-time clock. An earlier one than before changes nothing, nor
        does one that comes after the deadline."""
        for one in self._shims:
            if _unread_bytes(one) <= COMMANDS_UNREAD_BYTES_MAX:
                _tell(one, msgspec.json.encode({"deadline_ms": deadline_ms}))

    def stop(self, grace_ms: int) -> None:
        """Send SIGTERM to every process group and, after the grace, SIGKILL to what is left. Wait with ended()."""
        for one in self._shims:
            _tell(one, msgspec.json.encode({"signal": "TERM", "grace_ms": grace_ms}))

    async def _see_started(self, record: "Record", path: Path) -> tuple[int, ...]:
        outcomes = await asyncio.gather(*self._pids, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                self.stop(0)
                raise outcome
        pids = tuple(pid for pid in outcomes if isinstance(pid, int))
        await asyncio.to_thread(write_state, path, msgspec.structs.replace(record, workload=identify(pids)))
        return pids

    async def _see_ended(self, end: Callable[[], None]) -> tuple[RankExit, ...]:
        try:
            async with asyncio.TaskGroup() as group:
                for rank in range(len(self._shims)):
                    group.create_task(self._follow_to_the_end(rank))
        finally:
            # The record of a start must not be written after it was removed.
            await asyncio.wait([self._started])
            await asyncio.gather(*(one.wait() for one in self._shims))
            end()
        return tuple(end for _, end in sorted(self._ends, key=itemgetter(0)))

    async def _follow_to_the_end(self, rank: int) -> None:
        ended_us, end = await self._follow(rank)
        self._ends.append((ended_us, end))
        if end.code != 0:
            self._failing.set()

    async def _follow(self, rank: int) -> tuple[int, RankExit]:
        """Hand over all that a shim says, to its end; return when its process ended, as far as it is known, and how."""
        one, started = self._shims[rank], self._pids[rank]
        end = RankExit(rank, None, None, False, "gone")
        lines, ended_us = 0, None  # Of an end that the shim does not tell of, the instant of hearing counts.
        try:
            async for said in _heard(one):
                match said:
                    case _Said(line=str(text), stream=stream):
                        await self._on_line(LogLine(rank, stream, text))
                        lines += 1
                        if lines % LINES_PER_TURN_MAX == 0:
                            await asyncio.sleep(0)
                    case _Said(frozen=True):
                        self._freezing.set()
                    case _Said(started=int(pid)) if not started.done():
                        started.set_result(pid)
                    case _Said(failed=str(kind), detail=detail) if not started.done():
                        failure = LaunchFailed(rank, kind, self._launches[rank], detail)
                        await self._on_line(LogLine(rank, "err", str(failure)))
                        started.set_exception(failure)
                        end = RankExit(rank, EXITS_OF_UNSTARTED.get(kind), None, False, "not_started")
                        ended_us = boot_us()
                    case _Said(reason=reason, exit=code, signal=number, oom=oom) if reason is not None:
                        end, ended_us = RankExit(rank, code, number, oom, reason), said.ended_us
        except BaseException:
            _end_shims([one])  # Nobody listens to it any more.
            raise
        finally:
            if not started.done():
                why = "its shim ended without a word"
                started.set_exception(LaunchFailed(rank, "shim_gone", self._launches[rank], why))
        if end.reason == "gone":
            if started.exception() is None:
                kill(session(started.result()))
            await one.wait()  # Only then has the agent adopted what was the shim's.
            await self._end_orphans()
        return boot_us() if ended_us is None else ended_us, end


class _Said(msgspec.Struct, frozen=True):
    """A message of a shim; which of `line`, `started`, `frozen`, `failed` and `reason` it has says what it is."""

    line: str | None = None
    stream: Literal["out", "err"] = "out"
    started: int | None = None
    frozen: bool = False
    failed: str | None = None
    detail: str = ""
    exit: int | None = None
    signal: int | None = None
    oom: bool = False
    reason: Literal["exited", "deadline", "signalled"] | None = None
    ended_us: int | None = None


async def _heard(one: Process) -> AsyncIterator[_Said]:
    """What a shim says, to its end. A workload can write to the shim's pipe too: what is no message ends both."""
    assert one.stdout is not None
    try:
        async for message in one.stdout:
            yield msgspec.json.decode(message, type=_Said)
    except ValueError as error:  # What cannot be decoded is one, and so is a line that is too long.
        _log.warning("shim_unintelligible", pid=one.pid, error=str(error))
        _end_shims([one])


def _order(rank: int, launch: Launch, deadline_ms: int, frozen_ms_max: int) -> bytes:
    """The launch order for a shim. Raises LaunchFailed."""
    order = {"argv": launch.argv, "env": launch.env, "cwd": launch.cwd}
    encoded = msgspec.json.encode({**order, "deadline_ms": deadline_ms, "frozen_ms_max": frozen_ms_max})
    if len(encoded) >= shim.ORDER_BYTES_MAX:
        why = f"arguments and environment take {len(encoded)} bytes of {shim.ORDER_BYTES_MAX}"
        raise LaunchFailed(rank, "order_too_large", launch, why)
    return encoded


def _tell(one: Process, command: bytes) -> None:
    """Write a command to a shim, unless it has ended."""
    assert one.stdin is not None
    if not one.stdin.transport.is_closing():
        one.stdin.write(command + b"\n")


def _unread_bytes(one: Process) -> int:
    assert one.stdin is not None
    return one.stdin.transport.get_write_buffer_size()


def _end_shims(shims: Iterable[Process]) -> None:
    """Have shims end their workloads at once, and themselves, even if nobody reads what they still say."""
    for one in shims:
        assert one.stdin is not None
        one.stdin.close()
        # Process.terminate() would reap one that has just ended, and asyncio would miss its end.
        kill([one.pid] if one.returncode is None else [], signal.SIGTERM)
