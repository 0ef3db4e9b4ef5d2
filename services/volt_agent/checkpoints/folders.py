"""The folders that a workload writes, read with mistrust: nothing that is not plainly a file of its own is stored.

A completed step is a folder of `VOLT_CHECKPOINT_DIR` whose name is a number. It got that name by a rename, when it was
whole; anything else (`.tmp`, a file, a link) is half-written or something else, and is passed over.

FolderRefused   there is something in it that is never stored: a link, a device, too many files, too long a name
FolderChanged   it is written to still, or was removed
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from volt.contracts.checkpoints import CHUNK_BYTES, FILES_MAX, PATH_BYTES_MAX, STEP_DIGITS_MAX

MODE_BITS = 0o777
_STEP = re.compile(rf"[0-9]{{1,{STEP_DIGITS_MAX}}}")


class FolderRefused(Exception):
    """There is something in the folder that is never stored."""


class FolderChanged(Exception):
    """The folder is not finished, or is not there any more."""


@dataclass(frozen=True)
class Found:
    """A file as it was found. While size and time of its last change are the same, so is its content."""

    path: str
    size_bytes: int
    mode: int
    changed_ns: int


def completed(root: Path) -> dict[int, str]:
    """The completed steps in a folder with the names of theirs; of two names for one step the first in order."""
    try:
        with os.scandir(root) as entries:
            names = [one.name for one in entries if _STEP.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except OSError:
        return {}  # The workload may do with its folder whatever it likes.
    return {int(name): name for name in sorted(names, reverse=True)}


def scan(folder: Path) -> tuple[Found, ...]:
    """Every file of a folder, in order of their paths. Raises FolderRefused, FolderChanged."""
    found: list[Found] = []
    try:
        for one in _files(folder, ""):
            found.append(one)
            if len(found) > FILES_MAX:
                raise FolderRefused(f"more than {FILES_MAX} files")
    except OSError as error:
        raise FolderChanged(str(error)) from error
    return tuple(sorted(found, key=lambda one: one.path))


def open_found(folder: Path, found: Found) -> BinaryIO:
    """A file to read, which is the one that was found. Raises FolderChanged."""
    try:
        file = os.fdopen(os.open(folder / found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise FolderChanged(f"{found.path}: {error}") from error
    try:
        check_unchanged(file, found)
    except BaseException:
        file.close()
        raise
    return file


def check_unchanged(file: BinaryIO, found: Found) -> None:
    """Raises FolderChanged if the file is not as it was found."""
    now = os.fstat(file.fileno())
    if (now.st_size, now.st_mtime_ns) != (found.size_bytes, found.changed_ns) or not stat.S_ISREG(now.st_mode):
        raise FolderChanged(f"{found.path} was written to while it was read")


def read_chunk(file: BinaryIO) -> tuple[str, bytes] | None:
    """The next chunk and its digest; None at the end."""
    data = file.read(CHUNK_BYTES)
    return (sha256(data), data) if data else None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_safe(path: str) -> bool:
    """Whether a path names something within the folder that it is relative to."""
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") for part in parts) and "\0" not in path
    return plain and len(path.encode(errors="surrogateescape")) <= PATH_BYTES_MAX


def _files(folder: Path, within: str) -> Iterator[Found]:
    with os.scandir(folder / within) as entries:
        for entry in entries:
            path = f"{within}{entry.name}"
            if not is_safe(path) or not _is_text(path):
                raise FolderRefused(f"{path!r} cannot be the name of a stored file")
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode):
                yield from _files(folder, f"{path}/")
            elif stat.S_ISREG(about.st_mode):
                yield Found(path, about.st_size, about.st_mode & MODE_BITS, about.st_mtime_ns)
            else:
                raise FolderRefused(f"{path!r} is a link or a device, not a file")


def _is_text(path: str) -> bool:
    """Whether a path is text that JSON can carry; the file system takes any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
