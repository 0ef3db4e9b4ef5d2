"""Storing and restoring a folder in a process of its own: `python -m tests.support.storing WHAT ARGUMENT...`.

store STORE ROOT STEP   stores a step in a folder store, and says what it had to send and how
sink ROOT STEP          stores it in a store that forgets everything; says how much memory that took at most, in MiB
source TARGET CHUNKS    restores a file of so many chunks from a store that makes them up; says the same
"""

import asyncio
import hashlib
import sys
import time
from pathlib import Path

import msgspec

from volt.contracts.checkpoints import CHUNK_BYTES, ObjectPlace, StoredFile, StoredFolder, StoredRoot
from volt.contracts.clusters import Checkpoint, CheckpointPart
from volt_agent.checkpoints.restoring import Restorer
from volt_agent.checkpoints.storing import Uploader
from volt_agent.store.folder import FolderStore

PLACE = ObjectPlace("lab", "j1", 1, 0)
KIB_PER_MIB = 1024


class Counting(FolderStore):
    """Counts what is sent."""

    sent = 0

    async def put(self, name: str, data: bytes) -> None:
        await super().put(name, data)
        self.sent += 1


class Sink(FolderStore):
    """Forgets everything, after a while that lets chunks pile up if they can."""

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.sleep(0.001)


class Source(FolderStore):
    """Has a file of chunks, no two the same, that it makes when they are asked for."""

    def __init__(self, chunks: int) -> None:
        super().__init__(Path())
        digests = tuple(hashlib.sha256(made(number)).hexdigest() for number in range(chunks))
        file = StoredFile(path="weights", size_bytes=chunks * CHUNK_BYTES, mode=0o644, chunks=digests)
        listing = msgspec.json.encode(StoredFolder(folder="1", files=(file,)))
        root = msgspec.json.encode(StoredRoot(chunks=(hashlib.sha256(listing).hexdigest(),)))
        self.manifest = hashlib.sha256(root).hexdigest()
        self._small = {hashlib.sha256(data).hexdigest(): data for data in (listing, root)}
        self._numbers = {digest: number for number, digest in enumerate(digests)}

    async def get(self, name: str) -> bytes:
        digest = name.rpartition("/")[2]
        return self._small[digest] if digest in self._small else made(self._numbers[digest])


def made(number: int) -> bytes:
    return number.to_bytes(8, "big").ljust(CHUNK_BYTES, b"\0")


async def store(root: str, folder: str, step: str) -> None:
    kept = await Counting.open(Path(root))
    assert isinstance(kept, Counting)
    uploader = Uploader(kept, PLACE, time.monotonic)
    await uploader.learn()
    stored = await uploader.store(Path(folder), step)
    say(f"{kept.sent} {stored.manifest} {stored.size_bytes}")


async def sink(folder: str, step: str) -> None:
    stored = await Uploader(Sink(Path()), PLACE, time.monotonic).store(Path(folder), step)
    say(f"{stored.size_bytes} {memory_mib()}")


async def source(target: str, chunks: str) -> None:
    held = Source(int(chunks))
    part = CheckpointPart(rank=0, manifest=held.manifest, size_bytes=int(chunks) * CHUNK_BYTES)
    await Restorer(held, PLACE).restore(Checkpoint(generation=1, step=1, parts=(part,)), Path(target), ())
    say(f"{part.size_bytes} {memory_mib()}")


def memory_mib() -> int:
    # The peak of getrusage would be that of the process which started this one, if that is the larger.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // KIB_PER_MIB


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["store", kept, folder, step]:
            asyncio.run(store(kept, folder, step))
        case ["sink", folder, step]:
            asyncio.run(sink(folder, step))
        case ["source", target, chunks]:
            asyncio.run(source(target, chunks))
        case _:
            sys.exit(__doc__)
