"""What is tried again, how often, and how long apart.

Only what may work when it is tried again: a gateway that cannot be reached, or says that a part of it cannot answer
now. Every call can be sent again, so that a retry never makes a second thing.
"""

import random
from collections.abc import Callable

from volt.contracts.errors import Unavailable

OnBreak = Callable[[Unavailable], None]

CALL_ATTEMPTS_MAX = 8
"""With the pauses between them some five seconds, in which a gateway may restart or build its views again."""
STREAM_ATTEMPTS_MAX = 60
"""Some minutes: who follows a job for a day shall not lose it to an upgrade."""
STREAM_ATTEMPTS_UNTOLD = 4
"""Breaks of about a second are nobody's business; of longer ones who follows a stream is told once."""
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0


class Attempts:
    """Counts the attempts at one call."""

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._failed = 0

    def pause_seconds(self, error: Unavailable) -> float:
        """How long to wait before the next attempt. Raises `error` when there shall be none."""
        self._failed += 1
        if self._failed >= self._attempts_max:
            raise error
        longest = min(PAUSE_SECONDS_MIN * float(1 << (self._failed - 1)), PAUSE_SECONDS_MAX)
        # Clients that were cut off together shall not all come back together.
        return longest * random.uniform(0.5, 1.0)


class StreamAttempts(Attempts):
    """Counts the attempts at a stream since it last got on. One that never began is given up as soon as a call is."""

    def __init__(self, on_break: OnBreak) -> None:
        super().__init__(CALL_ATTEMPTS_MAX)
        self._on_break = on_break

    def began(self) -> None:
        """It is there: from now on it is worth more patience."""
        self._attempts_max = STREAM_ATTEMPTS_MAX

    def succeeded(self) -> None:
        """It got on; what failed before does not count any more."""
        self._failed = 0

    def pause_seconds(self, error: Unavailable) -> float:
        pause_seconds = super().pause_seconds(error)
        if self._failed == STREAM_ATTEMPTS_UNTOLD and self._attempts_max == STREAM_ATTEMPTS_MAX:
            self._on_break(error)
        return pause_seconds


def nobody_is_told(_error: Unavailable) -> None:
    """For who asked for nothing else: the stream goes on, or its error is raised in the end."""
