"""The gateway as a process, between a real nats-server, a real Valkey and the client library."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.nats_server import NatsServer
from tests.support.valkey_server import ValkeyServer
from tests.unit.gateway import story
from tests.unit.gateway.story import BUYER, JOB, Cluster
from tests.unit.gateway.world import answer_as_intake
from volt.contracts.errors import NotFound, VoltError
from volt.contracts.http import BODY_BYTES_MAX, Health
from volt.contracts.letters import LogLine, LogLines
from volt.contracts.messages import Event, encode
from volt.contracts.streams import COMMANDS, LOG, LOGS
from volt.contracts.subjects import logs
from volt.runtime.nats import NatsBus
from volt.runtime.views import drop_views_at, views_at
from volt.sdk import AsyncClient

SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.05


class GatewayProcess:
    """One `python -m volt_gateway`, which can be stopped, killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.nats, self.valkey = NatsServer(_made(folder / "nats")), ValkeyServer(_made(folder / "valkey"))
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port: int = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._log_path = folder / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it has said that it is ready."""
        read_fd, write_fd = os.pipe()
        env = os.environ | {
            "VOLT_NATS_URL": self.nats.url,
            "VOLT_REDIS_URL": self.valkey.url,
            "VOLT_GATEWAY_PORT": str(self._port),
            "VOLT_READY_FD": str(write_fd),
        }
        command = [sys.executable, "-m", "volt_gateway"]
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(command, env=env, pass_fds=[write_fd], stdout=output, stderr=output)
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as said:
            assert said.readline() == b"ready\n", self._log_path.read_text()

    def terminate(self) -> int:
        """SIGTERM; its exit code. Fails if it takes longer than `STOP_SECONDS_MAX`."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The module's gateway, with a bus and a Valkey of its own."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("gateway"))
    gateway.nats.start()
    gateway.valkey.start()
    gateway.start()
    yield gateway
    gateway.kill()
    gateway.valkey.kill()
    gateway.nats.kill()


class World:
    """A gateway and everybody around it. `client` speaks for the buyer of the story."""

    def __init__(self, gateway: GatewayProcess, bus: NatsBus, client: AsyncClient) -> None:
        self.gateway, self.bus, self.client = gateway, bus, client

    async def tell(self, *events: Event) -> None:
        """Appends events and waits until they are shown."""
        seq = 0
        for event in events:
            seq = await self.bus.publish(event.subject(), encode(event))
        await self.until(lambda health: health.status == "ok" and health.seq >= seq)

    async def until(self, condition: Callable[[Health], bool]) -> None:
        """Asks for its health until it is so."""
        async with asyncio.timeout(SECONDS_MAX):
            while not await self._healthy(condition):  # noqa: ASYNC110  # it is another process that is waited for
                await asyncio.sleep(POLL_SECONDS)

    async def write(self, node: str, text: str, *, last: bool = False) -> None:
        line = LogLine(generation=1, rank=0, stream="stdout", text=text)
        await self.bus.publish(logs(BUYER, JOB, node), encode(LogLines(node_rank=0, lines=(line,), last=last)))

    async def _healthy(self, condition: Callable[[Health], bool]) -> bool:
        try:
            return condition(await self.client.health())
        except VoltError:
            return False


@pytest.fixture
async def world(gateway: GatewayProcess) -> AsyncIterator[World]:
    """An empty log, empty views, and the accounts of the story."""
    bus = await NatsBus.connect(gateway.nats.url, "test")
    for stream in (LOG, COMMANDS, LOGS):
        await bus.client.jetstream().purge_stream(stream.name)
    await drop_views_at(gateway.valkey.url)
    intake = asyncio.create_task(answer_as_intake(bus))
    try:
        async with AsyncClient(gateway.url, story.BUYER_KEY) as client:
            world = World(gateway, bus, client)
            await world.tell(story.account_opened(), story.account_opened(story.STRANGER, "mallory's key"))
            yield world
    finally:
        intake.cancel()
        await asyncio.gather(intake, return_exceptions=True)
        await bus.close()


async def test_a_job_is_requested_shown_and_released(world: World) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        job = await world.client.jobs.create(gpu="h100", count=4, command=["python", "train.py"], idempotency_key="k1")
        again = await world.client.jobs.create(
            gpu="h100", count=4, command=["python", "train.py"], idempotency_key="k1"
        )
        assert (job.state, again.id) == ("admitted", job.id)
        assert [one.id for one in (await world.client.jobs.list()).jobs] == [job.id]
        assert (await world.client.jobs.release(job.id)).state == "released"
        async with AsyncClient(world.gateway.url, "mallory's key") as stranger:
            with pytest.raises(NotFound):
                await stranger.jobs.get(job.id)


async def test_streams_follow_the_job_to_its_end(world: World) -> None:
    await world.tell(story.admitted(), story.funded(), story.cleared(story.gang("n1")))
    output = asyncio.create_task(_texts(world.client))
    happenings = asyncio.create_task(_happenings(world.client))
    await world.write("n1", "one")
    await world.tell(Cluster().ready(), Cluster().released())
    await world.write("n1", "last words", last=True)
    await world.tell(story.closed(returned_microusd=1))
    async with asyncio.timeout(SECONDS_MAX):
        assert await output == ["one", "last words"]
        assert (await happenings)[-3:] == ["ClusterReady", "ClusterReleased", "JobClosed"]


async def test_streams_go_on_over_a_restart_and_sigterm_ends_cleanly_with_them_open(world: World) -> None:
    await world.tell(story.admitted(), story.funded(), story.cleared(story.gang("n1")))
    await world.write("n1", "before")
    first = asyncio.Event()
    output = asyncio.create_task(_texts(world.client, first))
    async with asyncio.timeout(SECONDS_MAX):
        await first.wait()
    assert await asyncio.to_thread(world.gateway.terminate) == 0
    restart = asyncio.create_task(asyncio.to_thread(world.gateway.start))
    await world.write("n1", "after", last=True)
    await restart
    await world.tell(story.release_accepted())
    async with asyncio.timeout(SECONDS_MAX):
        assert await output == ["before", "after"]


async def test_a_killed_gateway_goes_on_where_the_views_are(world: World) -> None:
    whole = story.whole_story()[3:]
    await world.tell(*whole[:12])
    world.gateway.kill()
    for event in whole[12:]:
        await world.bus.publish(event.subject(), encode(event))
    await asyncio.to_thread(world.gateway.start)
    await world.tell(story.credited(story.STRANGER))
    bill = await world.client.jobs.bill(JOB)
    assert (bill.due_usd, bill.closed) == ("0.000300", True)
    assert (await world.client.balance()).wallet_usd == "-0.000300"


@pytest.mark.parametrize("how", ["flushed", "dropped", "killed"])
async def test_views_that_are_gone_are_built_again(world: World, how: str) -> None:
    await world.tell(*story.whole_story()[2:])
    before = (await world.client.jobs.get(JOB), await world.client.balance(), await world.client.statement())
    if how == "flushed":
        async with views_at(world.gateway.valkey.url, connections_max=1) as redis:
            await redis.flushall()
    elif how == "dropped":
        await drop_views_at(world.gateway.valkey.url)
    else:
        world.gateway.valkey.kill()
        await world.until(lambda health: health.views == "views_unavailable")
        async with httpx.AsyncClient(base_url=world.gateway.url) as http:
            answer = await http.get("/v1/jobs", headers={"Authorization": f"Bearer {story.BUYER_KEY}"})
        assert (answer.status_code, answer.json()["code"]) == (503, "views_unavailable")
        world.gateway.valkey.start()
    await world.until(lambda health: health.status == "ok")
    assert (await world.client.jobs.get(JOB), await world.client.balance(), await world.client.statement()) == before


async def test_a_bus_that_is_away_is_told_and_comes_back(world: World) -> None:
    world.gateway.nats.kill()
    try:
        await world.until(lambda health: health.bus == "bus_unavailable")
        async with httpx.AsyncClient(base_url=world.gateway.url, timeout=SECONDS_MAX) as http:
            headers = {"Authorization": f"Bearer {story.BUYER_KEY}"}
            body = {"gpu": "h100", "count": 4, "workload": {"command": ["x"]}}
            answer = await http.post("/v1/jobs", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "bus_unavailable")
    finally:
        await asyncio.to_thread(world.gateway.nats.start)
    await world.until(lambda health: health.status == "ok")
    async with asyncio.timeout(SECONDS_MAX):
        assert (await world.client.jobs.create(gpu="h100", count=4, command=["x"])).state in ("admitted", "requested")


async def test_a_body_of_two_megabytes_is_refused_at_its_head(world: World) -> None:
    headers = {"Authorization": f"Bearer {story.BUYER_KEY}"}
    async with httpx.AsyncClient(base_url=world.gateway.url, headers=headers) as http:
        for _ in range(5):
            answer = await http.post("/v1/jobs", content=b"x" * 2_000_000)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert (await http.get("/v1/balance")).status_code == 200
    host, port = "127.0.0.1", int(world.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {2 * BODY_BYTES_MAX}\r\n"
    writer.write(f"{head}Authorization: {headers['Authorization']}\r\n\r\n".encode())
    async with asyncio.timeout(SECONDS_MAX):
        assert (await reader.readline()).split()[1] == b"413"
    writer.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _texts(client: AsyncClient, first: asyncio.Event | None = None) -> list[str]:
    found: list[str] = []
    async for output in client.jobs.logs(JOB):
        found += [line.text for line in output.lines]
        if first is not None:
            first.set()
    return found


async def _happenings(client: AsyncClient) -> list[str]:
    return [happening.event async for happening in client.jobs.events(JOB)]
