"""A child that is kept alive: started until ready, started again when it dies, given up when it keeps dying.

```
launch -> ready -> died -> (pause) -> launch      while restarts are left in the window
                     |-> suspended -> launch      auto_restart is False: only restart() starts it again
                     '-> ChildKeepsDying          when they are used up
```
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from volt.embedded.child import STOP_GRACE_SECONDS, Child
from volt.embedded.errors import ChildKeepsDying, ChildNotReady
from volt.embedded.program import Program, start_until_ready
from volt.embedded.restarts import RESTART_WINDOW_SECONDS, RESTARTS_MAX, RestartBudget

READY_SECONDS_MAX = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of keeping one child alive."""

    ready_seconds_max: float = READY_SECONDS_MAX
    stop_grace_seconds: float = STOP_GRACE_SECONDS
    restarts_max: int = RESTARTS_MAX
    restart_window_seconds: float = RESTART_WINDOW_SECONDS


DEFAULT_LIMITS = Limits()


class Service:
    """One program kept alive; `auto_restart` may be set to False to leave it down when it dies."""

    def __init__(self, program: Program, data_dir: Path, inherit: Sequence[int], limits: Limits) -> None:
        self.name = program.name
        self.auto_restart = True
        self._program = program
        self._inherit = inherit
        self._limits = limits
        self._budget = RestartBudget(limits.restarts_max, limits.restart_window_seconds)
        log_path = data_dir / "logs" / f"{program.name}.log"
        self._child = Child(program.name, program.argv, program.env, data_dir, log_path)
        self._turn = asyncio.Lock()
        self._launched = asyncio.Event()
        self._ready = asyncio.Event()
        self._kill_asked = False

    @property
    def pid(self) -> int:
        """The process id of the present process, or of the last one while it is down."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether a process is there, ready or not."""
        return self._child.running

    async def launch(self) -> None:
        """Start it and return when it is ready. Raises ChildNotReady."""
        self._kill_asked = False
        self._ready.clear()
        await start_until_ready(self._child, self._program.ask, self._inherit, self._limits.ready_seconds_max)
        self._launched.set()
        self._ready.set()

    async def until_ready(self) -> None:
        """Return when it is ready, after a death when it has been started again. Raises ChildNotReady."""
        seconds_max = self._limits.ready_seconds_max
        try:
            async with asyncio.timeout(seconds_max):
                await self._ready.wait()
        except TimeoutError:
            problem = f"was not ready after {seconds_max} s"
            raise ChildNotReady(self.name, problem, self._child.log_path, self._child.log_tail) from None

    async def kill(self) -> None:
        """SIGKILL it; returns when it is gone. It is started again at once, and uncounted: this was asked for."""
        self._kill_asked = True
        self._ready.clear()
        await self._child.kill()

    async def restart(self) -> None:
        """Stop it if it runs, start it, and return when it is ready. Raises ChildNotReady."""
        async with self._turn:
            await self.stop()
            await self.launch()

    async def stop(self) -> None:
        """SIGTERM it, after the grace SIGKILL it; returns when it is gone."""
        self._ready.clear()
        await self._child.stop(self._limits.stop_grace_seconds)

    def kill_now(self) -> None:
        """SIGKILL it if it runs, without waiting."""
        self._child.kill_now()

    async def keep_alive(self) -> None:
        """Start it again whenever it dies, until cancelled. Raises ChildKeepsDying, or what makes it useless."""
        while True:
            await self._launched.wait()
            await self._child.wait()
            async with self._turn:
                # restart() may have had the turn before, and have replaced the process that died.
                if not self._child.running:
                    await self._after_death()

    async def _after_death(self) -> None:
        self._ready.clear()
        self._launched.clear()
        while self.auto_restart and not self._child.running:
            await self._pause()
            try:
                await self.launch()
            except ChildNotReady as error:
                # It counts as one more death, so the budget bounds this loop.
                _log.warning("%s", error)

    async def _pause(self) -> None:
        if self._kill_asked:
            return
        exit_code = await self._child.wait()
        pause_seconds = self._budget.pause_seconds(asyncio.get_running_loop().time())
        if pause_seconds is None:
            limits = self._limits
            problem = (
                f"ended again (exit code {exit_code}) after {limits.restarts_max} restarts "
                f"within {limits.restart_window_seconds} s"
            )
            raise ChildKeepsDying(self.name, problem, self._child.log_path, self._child.log_tail)
        _log.warning("%s ended (exit code %d); starting it again in %.2f s", self.name, exit_code, pause_seconds)
        await asyncio.sleep(pause_seconds)
