"""An event loop in which time is a number: it jumps to the next instant at which anything is due.

Whatever runs on it is repeated exactly by the same program with the same seed: asyncio takes ready callbacks in their
order, and nothing waits for the outside.
"""

import asyncio
import selectors
from typing import NoReturn


class Deadlock(Exception):
    """Everybody waits, and nothing is due at any time."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock begins at zero and is moved by its own waiting."""

    def __init__(self) -> None:
        self._now_seconds = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now_seconds

    def jump(self, seconds: float) -> None:
        self._now_seconds += seconds


class _Jumps(selectors.SelectSelector):
    """Instead of waiting for input, of which there is none, it moves the clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            _deadlock()
        if timeout > 0:
            self._loop.jump(timeout)
        return []


def _deadlock() -> NoReturn:
    raise Deadlock("everybody waits and nothing is due")


class LoopClock:
    """The runtime's clock on the running loop, which is simulated or not."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
