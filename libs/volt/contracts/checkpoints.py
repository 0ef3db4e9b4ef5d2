"""How a checkpoint lies in the object store: what its objects are called and how they name each other.

Everything a rank stores in a generation is under one name of its own, `<account>/<job>/<rank>/<generation>/`, and there
by its SHA-256. A file is its chunks, in order. A `StoredFolder` names the files; it is stored in chunks too, and the
`StoredRoot`, which names those, is the object whose digest the agent reports.
"""

from typing import Annotated, NamedTuple

import msgspec

from volt.contracts.ids import Sha256
from volt.contracts.messages import Value

CHUNK_BYTES = 1024**2
"""Every object is at most this large: it is what a bus takes as one message by default."""
FILES_MAX = 10_000
PATH_BYTES_MAX = 1_024
FILE_CHUNKS_MAX = 1_000_000
FOLDER_BYTES_MAX = 32 * CHUNK_BYTES
"""What names the files of a folder, encoded; enough for 400 GB of them."""
STEP_DIGITS_MAX = 15
OBJECT_SECONDS_MAX = 30 * 24 * 3600
"""An object is gone so long after it was last stored, unless it is removed before."""
OBJECT_REUSE_SECONDS_MAX = 10 * 24 * 3600
"""For how long a rank relies on an object that it has stored; then it stores it again."""
INHERITED_REUSE_SECONDS_MAX = 24 * 3600
"""For how long a generation relies on what the one before it had stored. By these three every committed checkpoint can
be restored for more than a week."""

Mode = Annotated[int, msgspec.Meta(ge=0, le=0o777)]
RelativePath = Annotated[str, msgspec.Meta(min_length=1, max_length=PATH_BYTES_MAX)]
FolderName = Annotated[str, msgspec.Meta(pattern=rf"^[0-9]{{1,{STEP_DIGITS_MAX}}}$(?!\n)")]


class ObjectPlace(NamedTuple):
    """Where one rank stores in one generation. Only that rank's agent of that generation adds to it."""

    account: str
    job: str
    generation: int
    rank: int

    @property
    def job_prefix(self) -> str:
        """What the names of everything that the job has stored begin with."""
        return f"{self.account}/{self.job}"

    @property
    def rank_prefix(self) -> str:
        """The same of what the rank has stored, in any generation."""
        return f"{self.job_prefix}/{self.rank}"

    @property
    def prefix(self) -> str:
        return f"{self.rank_prefix}/{self.generation}"

    def name(self, digest: str) -> str:
        """The name of an object that is stored here."""
        return f"{self.prefix}/{digest}"


class StoredFile(Value, frozen=True, kw_only=True):
    """A file: its path within the folder, with forward slashes, and the digests of its chunks."""

    path: RelativePath
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    mode: Mode
    chunks: Annotated[tuple[Sha256, ...], msgspec.Meta(max_length=FILE_CHUNKS_MAX)]


class StoredFolder(Value, frozen=True, kw_only=True):
    """All the files of one rank's part of a step. `folder` is the step as the workload wrote it."""

    folder: FolderName
    files: Annotated[tuple[StoredFile, ...], msgspec.Meta(max_length=FILES_MAX)]
    elsewhere: dict[Sha256, int] = {}
    """Chunks that are not stored again: the generation under which the same rank has stored them."""


class StoredRoot(Value, frozen=True, kw_only=True):
    """The chunks of an encoded `StoredFolder`."""

    chunks: Annotated[tuple[Sha256, ...], msgspec.Meta(max_length=FOLDER_BYTES_MAX // CHUNK_BYTES)]
