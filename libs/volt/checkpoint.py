"""Checkpoints as VOLT wants them, for scripts that would rather not write the rename themselves.

    from volt import checkpoint

    found = checkpoint.latest()
    first = found.step + 1 if found else 1
    if found:
        model.load_state_dict(torch.load(found.folder / "model.pt"))
    for step in range(first, 10_001):
        ...
        if step % 500 == 0 and checkpoint.is_writer():
            with checkpoint.save(step) as folder:
                torch.save(model.state_dict(), folder / "model.pt")

Nothing in here needs VOLT, or anything but Python's own library: all there is to it is a folder for each step in
`VOLT_CHECKPOINT_DIR`, which gets its name by a rename when it is whole. Where that variable is not set nothing is saved
unless a `root` is given, and nothing is found.

A step counts once every node has saved it, so one process of each node saves (`is_writer`), whatever it has to: the
same as the others, its own shard, or a file that says nothing. Each node finds the files of all nodes when it resumes.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "VOLT_CHECKPOINT_DIR"
LOCAL_RANK_VARIABLE = "LOCAL_RANK"


class CheckpointExists(Exception):
    """The step was saved before; one that is saved is never changed."""


class NoCheckpointFolder(Exception):
    """There is no folder to save in: VOLT_CHECKPOINT_DIR is not set and no `root` was given."""


@dataclass(frozen=True)
class Saved:
    """A step that is there, whole."""

    step: int
    folder: Path


def is_writer() -> bool:
    """Whether this is the process of its node that should save: the first, which is the only one by hand."""
    return os.environ.get(LOCAL_RANK_VARIABLE, "0") == "0"


def latest(root: Path | None = None) -> Saved | None:
    """The newest step that is there, None if there is none."""
    place = _place(root)
    if place is None or not place.is_dir():
        return None
    steps = [path for path in place.iterdir() if _is_step(path.name) and path.is_dir()]
    newest = max(steps, key=lambda path: int(path.name), default=None)
    return None if newest is None else Saved(int(newest.name), newest)


@contextmanager
def save(step: int, root: Path | None = None) -> Iterator[Path]:
    """Gives an empty folder to write into; when the block ends it is synced to disk and becomes the step.

    When the block raises, nothing is saved. Raises NoCheckpointFolder, CheckpointExists, ValueError for a step below 0.
    """
    place = _place(root)
    if place is None:
        raise NoCheckpointFolder(f"{FOLDER_VARIABLE} is not set; give save() a root")
    if step < 0:
        raise ValueError(f"{step} is no step; steps begin at 0")
    final = place / str(step)
    if final.exists():
        raise CheckpointExists(f"{final} is saved already")
    place.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{step}-", suffix=".tmp", dir=place))
    try:
        yield draft
        _sync(draft)
        draft.chmod(0o755)  # As a folder is made by hand; one for drafts is nobody else's.
        draft.rename(final)
        _sync_one(place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _place(root: Path | None) -> Path | None:
    named = os.environ.get(FOLDER_VARIABLE)
    return root if root is not None else Path(named) if named else None


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _sync(folder: Path) -> None:
    """Has everything below a folder on disk: a name that outlives a loss of power must not outlive its content."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
