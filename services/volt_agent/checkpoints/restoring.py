"""Restoring a committed checkpoint: every byte is checked against its digest before it is believed.

Each node gets the files of all ranks, as on a shared file system, so that any number of nodes can go on from it; where
two ranks have a file of the same path, the node's own rank comes first, and then the lowest. What the node has on its
disk already, from the generation before, is linked and not fetched.

CheckpointUnusable (a WorkloadError)
├── CheckpointCorrupt      an object is not what its name says, or names what it may not
├── CheckpointMissing      an object is gone
└── CheckpointUnavailable  the store does not answer
"""

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import structlog

from volt.contracts.checkpoints import FOLDER_BYTES_MAX, ObjectPlace, StoredFile, StoredFolder, StoredRoot
from volt.contracts.clusters import Checkpoint
from volt_agent.checkpoints.folders import is_safe, read_chunk, sha256
from volt_agent.runtimes import WorkloadError
from volt_agent.store.port import ObjectMissing, Store, StoreUnavailable

GETS_IN_FLIGHT_MAX = 4
GET_ATTEMPTS_MAX = 4
GET_RETRY_SECONDS = 0.25
DRAFT = ".restoring"

S = TypeVar("S", bound=msgspec.Struct)

_log = structlog.get_logger("volt.checkpoints")


class CheckpointUnusable(WorkloadError):
    """A committed checkpoint cannot be restored here."""


class CheckpointCorrupt(CheckpointUnusable):
    """An object is not what its name says, or names what it may not."""


class CheckpointMissing(CheckpointUnusable):
    """An object is gone."""


class CheckpointUnavailable(CheckpointUnusable):
    """The store does not answer."""


class Restorer:
    """Brings checkpoints of one job back, for one rank."""

    def __init__(self, store: Store, place: ObjectPlace) -> None:
        """`place` is where this rank will store; of it the job and the rank count."""
        self._store, self._place = store, place

    async def restore(self, checkpoint: Checkpoint, target: Path, local: Sequence[Path]) -> None:
        """Makes the checkpoint's folder in `target`, whole or not at all.

        `local` are folders of earlier generations, whose files may be used as far as they are the same.
        Raises CheckpointUnusable, OSError.
        """
        draft = target / DRAFT
        await asyncio.to_thread(_make_afresh, draft)
        name, taken = "", _Taken()
        for part in sorted(checkpoint.parts, key=lambda one: (one.rank != self._place.rank, one.rank)):
            place = self._place._replace(generation=checkpoint.generation, rank=part.rank)
            folder, _ = await self.read(place, part.manifest)
            if int(folder.folder) != checkpoint.step:
                raise CheckpointCorrupt(f"step {checkpoint.step} names itself {folder.folder}")
            name = name or folder.folder
            for file in folder.files:
                if not is_safe(file.path):
                    raise CheckpointCorrupt(f"step {checkpoint.step} names a file {file.path!r}")
                if taken.take(file.path):
                    sources = [one / folder.folder / file.path for one in local]
                    await self._file(place, folder, file, draft / file.path, sources)
                else:
                    _log.info("file_of_another_rank_passed_over", path=file.path, rank=part.rank)
        draft.rename(target / name)

    async def read(self, place: ObjectPlace, manifest: str) -> tuple[StoredFolder, frozenset[str]]:
        """What a rank has stored of a step, and the names of all objects that it needs. Raises CheckpointUnusable."""
        root = _decoded(await self._checked(place, manifest), StoredRoot, place.name(manifest))
        encoded = b"".join([await self._checked(place, digest) for digest in root.chunks])
        if len(encoded) > FOLDER_BYTES_MAX:
            raise CheckpointCorrupt(f"{place.name(manifest)} is larger than anything that is stored")
        folder = _decoded(encoded, StoredFolder, place.name(manifest))
        chunks = (_place_of(place, folder, digest).name(digest) for file in folder.files for digest in file.chunks)
        return folder, frozenset([place.name(manifest), *map(place.name, root.chunks), *chunks])

    async def _file(
        self, place: ObjectPlace, folder: StoredFolder, file: StoredFile, target: Path, sources: Sequence[Path]
    ) -> None:
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        for source in sources:
            if await asyncio.to_thread(_link_if_same, source, file, target):
                return
        with await asyncio.to_thread(_create, target, file.mode) as out:
            for window in _windows(file.chunks):
                gets = (self._checked(_place_of(place, folder, digest), digest) for digest in window)
                for data in await asyncio.gather(*gets):
                    await asyncio.to_thread(out.write, data)
            if out.tell() != file.size_bytes:
                raise CheckpointCorrupt(f"{file.path} has {out.tell()} bytes, not {file.size_bytes}")

    async def _checked(self, place: ObjectPlace, digest: str) -> bytes:
        """An object that is what its name says. Raises CheckpointUnusable."""
        data = await self._got(place.name(digest))
        if await asyncio.to_thread(sha256, data) != digest:
            raise CheckpointCorrupt(f"{place.name(digest)} holds something else than its digest says")
        return data

    async def _got(self, name: str) -> bytes:
        for attempt in range(GET_ATTEMPTS_MAX):
            try:
                return await self._store.get(name)
            except ObjectMissing as error:
                raise CheckpointMissing(str(error)) from error
            except StoreUnavailable as error:
                if attempt + 1 == GET_ATTEMPTS_MAX:
                    raise CheckpointUnavailable(str(error)) from error
                await asyncio.sleep(GET_RETRY_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


class _Taken:
    """The paths of a union of folders: no file twice, and none where another has a folder."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, path: str) -> bool:
        parts = path.split("/")
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if path in self._files or path in self._folders or not above.isdisjoint(self._files):
            return False
        self._files.add(path)
        self._folders |= above
        return True


def _decoded(data: bytes, kind: type[S], name: str) -> S:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CheckpointCorrupt(f"{name}: {error}") from error


def _place_of(place: ObjectPlace, folder: StoredFolder, digest: str) -> ObjectPlace:
    return place._replace(generation=folder.elsewhere.get(digest, place.generation))


def _make_afresh(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _create(path: Path, mode: int) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, mode | 0o400)
    return os.fdopen(descriptor, "wb")


def _link_if_same(source: Path, file: StoredFile, target: Path) -> bool:
    """Links a file that is on this disk already, if it is the same to the last byte."""
    try:
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as had:
            if os.fstat(had.fileno()).st_size != file.size_bytes or not _is_same(had, file):
                return False
        target.hardlink_to(source)
        target.chmod(file.mode | 0o400)
    except OSError:
        return False  # It is fetched instead.
    return True


def _is_same(had: BinaryIO, file: StoredFile) -> bool:
    for digest in file.chunks:
        chunk = read_chunk(had)
        if chunk is None or chunk[0] != digest:
            return False
    return read_chunk(had) is None


def _windows(chunks: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(chunks), GETS_IN_FLIGHT_MAX):
        yield chunks[start : start + GETS_IN_FLIGHT_MAX]
