"""Loopback ports that stay the same from one start to the next, so that agents find the bus again.

They lie below the range from which the kernel picks ports for outgoing connections (32768 and up on
Linux, 49152 and up on macOS). Otherwise, while a server restarts, any outgoing connection could take its
port, and a client that retries it could even be connected to itself.
"""

import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from volt.embedded.errors import FileUnreadable, NoFreePort
from volt.embedded.files import read_if_present, write_whole

LOOPBACK = "127.0.0.1"
PORT_FIRST = 15_000
PORT_LAST = 31_999
PORT_ATTEMPTS_MAX = 200

_Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


def remembered_ports(path: Path, names: Sequence[str]) -> dict[str, int]:
    """A free port for each name: the one in the file `path` when it is still free, else a new one.

    The answer is written to `path`. Raises FileUnreadable, NoFreePort.
    """
    known = _read(path)
    ports: dict[str, int] = {}
    for name in names:
        port = known.get(name)
        reusable = port is not None and port not in ports.values() and is_free(port)
        ports[name] = port if reusable and port is not None else _new_port({*known.values(), *ports.values()})
    if ports != known:
        write_whole(path, msgspec.json.encode(ports))
    return ports


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Both servers listen with SO_REUSEADDR, so connections in TIME_WAIT do not stand in their way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _read(path: Path) -> dict[str, int]:
    data = read_if_present(path)
    if data is None:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, _Port])
    except msgspec.DecodeError as error:
        raise FileUnreadable(path, str(error)) from error


def _new_port(taken: set[int]) -> int:
    for _ in range(PORT_ATTEMPTS_MAX):
        port = random.randint(PORT_FIRST, PORT_LAST)
        if port not in taken and is_free(port):
            return port
    raise NoFreePort(PORT_ATTEMPTS_MAX, PORT_FIRST, PORT_LAST)
