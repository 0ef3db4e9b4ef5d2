"""What tests of checkpoints share: folders as a workload writes them, and a store that can be hurt."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from volt.contracts.checkpoints import CHUNK_BYTES, ObjectPlace
from volt.contracts.clusters import Checkpoint, CheckpointPart, Manifest, ManifestNode
from volt.contracts.jobs import Workload
from volt.contracts.nodes import DesiredLease
from volt_agent.checkpoints.storing import Stored, Uploader
from volt_agent.store.port import ObjectMissing, StoreUnavailable

PLACE = ObjectPlace("lab", "j1", 1, 0)


class HurtStore:
    """Objects in memory, with a note of what was asked. `spoil` has the say over a put before it happens."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.spoil: Callable[[str], Awaitable[None]] | None = None
        self.away = False

    async def put(self, name: str, data: bytes) -> None:
        if self.away:
            raise StoreUnavailable("away")
        assert len(data) <= CHUNK_BYTES
        if self.spoil is not None:
            await self.spoil(name)
        self.puts.append(name)
        self.objects[name] = data

    async def get(self, name: str) -> bytes:
        if self.away:
            raise StoreUnavailable("away")
        if name not in self.objects:
            raise ObjectMissing(name)
        return self.objects[name]

    async def names(self, prefix: str) -> frozenset[str]:
        if self.away:
            raise StoreUnavailable("away")
        return frozenset(name for name in self.objects if name.startswith(f"{prefix}/"))

    async def delete(self, name: str) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.objects.pop(name, None)

    async def close(self) -> None:
        """Nothing is open."""


class Clock:
    """Seconds that go by only when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def write_step(root: Path, step: int | str, files: Mapping[str, bytes]) -> None:
    """A step as a workload should write it: under another name, and then renamed."""
    draft = root / f"{step}.tmp"
    for path, data in files.items():
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        (draft / path).write_bytes(data)
    draft.mkdir(exist_ok=True, parents=True)
    draft.rename(root / str(step))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def uploader(store: HurtStore, place: ObjectPlace = PLACE, clock: Clock | None = None) -> Uploader:
    return Uploader(store, place, clock or Clock())


def checkpoint(step: int, *parts: Stored, generation: int = 1) -> Checkpoint:
    """As committed, with a part of each rank in order."""
    return Checkpoint(
        generation=generation,
        step=step,
        parts=tuple(
            CheckpointPart(rank=rank, manifest=part.manifest, size_bytes=part.size_bytes)
            for rank, part in enumerate(parts)
        ),
    )


def noise(chunks: int, extra: int = 0) -> bytes:
    return os.urandom(chunks * CHUNK_BYTES + extra)


def desired(
    generation: int = 1,
    *,
    rank: int = 0,
    resume: Checkpoint | None = None,
    kept: tuple[Checkpoint, ...] = (),
    ranks: int = 1,
) -> DesiredLease:
    nodes = tuple(
        ManifestNode(node=f"n{number}", node_rank=number, address="127.0.0.1", processes=1, first_rank=number)
        for number in range(ranks)
    )
    return DesiredLease(
        lease=f"j1-{rank + 1}",
        job="j1",
        account="lab",
        generation=generation,
        phase="start",
        node_rank=rank,
        gpus=("GPU-0",),
        processes=1,
        workload=Workload(command=("true",)),
        manifest=Manifest(
            job="j1", generation=generation, master_address="127.0.0.1", master_port=1, world_size=ranks, nodes=nodes
        ),
        resume=resume,
        kept=kept,
        grace_ms=1_000,
    )
