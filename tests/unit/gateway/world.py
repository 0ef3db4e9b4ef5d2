"""A gateway in this process: the bus in memory, a real Valkey, and somebody who answers as bid-intake would."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from redis.asyncio import Redis

from tests.unit.gateway import story
from volt.contracts import jobs
from volt.contracts.errors import Reason
from volt.contracts.ids import digest, job_id
from volt.contracts.jobs import ReleaseJob, RequestJob, ScaleJob
from volt.contracts.letters import LogLine, LogLines
from volt.contracts.messages import Command, Decoder, Event, encode
from volt.contracts.streams import ALL, COMMANDS
from volt.contracts.subjects import JOB_COMMANDS, logs
from volt.runtime.memory import MemoryBus, MemoryClock
from volt.runtime.nats import SystemClock
from volt.runtime.ports import Bus
from volt_gateway.api import make_app
from volt_gateway.effects import Projector
from volt_gateway.feed import Feed
from volt_gateway.gateway import Gateway
from volt_gateway.views import ViewStore

SECONDS_MAX = 20.0
POLL_SECONDS = 0.02
REFUSED_MODEL = "refused"

_decoder: Decoder[Command] = Decoder(RequestJob, ReleaseJob, ScaleJob)


@dataclass
class World:
    """What a test has at hand. `client` speaks for the buyer of the story."""

    bus: MemoryBus
    redis: Redis
    gateway: Gateway
    client: httpx.AsyncClient

    async def tell(self, *events: Event) -> None:
        """Appends events and waits until they are shown."""
        seq = 0
        for event in events:
            seq = await self.bus.publish(event.subject(), encode(event))
        await self.until_shown(seq)

    async def until_shown(self, seq: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while (position := await self.gateway.views.position()) is None or position.seq < seq:
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=POLL_SECONDS)

    async def write(self, node: str, *texts: str, job: str = story.JOB, last: bool = False) -> None:
        """Output of a workload."""
        lines = tuple(LogLine(generation=1, rank=0, stream="stdout", text=text) for text in texts)
        message = LogLines(node_rank=0, lines=lines, last=last)
        await self.bus.publish(logs(story.BUYER, job, node), encode(message))

    async def commands(self) -> list[Command]:
        """Every command that was handed over."""
        async for batch in self.bus.read(COMMANDS.name, [JOB_COMMANDS]):
            return [_decoder.decode(record.data) for record in batch.records]
        raise AssertionError("a read ended")


@asynccontextmanager
async def running(redis: Redis, *, intake: bool = True) -> AsyncIterator[World]:
    """A gateway that is caught up, with the accounts of the story; without `intake` nobody answers."""
    bus = MemoryBus(MemoryClock())
    for spec in ALL:
        await bus.ensure(spec)
    views, feed = ViewStore(redis), Feed()
    gateway, projector = Gateway(bus, views, feed), Projector(bus, SystemClock(), views, feed)
    tasks = [asyncio.create_task(projector.run())] + ([asyncio.create_task(answer_as_intake(bus))] if intake else [])
    app = make_app(gateway)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]  # two spellings of ASGI
    headers = {"Authorization": f"Bearer {story.BUYER_KEY}"}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            world = World(bus, redis, gateway, client)
            await world.tell(story.account_opened(), story.account_opened(story.STRANGER, "mallory's key"))
            await projector.caught_up()
            yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answer_as_intake(bus: Bus) -> None:
    """Answers about jobs as bid-intake would, until cancelled. A node has two GPUs."""
    admitted: dict[str, str] = {}
    async for batch in bus.read(COMMANDS.name, [JOB_COMMANDS]):
        for record in batch.records:
            event = _answer(_decoder.decode(record.data), record.seq, admitted)
            if event is not None:
                await bus.publish(event.subject(), encode(event))


def _answer(command: Command, seq: int, admitted: dict[str, str]) -> Event | None:
    match command:
        case RequestJob():
            return _answer_to_request(command, admitted)
        case ReleaseJob(account=account, job=job) if job in admitted:
            return jobs.JobReleaseAccepted(account=account, job=job, request_id=command.request_id, at_ms=story.T0_MS)
        case ScaleJob():
            return _answer_to_wish(command)
        case ReleaseJob(account=account):
            reason = Reason(code="not_found", message="no such job")
            subject = "cmd.alice.job"
            return jobs.CommandRejected(
                account=account, at_ms=story.T0_MS, command_subject=subject, command_seq=seq, reason=reason
            )
    return None


def _answer_to_wish(command: ScaleJob) -> Event:
    account, job, request, fingerprint = command.account, command.job, command.request_id, digest(encode(command))
    nodes, rest = divmod(command.count, 2)
    if rest:
        return jobs.JobScaleRejected(
            account=account,
            job=job,
            request_id=request,
            at_ms=story.T0_MS,
            request_digest=fingerprint,
            reason=story.REASON,
        )
    return jobs.JobScaleAccepted(
        account=account, job=job, request_id=request, at_ms=story.T0_MS, request_digest=fingerprint, nodes=nodes
    )


def _answer_to_request(command: RequestJob, admitted: dict[str, str]) -> Event | None:
    job, fingerprint = job_id(command.account, command.request_id), digest(encode(command))
    if admitted.get(job) == fingerprint:
        return None
    reason = story.REASON if command.gpu == REFUSED_MODEL else Reason(code="request_id_reused", message="used before")
    if job in admitted or command.gpu == REFUSED_MODEL:
        return jobs.JobRejected(
            account=command.account,
            job=job,
            request_id=command.request_id,
            at_ms=story.T0_MS,
            request_digest=fingerprint,
            reason=reason,
        )
    admitted[job] = fingerprint
    return jobs.JobAdmitted(
        account=command.account,
        job=job,
        request_id=command.request_id,
        at_ms=story.T0_MS,
        request_digest=fingerprint,
        spec=story.SPEC,
    )
