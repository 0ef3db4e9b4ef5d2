"""What to run, and how to learn that it is ready: a server is asked, a service says so through a pipe.

A service writes the line `ready` to the file descriptor that VOLT_READY_FD names, once it does its work.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from volt.embedded.child import Child
from volt.embedded.errors import ChildNotReady
from volt.embedded.ports import LOOPBACK

READY_FD_VARIABLE = "VOLT_READY_FD"
READY_LINE = b"ready\n"
ASK_INTERVAL_SECONDS = 0.005
ASK_SECONDS_MAX = 1.0

Ask = Callable[[int], Awaitable[bool]]
"""Asks once whether the process with this id is ready."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command line and its environment; `ask` is None for a program that says by itself when it is ready."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    ask: Ask | None = None


async def start_until_ready(child: Child, ask: Ask | None, inherit: Sequence[int], seconds_max: float) -> None:
    """Start `child` with the descriptors `inherit` and return when it is ready.

    Raises ChildNotReady, or what `ask` raises; then no process is left.
    """
    problem = f"was not ready after {seconds_max} s"
    try:
        async with asyncio.timeout(seconds_max):
            if await (_start_and_listen(child, inherit) if ask is None else _start_and_ask(child, inherit, ask)):
                return
            problem = f"ended with exit code {await child.wait()} before it was ready"
    except TimeoutError:
        await child.kill()
    except BaseException:
        child.kill_now()
        raise
    raise ChildNotReady(child.name, problem, child.log_path, child.log_tail)


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection to a loopback port, closed at the end."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _start_and_ask(child: Child, inherit: Sequence[int], ask: Ask) -> bool:
    await child.start({}, inherit)
    while child.running:
        # It may not listen yet, or listen and not serve yet; a stranger on its port may say nothing at all.
        with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS_MAX):
                if await ask(child.pid):
                    return True
        await asyncio.sleep(ASK_INTERVAL_SECONDS)
    return False


async def _start_and_listen(child: Child, inherit: Sequence[int]) -> bool:
    read_fd, write_fd = os.pipe()
    pipe = os.fdopen(read_fd, "rb", buffering=0)
    try:
        await child.start({READY_FD_VARIABLE: str(write_fd)}, [*inherit, write_fd])
    except BaseException:
        pipe.close()
        raise
    finally:
        # Only the child may hold the writing end, so that the end of the child is the end of the pipe.
        os.close(write_fd)
    return await _read_line(pipe) == READY_LINE


async def _read_line(pipe: BinaryIO) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        return await reader.readexactly(len(READY_LINE))
    except asyncio.IncompleteReadError as ended_early:
        return ended_early.partial
    finally:
        transport.close()
