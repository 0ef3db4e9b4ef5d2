"""One child process that does not outlive its supervisor.

It runs in a session and process group of its own, so a Ctrl-C in the terminal reaches the supervisor only,
which then stops its children in order, and whatever the child started can be ended with it.

On Linux the kernel sends it SIGKILL when the supervisor is gone, however that ended (PR_SET_PDEATHSIG).
The request has to be made by the child itself, between fork and exec; `preexec_fn` is the place for it. What
runs there is one C call through a library that was loaded beforehand and a comparison: no import, no lock, no
logging, which is what could hang after a fork. A launcher program would cost an interpreter start per child.
The kernel watches the *thread* that forked: start children from a thread that lives as long as they should.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from volt.embedded.files import tail

LOG_BYTES_MAX = 16 * 1024 * 1024
STOP_GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


class Child:
    """A program that can be started, stopped and killed, one process at a time; its output goes to `log_path`."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._argv = argv
        self._env = env
        self._cwd = cwd
        self._log_from_byte = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The id of the present process, or of the last one when it has ended."""
        return self._started.pid

    @property
    def running(self) -> bool:
        """Whether a process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def log_tail(self) -> str:
        """The last lines that the present or last process wrote."""
        return tail(self.log_path, self._log_from_byte)

    async def start(self, env: Mapping[str, str], inherit: Sequence[int]) -> None:
        """Start the program with `env` added to its environment and the descriptors `inherit` open in it."""
        assert not self.running, f"{self.name} runs already"
        with _open_log(self.log_path) as log:
            self._log_from_byte = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                env={**self._env, **env},
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherit,
                preexec_fn=_die_with_this_process(),
            )

    async def wait(self) -> int:
        """The exit code of the present process, once it has ended; minus the signal that ended it."""
        return await self._started.wait()

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Ask the program to end with SIGTERM; after `grace_seconds` end it, and its group, with SIGKILL."""
        if not self.running:
            return
        try:
            # Not terminate(), which polls, and so can take the exit code away from asyncio's own watcher.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_seconds)
        finally:
            # Also when the program has ended by itself: its own children may be left. Also when this
            # coroutine is cancelled: nobody would come back to end the program.
            self._kill_group()
        await self.wait()

    async def kill(self) -> None:
        """End the program and its process group with SIGKILL; returns when it is gone."""
        self.kill_now()
        await self.wait()

    def kill_now(self) -> None:
        """Send SIGKILL to a running program and its process group, without waiting for its end."""
        if self.running:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def _started(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process


def _open_log(path: Path) -> BinaryIO:
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(f"{path.suffix}.1"))
    log = path.open("ab")
    log.seek(0, os.SEEK_END)
    return log


if sys.platform == "linux":
    _libc = ctypes.CDLL(None)

    def _die_with_this_process() -> Callable[[], None] | None:
        return partial(_die_with, os.getpid())

    def _die_with(parent_pid: int) -> None:
        failed = _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0
        # A parent that was gone before the request was made sends nothing any more.
        if failed or os.getppid() != parent_pid:
            os._exit(127)

else:

    def _die_with_this_process() -> Callable[[], None] | None:
        return None
