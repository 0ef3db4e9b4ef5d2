"""An event loop in which time is a number: it jumps to the next instant at which anything is due.

Whatever runs on it is repeated exactly by the same program with the same seed: asyncio takes ready callbacks in their
order, and nothing waits for the outside.
"""

import asyncio
import selectors
from typing import NoReturn

TURNS_PER_INSTANT_MAX = 200_000
"""How many turns of the loop may pass without time going on."""


class Deadlock(Exception):
    """Everybody waits and nothing is due; or there is no end of what is due at one instant."""


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
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Raises Deadlock."""
        if timeout is None:
            _deadlock("everybody waits and nothing is due")
        if timeout > 0:
            self._loop.jump(timeout)
            self._turns = 0
        self._turns += 1
        if self._turns > TURNS_PER_INSTANT_MAX:
            _deadlock(f"there is no end of what happens at {self._loop.time():.3f} s")
        return []


def _deadlock(why: str) -> NoReturn:
    raise Deadlock(why)


class LoopClock:
    """The runtime's clock on the running loop, which is simulated or not."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
