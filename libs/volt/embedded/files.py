"""Files of the data folder: private, written whole or not at all."""

import os
import shutil
import tempfile
from pathlib import Path

TAIL_BYTES_MAX = 8_192
TAIL_LINES_MAX = 25


def make_private_dir(path: Path) -> Path:
    """Create `path` with its parents, readable by its owner only, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def holds_files(path: Path) -> bool:
    """Whether `path` is a folder with anything in it."""
    return path.is_dir() and any(path.iterdir())


def remove_tree(path: Path) -> None:
    """Remove the folder `path` with all that is in it."""
    shutil.rmtree(path)


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, with mode 0600; a crash leaves the old file or the new one."""
    # mkstemp creates with mode 0600, so a secret is never readable by others, not even for a moment.
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def read_if_present(path: Path) -> bytes | None:
    """The bytes of `path`, or None when there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def tail(path: Path, from_byte: int) -> str:
    """The last lines of `path`, at most TAIL_LINES_MAX, none from before `from_byte`."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(from_byte, size - TAIL_BYTES_MAX))
        text = file.read(TAIL_BYTES_MAX).decode(errors="replace")
    return "\n".join(text.splitlines()[-TAIL_LINES_MAX:])
