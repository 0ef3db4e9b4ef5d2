"""Storing in a process that is killed in the middle, and storing and restoring more than fits into memory."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.storing import made
from volt.contracts.checkpoints import CHUNK_BYTES

CHUNKS = 96
SPARSE_CHUNKS = 1_024
MEMORY_MIB_MAX = 160
"""An interpreter with what it imports takes most of it; a file of a GiB must not show."""
RUN_SECONDS_MAX = 100
SENT_BEFORE_KILL = 16
POLL_SECONDS = 0.002


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tests.support.storing", *map(str, arguments)]


def run(*arguments: str | Path) -> list[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def write_weights(folder: Path, chunks: int) -> None:
    """A file of chunks, no two the same, that takes next to nothing on the disk."""
    folder.mkdir(parents=True)
    with (folder / "weights").open("wb") as file:
        for number in range(chunks):
            file.seek(number * CHUNK_BYTES)
            file.write(made(number)[:8])
        file.truncate(chunks * CHUNK_BYTES)


def test_a_kill_in_the_middle_of_storing_costs_only_what_was_not_there_yet(tmp_path: Path) -> None:
    store, place = tmp_path / "store", tmp_path / "store/lab/j1/0/1"
    write_weights(tmp_path / "root/1", CHUNKS)
    sending = subprocess.Popen(command("store", store, tmp_path / "root", "1"), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while len(_objects(place)) < SENT_BEFORE_KILL:
        assert sending.poll() is None, "it was done before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
    sending.send_signal(signal.SIGKILL)
    assert sending.wait() == -signal.SIGKILL
    there = len(_objects(place))
    assert SENT_BEFORE_KILL <= there < CHUNKS + 2
    sent, manifest, size_bytes = run("store", store, tmp_path / "root", "1")
    assert int(sent) == CHUNKS + 2 - there + 2 * (there > CHUNKS), "but for what names them, which is sent always"
    assert int(size_bytes) == CHUNKS * CHUNK_BYTES
    assert manifest in _objects(place)


@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
def test_a_file_of_a_gibibyte_is_stored_in_bounded_memory(tmp_path: Path) -> None:
    write_weights(tmp_path / "1", SPARSE_CHUNKS)
    size_bytes, memory_mib = map(int, run("sink", tmp_path, "1"))
    assert size_bytes == SPARSE_CHUNKS * CHUNK_BYTES
    assert memory_mib < MEMORY_MIB_MAX


@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
def test_a_file_of_a_gibibyte_is_restored_in_bounded_memory(tmp_path: Path) -> None:
    size_bytes, memory_mib = map(int, run("source", tmp_path, str(SPARSE_CHUNKS)))
    assert (tmp_path / "1/weights").stat().st_size == size_bytes == SPARSE_CHUNKS * CHUNK_BYTES
    assert memory_mib < MEMORY_MIB_MAX


def _objects(place: Path) -> set[str]:
    return {path.name for path in place.glob("*") if path.suffix == ""}
