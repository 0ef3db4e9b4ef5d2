"""One control plane per data folder."""

import os
from pathlib import Path

import pytest

from volt.embedded.errors import DataFolderBusy
from volt.embedded.lock import DataFolderLock


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volt.embedded.lock.LOCK_WAIT_SECONDS_MAX", 0.03)


async def test_a_second_lock_on_a_folder_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    first = DataFolderLock(tmp_path)
    await first.acquire()
    with pytest.raises(DataFolderBusy, match=rf"process {os.getpid()}.*--data"):
        await DataFolderLock(tmp_path).acquire()
    first.release()


async def test_a_released_folder_can_be_locked_again(tmp_path: Path) -> None:
    for _ in range(2):
        lock = DataFolderLock(tmp_path)
        await lock.acquire()
        lock.release()


async def test_the_lock_lasts_as_long_as_a_child_that_inherited_it(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path)
    await lock.acquire()
    inherited = os.dup(lock.descriptor)
    lock.release()
    with pytest.raises(DataFolderBusy):
        await DataFolderLock(tmp_path).acquire()
    os.close(inherited)
    again = DataFolderLock(tmp_path)
    await again.acquire()
    again.release()
