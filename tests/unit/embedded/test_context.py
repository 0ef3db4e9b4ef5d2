"""The file through which a client on this machine finds the control plane."""

import stat
from pathlib import Path

import pytest
import rich.pretty

from volt.contracts.errors import VoltError
from volt.embedded import Context, data_folder, read_context, write_context
from volt.embedded.errors import ContextMissing, FileUnreadable

CONTEXT = Context(
    nats_url="nats://127.0.0.1:15000",
    redis_url="redis://127.0.0.1:15001/0",
    gateway_url="http://127.0.0.1:15002",
    account="A123",
    api_key="volt_secret",
)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_context(tmp_path / "new" / "folder", CONTEXT)
    assert read_context(tmp_path / "new" / "folder") == CONTEXT


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "context.json"
    path.touch(mode=0o644)
    write_context(tmp_path, CONTEXT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["context.json"]


def test_showing_a_context_does_not_show_its_key() -> None:
    assert "volt_secret" not in f"{CONTEXT} {CONTEXT!r} {rich.pretty.pretty_repr(CONTEXT)}"


def test_a_folder_without_a_control_plane_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ContextMissing, match=r"volt up.*--data.*VOLT_DATA") as caught:
        read_context(tmp_path / "absent")
    assert isinstance(caught.value, VoltError)
    assert caught.value.code == "context_missing"


def test_a_spoilt_context_is_named(tmp_path: Path) -> None:
    (tmp_path / "context.json").write_text('{"nats_url": 5}')
    with pytest.raises(FileUnreadable, match=r"context\.json.*nats_url"):
        read_context(tmp_path)


def test_the_folder_is_the_named_one_else_that_of_the_environment_else_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("VOLT_DATA", str(tmp_path / "env"))
    assert data_folder(tmp_path / "named") == tmp_path / "named"
    assert data_folder() == tmp_path / "env"
    monkeypatch.delenv("VOLT_DATA")
    assert data_folder().name == "volt"
    assert data_folder().is_absolute()


def test_a_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_folder(Path("here")) == tmp_path / "here"
