"""The helper saves a step whole or not at all, and finds the newest."""

import ast
import sys
from pathlib import Path

import pytest

from volt import checkpoint
from volt_agent.checkpoints.folders import completed, scan


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "not made yet"
    monkeypatch.setenv("VOLT_CHECKPOINT_DIR", str(folder))
    return folder


def test_what_is_saved_is_found_and_the_newest_counts_as_a_number(root: Path) -> None:
    assert checkpoint.latest() is None
    for step in (9, 10):
        with checkpoint.save(step) as folder:
            (folder / "deep").mkdir()
            (folder / "deep/weights").write_bytes(b"%d" % step)
    found = checkpoint.latest()
    assert found == checkpoint.Saved(10, root / "10")
    assert (found.folder / "deep/weights").read_bytes() == b"10"


def test_a_step_has_its_name_only_once_it_is_whole(root: Path) -> None:
    with checkpoint.save(1) as folder:
        (folder / "weights").write_bytes(b"half")
        assert completed(root) == {}
    assert completed(root) == {1: "1"}
    assert [found.path for found in scan(root / "1")] == ["weights"], "and an agent takes it"


def test_a_block_that_raises_saves_nothing_and_leaves_nothing(root: Path) -> None:
    with pytest.raises(FileNotFoundError), checkpoint.save(1) as folder:
        (folder / "weights").write_bytes((folder / "not there").read_bytes())
    assert list(root.iterdir()) == []
    assert checkpoint.latest() is None


def test_a_step_that_is_saved_is_never_changed(root: Path) -> None:
    with checkpoint.save(1):
        pass
    with pytest.raises(checkpoint.CheckpointExists), checkpoint.save(1):
        raise AssertionError("it must not come here")


def test_what_is_no_step_is_not_found(root: Path) -> None:
    for name in ("5.tmp", ".6-x.tmp", "seven", "٨"):
        (root / name).mkdir(parents=True)
    (root / "9").write_text("a file")
    assert checkpoint.latest() is None
    with pytest.raises(ValueError, match="-1"), checkpoint.save(-1):
        raise AssertionError("it must not come here")


def test_without_a_folder_nothing_is_found_and_saving_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VOLT_CHECKPOINT_DIR")
    assert checkpoint.latest() is None
    with pytest.raises(checkpoint.NoCheckpointFolder, match="VOLT_CHECKPOINT_DIR"), checkpoint.save(1):
        raise AssertionError("it must not come here")
    with checkpoint.save(1, tmp_path):
        pass
    assert checkpoint.latest(tmp_path) == checkpoint.Saved(1, tmp_path / "1")


@pytest.mark.parametrize(("local_rank", "writes"), [(None, True), ("0", True), ("1", False)])
def test_one_process_of_a_node_is_the_writer(
    local_rank: str | None, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert checkpoint.is_writer() is writes


def test_the_helper_needs_nothing_but_pythons_own_library() -> None:
    tree = ast.parse(Path(checkpoint.__file__).read_text())
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
