"""How often, and how soon, a child that died is started again."""

from collections import deque

RESTARTS_MAX = 5
RESTART_WINDOW_SECONDS = 60.0
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 2.0


class RestartBudget:
    """A bounded number of restarts within a sliding window, each after a pause twice as long as the last."""

    def __init__(self, restarts_max: int, window_seconds: float) -> None:
        self._restarts_max = restarts_max
        self._window_seconds = window_seconds
        self._deaths_at: deque[float] = deque()

    def pause_seconds(self, died_at_seconds: float) -> float | None:
        """Count a death and return the pause before the restart, or None when no restart is left."""
        while self._deaths_at and self._deaths_at[0] <= died_at_seconds - self._window_seconds:
            self._deaths_at.popleft()
        if len(self._deaths_at) >= self._restarts_max:
            return None
        self._deaths_at.append(died_at_seconds)
        return min(BACKOFF_FIRST_SECONDS * float(1 << len(self._deaths_at) - 1), BACKOFF_SECONDS_MAX)
