"""A completed folder is stored whole or not at all, and nothing is sent twice."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.agent.checkpointing import PLACE, Clock, HurtStore, checkpoint, contents, noise, uploader, write_step
from volt.contracts.checkpoints import (
    CHUNK_BYTES,
    INHERITED_REUSE_SECONDS_MAX,
    OBJECT_REUSE_SECONDS_MAX,
    OBJECT_SECONDS_MAX,
)
from volt_agent.checkpoints import folders, storing
from volt_agent.checkpoints.folders import FolderChanged, FolderRefused, completed
from volt_agent.checkpoints.restoring import Restorer
from volt_agent.store.port import StoreUnavailable

PATHS = st.lists(
    st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3}){0,2}", fullmatch=True).map(lambda path: f"{path}.bin"),
    unique=True,
    max_size=5,
)
BYTES = st.sampled_from([b"", b"x", b"y" * (CHUNK_BYTES - 1), b"z" * CHUNK_BYTES, b"z" * (2 * CHUNK_BYTES + 1)])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_whatever_is_stored_comes_back_byte_for_byte(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, target = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("target")
    files = {path: data.draw(BYTES) for path in data.draw(PATHS)}
    write_step(root, "0042", files)
    store = HurtStore()
    stored = await uploader(store).store(root, "0042")
    assert stored.names == store.objects.keys()
    assert stored.size_bytes == sum(map(len, files.values()))
    await Restorer(store, PLACE).restore(checkpoint(42, stored), target, ())
    assert contents(target / "0042") == files


async def test_modes_come_back(tmp_path: Path) -> None:
    write_step(tmp_path / "w", 1, {"run.sh": b"#!/bin/sh\n", "data": b"x"})
    (tmp_path / "w/1/run.sh").chmod(0o4751)
    store = HurtStore()
    stored = await uploader(store).store(tmp_path / "w", "1")
    (tmp_path / "back").mkdir()
    await Restorer(store, PLACE).restore(checkpoint(1, stored), tmp_path / "back", ())
    assert (tmp_path / "back/1/run.sh").stat().st_mode & 0o7777 == 0o751, "and no right that a stranger may give"


async def test_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    frozen, first, second = noise(3), noise(1), noise(1)
    store = HurtStore()
    sender = uploader(store)
    write_step(tmp_path, 1, {"frozen": frozen, "weights": first})
    write_step(tmp_path, 2, {"frozen": frozen, "weights": second})
    write_step(tmp_path, 3, {"zeros": bytes(16 * CHUNK_BYTES)})
    await sender.store(tmp_path, "1")
    assert len(store.puts) == 4 + 2, "and two that name them"
    await sender.store(tmp_path, "2")
    assert len(store.puts) == 6 + 1 + 2
    await sender.store(tmp_path, "3")
    assert len(store.puts) == 9 + 1 + 2, "sixteen chunks that are the same are one"


async def test_a_store_that_goes_away_in_the_middle_is_sent_only_the_rest(tmp_path: Path) -> None:
    write_step(tmp_path, 1, {"weights": noise(8)})
    store = HurtStore()

    async def die_after_five(_: str) -> None:
        if len(store.puts) >= 5:
            raise StoreUnavailable("away")

    store.spoil = die_after_five
    sender = uploader(store)
    with pytest.raises(StoreUnavailable):
        await sender.store(tmp_path, "1")
    store.spoil = None
    await sender.store(tmp_path, "1")
    assert len(store.puts) == len(set(store.puts)) == 8 + 2


async def test_an_agent_that_begins_again_in_the_same_place_sends_only_the_rest(tmp_path: Path) -> None:
    write_step(tmp_path, 1, {"weights": noise(8)})
    store = HurtStore()
    whole = await uploader(store).store(tmp_path, "1")
    for name in list(store.objects)[3:]:
        del store.objects[name]
    store.puts.clear()
    again = uploader(store)
    await again.learn()
    assert await again.store(tmp_path, "1") == whole
    assert len(store.puts) == 5 + 2


async def test_what_the_resumed_checkpoint_has_is_not_sent_again_and_comes_back(tmp_path: Path) -> None:
    frozen, before, after = noise(2), noise(1), noise(1)
    store, following = HurtStore(), PLACE._replace(generation=2)
    write_step(tmp_path / "1", 1, {"frozen": frozen, "weights": before})
    first = await uploader(store).store(tmp_path / "1", "1")
    folder, _ = await Restorer(store, PLACE).read(PLACE, first.manifest)
    store.puts.clear()
    sender = uploader(store, following)
    sender.inherit(folder, generation=1)
    write_step(tmp_path / "2", 2, {"frozen": frozen, "weights": after})
    second = await sender.store(tmp_path / "2", "2")
    assert len(store.puts) == 1 + 2
    assert len([name for name in second.names if name.startswith(PLACE.prefix)]) == 2
    target = tmp_path / "back"
    target.mkdir()
    await Restorer(store, following).restore(checkpoint(2, second, generation=2), target, ())
    assert contents(target / "2") == {"frozen": frozen, "weights": after}


async def test_an_object_is_stored_again_long_before_it_is_gone(tmp_path: Path) -> None:
    assert OBJECT_REUSE_SECONDS_MAX + INHERITED_REUSE_SECONDS_MAX < OBJECT_SECONDS_MAX // 2
    write_step(tmp_path, 1, {"frozen": b"x"})
    store, clock = HurtStore(), Clock()
    sender = uploader(store, clock=clock)
    await sender.store(tmp_path, "1")
    clock.seconds = OBJECT_REUSE_SECONDS_MAX + 1
    store.puts.clear()
    await sender.store(tmp_path, "1")
    assert len(store.puts) == 3


async def test_what_was_removed_is_sent_again(tmp_path: Path) -> None:
    write_step(tmp_path, 1, {"frozen": b"x"})
    store = HurtStore()
    sender = uploader(store)
    stored = await sender.store(tmp_path, "1")
    store.puts.clear()
    sender.forget(stored.names)
    await sender.store(tmp_path, "1")
    assert len(store.puts) == 3


def test_only_folders_with_a_number_for_a_name_are_completed(tmp_path: Path) -> None:
    for name in ("10", "0020", "30.tmp", ".40", "step-50", "-60", "6e1", "٧", "9" * 16):
        (tmp_path / name).mkdir()
    (tmp_path / "70").write_text("a file")
    (tmp_path / "80").symlink_to(tmp_path / "10")
    assert completed(tmp_path) == {10: "10", 20: "0020"}
    assert completed(tmp_path / "not there") == {}


@pytest.mark.parametrize("kind", ["link", "link out", "linked folder", "pipe", "not text"])
async def test_what_is_not_plainly_a_file_is_never_stored(kind: str, tmp_path: Path) -> None:
    write_step(tmp_path, 1, {"a/weights": b"x"})
    odd = tmp_path / "1/a/odd"
    match kind:
        case "link":
            odd.symlink_to("weights")
        case "link out":
            odd.symlink_to("/etc/passwd")
        case "linked folder":
            odd.symlink_to(tmp_path, target_is_directory=True)
        case "pipe":
            os.mkfifo(odd)
        case _:
            odd.with_name(os.fsdecode(b"\xff")).write_bytes(b"x")
    store = HurtStore()
    with pytest.raises(FolderRefused):
        await uploader(store).store(tmp_path, "1")
    assert not store.puts


async def test_the_number_of_files_and_the_length_of_names_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FILES_MAX", 2)
    write_step(tmp_path, 1, dict.fromkeys("ab", b""))
    await uploader(HurtStore()).store(tmp_path, "1")
    write_step(tmp_path, 2, dict.fromkeys("abc", b""))
    with pytest.raises(FolderRefused, match="more than 2"):
        await uploader(HurtStore()).store(tmp_path, "2")
    write_step(tmp_path, 3, {"/".join(["x" * 200] * 6): b""})
    with pytest.raises(FolderRefused):
        await uploader(HurtStore()).store(tmp_path, "3")


async def test_a_folder_that_is_written_to_while_it_is_read_is_not_stored(tmp_path: Path) -> None:
    write_step(tmp_path, 1, {"a": noise(3), "b": b"x"})
    store = HurtStore()

    async def write(_: str) -> None:
        (tmp_path / "1/b").write_bytes(b"other")

    store.spoil = write
    with pytest.raises(FolderChanged):
        await uploader(store).store(tmp_path, "1")
    assert len(store.objects) == 3, "chunks that nothing names"


async def test_a_folder_that_vanishes_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(FolderChanged):
        await uploader(HurtStore()).store(tmp_path, "1")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "PUT_RETRY_SECONDS", 0.001)
