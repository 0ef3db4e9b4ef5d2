"""Ports that stay the same from one start to the next."""

import socket
from pathlib import Path

import pytest

from volt.embedded.errors import FileUnreadable, NoFreePort
from volt.embedded.ports import LOOPBACK, PORT_FIRST, PORT_LAST, is_free, remembered_ports

NAMES = ("nats", "valkey", "gateway")


def test_the_next_start_gets_the_same_ports(tmp_path: Path) -> None:
    first = remembered_ports(tmp_path / "ports.json", NAMES)
    assert len(set(first.values())) == len(NAMES)
    assert remembered_ports(tmp_path / "ports.json", NAMES) == first


def test_only_a_port_that_was_taken_meanwhile_changes(tmp_path: Path) -> None:
    first = remembered_ports(tmp_path / "ports.json", NAMES)
    with socket.create_server((LOOPBACK, first["valkey"])):
        second = remembered_ports(tmp_path / "ports.json", NAMES)
    assert {name for name in NAMES if second[name] != first[name]} == {"valkey"}
    assert remembered_ports(tmp_path / "ports.json", NAMES) == second


def test_ports_lie_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    ports = remembered_ports(tmp_path / "ports.json", NAMES).values()
    assert all(PORT_FIRST <= port <= PORT_LAST < 32_768 for port in ports)


def test_a_name_that_is_new_gets_a_port_and_the_known_ones_keep_theirs(tmp_path: Path) -> None:
    first = remembered_ports(tmp_path / "ports.json", NAMES[:2])
    second = remembered_ports(tmp_path / "ports.json", NAMES)
    assert second == first | {"gateway": second["gateway"]}


def test_two_names_never_share_a_port_even_if_the_file_says_so(tmp_path: Path) -> None:
    port = next(iter(remembered_ports(tmp_path / "ports.json", ["nats"]).values()))
    (tmp_path / "ports.json").write_text(f'{{"nats": {port}, "valkey": {port}}}')
    ports = remembered_ports(tmp_path / "ports.json", ["nats", "valkey"])
    assert ports["nats"] == port != ports["valkey"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"nats": "x"}', '{"nats": 0}', '{"nats": 70000}'])
def test_a_spoilt_file_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(content)
    with pytest.raises(FileUnreadable, match=r"ports\.json.*remove it"):
        remembered_ports(path, NAMES)


def test_a_listening_port_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        assert not is_free(server.getsockname()[1])
    assert is_free(_closed_port())


def test_no_free_port_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr("volt.embedded.ports.PORT_FIRST", taken)
        monkeypatch.setattr("volt.embedded.ports.PORT_LAST", taken)
        with pytest.raises(NoFreePort, match=str(taken)):
            remembered_ports(tmp_path / "ports.json", ["nats"])
    assert not list(tmp_path.iterdir())


def _closed_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
    return port
