"""Storing a folder: chunk by chunk, a few at a time, and never what is there already.

All chunks are stored before what names them is, and that before its digest is told to anybody. So what breaks off in
the middle has stored nothing that counts, and the next attempt sends only the rest.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from volt.contracts.checkpoints import (
    CHUNK_BYTES,
    FOLDER_BYTES_MAX,
    INHERITED_REUSE_SECONDS_MAX,
    OBJECT_REUSE_SECONDS_MAX,
    ObjectPlace,
    StoredFile,
    StoredFolder,
    StoredRoot,
)
from volt_agent.checkpoints.folders import (
    FolderChanged,
    FolderRefused,
    Found,
    check_unchanged,
    open_found,
    read_chunk,
    scan,
    sha256,
)
from volt_agent.store.port import Store, StoreUnavailable

PUTS_IN_FLIGHT_MAX = 4
"""Chunks that are on their way at once: with the one being read, all of a file that is in memory."""
PUT_ATTEMPTS_MAX = 4
PUT_RETRY_SECONDS = 0.25


@dataclass(frozen=True)
class Stored:
    """A folder that is stored whole: the digest of its root, its size, and the names of all objects that it needs."""

    manifest: str
    size_bytes: int
    names: frozenset[str]


@dataclass
class _Sending:
    """One attempt to store a folder."""

    tasks: asyncio.TaskGroup
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PUTS_IN_FLIGHT_MAX))
    elsewhere: dict[str, int] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)


class Uploader:
    """Stores the folders of one rank in one generation, one after another."""

    def __init__(self, store: Store, place: ObjectPlace, now_seconds: Callable[[], float]) -> None:
        self._store, self._place, self._now_seconds = store, place, now_seconds
        self._good_until: dict[str, float] = {}
        self._inherited: dict[str, float] = {}
        self._inherited_generation = 0

    async def learn(self) -> None:
        """Finds what an earlier attempt in this place has stored. Raises StoreUnavailable."""
        for name in await self._store.names(self._place.prefix):
            self._good_until[name.rpartition("/")[2]] = self._now_seconds() + INHERITED_REUSE_SECONDS_MAX

    def inherit(self, folder: StoredFolder, generation: int) -> None:
        """What the same rank has stored in the generation that this one resumes from is not sent again for a while."""
        until = self._now_seconds() + INHERITED_REUSE_SECONDS_MAX
        digests = {digest for file in folder.files for digest in file.chunks} - folder.elsewhere.keys()
        self._inherited, self._inherited_generation = dict.fromkeys(digests, until), generation

    def forget(self, names: frozenset[str]) -> None:
        """These objects were removed."""
        for name in names:
            prefix, _, digest = name.rpartition("/")
            known = self._good_until if prefix == self._place.prefix else self._inherited
            known.pop(digest, None)

    async def store(self, root: Path, name: str) -> Stored:
        """Stores the folder of this name. Raises FolderRefused, FolderChanged, StoreUnavailable."""
        found = await asyncio.to_thread(scan, root / name)
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = _Sending(tasks)
                files = tuple([await self._file(sending, root / name, one) for one in found])
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise (FolderChanged(str(first)) if isinstance(first, OSError) else first) from group
        encoded = msgspec.json.encode(StoredFolder(folder=name, files=files, elsewhere=sending.elsewhere))
        if len(encoded) > FOLDER_BYTES_MAX:
            raise FolderRefused(f"{len(encoded)} bytes name its files; at most {FOLDER_BYTES_MAX}")
        pieces = [(sha256(piece), piece) for piece in _pieces(encoded)]
        root_data = msgspec.json.encode(StoredRoot(chunks=tuple(digest for digest, _ in pieces)))
        for digest, piece in [*pieces, (sha256(root_data), root_data)]:
            await self._put(digest, piece)
        own = sending.digests | {digest for digest, _ in pieces} | {sha256(root_data)}
        others = (self._place._replace(generation=number).name(digest) for digest, number in sending.elsewhere.items())
        return Stored(
            manifest=sha256(root_data),
            size_bytes=sum(one.size_bytes for one in found),
            names=frozenset([*map(self._place.name, own), *others]),
        )

    async def _file(self, sending: _Sending, folder: Path, found: Found) -> StoredFile:
        chunks: list[str] = []
        with await asyncio.to_thread(open_found, folder, found) as file:
            while (chunk := await asyncio.to_thread(read_chunk, file)) is not None:
                chunks.append(chunk[0])
                await self._send(sending, *chunk)
            check_unchanged(file, found)
        return StoredFile(path=found.path, size_bytes=found.size_bytes, mode=found.mode, chunks=tuple(chunks))

    async def _send(self, sending: _Sending, digest: str, data: bytes) -> None:
        """Has a chunk stored, unless it is there or on its way."""
        if digest in sending.digests or digest in sending.elsewhere:
            return
        now_seconds = self._now_seconds()
        if self._inherited.get(digest, 0.0) > now_seconds and self._good_until.get(digest, 0.0) <= now_seconds:
            sending.elsewhere[digest] = self._inherited_generation
            return
        sending.digests.add(digest)
        if self._good_until.get(digest, 0.0) <= now_seconds:
            await sending.slots.acquire()
            sending.tasks.create_task(self._put(digest, data)).add_done_callback(lambda _: sending.slots.release())

    async def _put(self, digest: str, data: bytes) -> None:
        for attempt in range(PUT_ATTEMPTS_MAX):
            try:
                await self._store.put(self._place.name(digest), data)
            except StoreUnavailable:
                if attempt + 1 == PUT_ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(PUT_RETRY_SECONDS * 2**attempt)
            else:
                break
        self._good_until[digest] = self._now_seconds() + OBJECT_REUSE_SECONDS_MAX


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
