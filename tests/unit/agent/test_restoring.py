"""Only what is whole and true to its digests is ever restored."""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.agent.checkpointing import (
    PLACE,
    HurtStore,
    checkpoint,
    contents,
    noise,
    uploader,
    write_step,
)
from volt.contracts.checkpoints import StoredFile, StoredFolder, StoredRoot
from volt.contracts.clusters import Checkpoint
from volt_agent.checkpoints import restoring
from volt_agent.checkpoints.folders import is_safe, sha256
from volt_agent.checkpoints.restoring import (
    CheckpointCorrupt,
    CheckpointMissing,
    CheckpointUnavailable,
    CheckpointUnusable,
    Restorer,
)

FILES = {"weights": b"w" * 100, "deep/er/state": b"s" * 10}


async def stored_step(store: HurtStore, root: Path) -> Checkpoint:
    write_step(root, 7, FILES)
    return checkpoint(7, await uploader(store).store(root, "7"))


def fake(store: HurtStore, folder: StoredFolder) -> Checkpoint:
    """A checkpoint as somebody could store it who does not follow the rules."""
    encoded = msgspec.json.encode(folder)
    root = msgspec.json.encode(StoredRoot(chunks=(sha256(encoded),)))
    store.objects |= {PLACE.name(sha256(data)): data for data in (encoded, root)}
    return msgspec.convert(
        {"generation": 1, "step": 7, "parts": [{"rank": 0, "manifest": sha256(root), "size_bytes": 1}]}, Checkpoint
    )


@pytest.mark.parametrize("place", range(4))
async def test_a_corrupt_object_is_never_restored(place: int, tmp_path: Path) -> None:
    store, target = HurtStore(), tmp_path / "target"
    committed = await stored_step(store, tmp_path)
    name = sorted(store.objects)[place]
    flipped = bytearray(store.objects[name])
    flipped[0] ^= 1
    store.objects[name] = bytes(flipped)
    with pytest.raises(CheckpointCorrupt, match=name):
        await Restorer(store, PLACE).restore(committed, target, ())
    assert not (target / "7").exists()


@pytest.mark.parametrize("place", range(4))
async def test_an_object_that_is_gone_is_named(place: int, tmp_path: Path) -> None:
    store, target = HurtStore(), tmp_path / "target"
    committed = await stored_step(store, tmp_path)
    name = sorted(store.objects)[place]
    del store.objects[name]
    with pytest.raises(CheckpointMissing, match=name):
        await Restorer(store, PLACE).restore(committed, target, ())
    assert not (target / "7").exists()


async def test_a_store_that_is_away_is_told_apart(tmp_path: Path) -> None:
    store = HurtStore()
    committed = await stored_step(store, tmp_path)
    store.away = True
    with pytest.raises(CheckpointUnavailable):
        await Restorer(store, PLACE).restore(committed, tmp_path / "target", ())


async def test_every_node_gets_the_files_of_all_ranks_and_its_own_first(tmp_path: Path) -> None:
    store, parts = HurtStore(), []
    for rank in range(3):
        mine = PLACE._replace(rank=rank)
        files = {f"rank-{rank}": b"%d" % rank, "shared": b"of %d" % rank, ("a" if rank else "a/b"): b"%d" % rank}
        write_step(tmp_path / str(rank), 7, files)
        parts.append(await uploader(store, mine).store(tmp_path / str(rank), "7"))
    for rank, shared in ((1, b"of 1"), (9, b"of 0")):
        target = tmp_path / f"for {rank}"
        await Restorer(store, PLACE._replace(rank=rank, generation=2)).restore(checkpoint(7, *parts), target, ())
        found = contents(target / "7")
        assert {f"rank-{one}": b"%d" % one for one in range(3)}.items() <= found.items()
        assert found["shared"] == shared
        assert ("a" in found) == (rank == 1), "a file cannot be where another rank has a folder"
        assert ("a/b" in found) == (rank == 9)


async def test_what_the_node_has_on_its_disk_is_linked_and_not_fetched(tmp_path: Path) -> None:
    store, target = HurtStore(), tmp_path / "target"
    weights = noise(3)
    write_step(tmp_path, 7, {"weights": weights, "changed": b"new"})
    stored = await uploader(store).store(tmp_path, "7")
    (tmp_path / "7/changed").write_bytes(b"old")
    got: list[str] = []
    get = store.get

    async def noted(name: str) -> bytes:
        got.append(name)
        return await get(name)

    store.get = noted  # type: ignore[method-assign]
    await Restorer(store, PLACE).restore(checkpoint(7, stored), target, (tmp_path / "not there", tmp_path))
    assert contents(target / "7") == {"weights": weights, "changed": b"new"}
    assert (target / "7/weights").stat().st_ino == (tmp_path / "7/weights").stat().st_ino
    assert len(got) == 1 + 2, "the chunk that is not here, and the two that name all"


@pytest.mark.parametrize("trick", ["flipped", "link", "pipe", "longer"])
async def test_what_only_looks_the_same_on_the_disk_is_fetched(trick: str, tmp_path: Path) -> None:
    store, target = HurtStore(), tmp_path / "target"
    committed = await stored_step(store, tmp_path)
    local = tmp_path / "7/weights"
    local.unlink()
    match trick:
        case "flipped":
            local.write_bytes(b"v" * 100)
        case "link":
            (tmp_path / "elsewhere").write_bytes(FILES["weights"])
            local.symlink_to(tmp_path / "elsewhere")
        case "pipe":
            os.mkfifo(local)
        case _:
            local.write_bytes(FILES["weights"] + b"w")
    await Restorer(store, PLACE).restore(committed, target, (tmp_path,))
    assert contents(target / "7") == FILES
    assert not (target / "7/weights").is_symlink()


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../out", "a//b", "./a", "a/", "a\0b"])
async def test_a_path_that_leads_out_is_never_written(path: str, tmp_path: Path) -> None:
    store, target = HurtStore(), tmp_path / "deep/target"
    data = sha256(b"x")
    store.objects[PLACE.name(data)] = b"x"
    file = StoredFile(path=path, size_bytes=1, mode=0o644, chunks=(data,))
    with pytest.raises(CheckpointCorrupt):
        await Restorer(store, PLACE).restore(fake(store, StoredFolder(folder="7", files=(file,))), target, ())
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "folder",
    [
        StoredFolder(folder="8", files=()),
        StoredFolder(folder="../7", files=()),
        StoredFolder(folder="7", files=(StoredFile(path="a", size_bytes=5, mode=0o644, chunks=()),)),
        StoredFolder(folder="7", files=(StoredFile(path="a", size_bytes=0, mode=0o4755, chunks=()),)),
        StoredFolder(folder="7", files=(StoredFile(path="a", size_bytes=0, mode=0o644, chunks=("../../x",)),)),
    ],
    ids=["another step", "a folder that leads out", "another size", "a mode", "a digest that is none"],
)
async def test_a_listing_that_breaks_the_rules_is_corrupt(folder: StoredFolder, tmp_path: Path) -> None:
    store, target = HurtStore(), tmp_path / "target"
    with pytest.raises(CheckpointUnusable):
        await Restorer(store, PLACE).restore(fake(store, folder), target, ())
    assert not (target / "7").exists()


@given(st.text(st.sampled_from("ab/.\\\0 "), max_size=12))
def test_a_safe_path_stays_within_its_folder(path: str) -> None:
    if is_safe(path):
        assert os.path.normpath(os.path.join("/base", path)).startswith("/base/")  # noqa: PTH118
        assert os.path.normpath(path) == path


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "GET_RETRY_SECONDS", 0.001)
