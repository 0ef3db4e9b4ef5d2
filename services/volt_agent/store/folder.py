"""Objects as files of a folder: for one machine, and for what is mounted on several."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from volt.contracts.checkpoints import OBJECT_SECONDS_MAX
from volt_agent.store.port import ObjectMissing, StoreUnavailable, checked

DRAFT_SUFFIX = ".draft"


class FolderStore:
    """A file for each object. What is too old is removed when the folder is opened."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    async def open(cls, root: Path) -> Self:
        """Raises StoreUnavailable if the folder cannot be used."""
        store = cls(root)
        await store._do(store._sweep)
        return store

    async def put(self, name: str, data: bytes) -> None:
        await self._do(lambda: self._write(self._path(name), data))

    async def get(self, name: str) -> bytes:
        def read() -> bytes:
            try:
                return self._path(name).read_bytes()
            except FileNotFoundError as error:
                raise ObjectMissing(name) from error

        return await asyncio.to_thread(read)

    async def names(self, prefix: str) -> frozenset[str]:
        def walk() -> frozenset[str]:
            files = (path for path in self._path(prefix).rglob("*") if path.is_file())
            return frozenset(path.relative_to(self._root).as_posix() for path in files if path.suffix != DRAFT_SUFFIX)

        return await asyncio.to_thread(walk)

    async def delete(self, name: str) -> None:
        await self._do(lambda: self._path(name).unlink(missing_ok=True))

    async def close(self) -> None:
        """There is nothing to give up."""

    async def _do(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise StoreUnavailable(f"{self._root}: {error}") from error

    def _path(self, name: str) -> Path:
        return self._root / checked(name)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{secrets.token_hex(4)}{DRAFT_SUFFIX}")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _sweep(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        oldest = time.time() - OBJECT_SECONDS_MAX
        for path in self._root.rglob("*"):
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
