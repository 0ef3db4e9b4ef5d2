"""One control plane per data folder, held by a lock that the kernel releases.

The children inherit the open lock file. So the lock lasts until the last of them has gone, and a control
plane that starts just after another was killed waits until its stores and ports are free again.
"""

import asyncio
import fcntl
import os
from pathlib import Path

from volt.embedded.errors import DataFolderBusy

LOCK_WAIT_SECONDS_MAX = 1.0
LOCK_RETRY_SECONDS = 0.02
HOLDER_BYTES_MAX = 32


class DataFolderLock:
    """The exclusive right to a data folder, from `acquire` until `release` and the end of every child."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """The open lock file, to be inherited by the children."""
        assert self._descriptor >= 0, "the lock is not held"
        return self._descriptor

    async def acquire(self) -> None:
        """Take the lock. Raises DataFolderBusy after LOCK_WAIT_SECONDS_MAX."""
        descriptor = os.open(self._data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._wait_for(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        os.close(self.descriptor)
        self._descriptor = -1

    async def _wait_for(self, descriptor: int) -> None:
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + LOCK_WAIT_SECONDS_MAX
        while not _try_lock(descriptor):
            if clock() >= give_up_at:
                raise DataFolderBusy(self._data_dir, os.pread(descriptor, HOLDER_BYTES_MAX, 0).decode())
            await asyncio.sleep(LOCK_RETRY_SECONDS)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
