"""An error that happens elsewhere ends a block: what `asyncio.timeout` does for time."""

import asyncio


class FailureScope:
    """Made in the task whose block it guards; `fail` cancels that block, `leave` raises the error from it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a scope needs a task whose block it can cancel"
        self._task = task
        self._cancelling_before = task.cancelling()
        self._failure: BaseException | None = None
        self._left = False

    def fail(self, failure: BaseException) -> None:
        """End the block with `failure`. What fails later, or once the block has ended, is only a consequence."""
        if self._failure is None and not self._left:
            self._failure = failure
            self._task.cancel()

    def leave(self) -> None:
        """Say that the block has ended: from here on `fail` does nothing."""
        self._left = True

    def raise_failure(self, error: BaseException | None) -> None:
        """Raise what was told to `fail`, if anything was; `error` is what the block itself ended with."""
        if self._failure is None:
            return
        cancelled_by_others_too = self._task.uncancel() > self._cancelling_before
        if cancelled_by_others_too and isinstance(error, asyncio.CancelledError):
            return
        raise self._failure from error
