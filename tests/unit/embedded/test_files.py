"""Files of the data folder."""

import stat
from pathlib import Path

import pytest

from volt.embedded.files import TAIL_BYTES_MAX, TAIL_LINES_MAX, make_private_dir, tail, write_whole


def test_a_tail_holds_only_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(1_000)))
    assert tail(path, 0).splitlines() == [f"line {number}" for number in range(1_000 - TAIL_LINES_MAX, 1_000)]


def test_a_tail_begins_where_the_present_process_began_to_write(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\nafter\n")
    assert tail(path, len("before\n")) == "after"


def test_one_endless_line_gives_a_bounded_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (TAIL_BYTES_MAX + 1))
    assert len(tail(path, 0)) == TAIL_BYTES_MAX


def test_a_write_that_fails_leaves_the_old_file_and_no_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("file", b"old")]


def test_a_new_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    assert stat.S_IMODE(make_private_dir(tmp_path / "data").stat().st_mode) == 0o700
