"""A whole market on this machine for the time of a benchmark: control plane, agents, and an observer of the log."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from volt.cli.demo.farm import Node, Site, start_nodes
from volt.contracts.ids import job_id
from volt.contracts.jobs import ReleaseJob, RequestJob, Workload
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event, encode
from volt.contracts.nodes import NodeAlive
from volt.contracts.streams import LOG
from volt.contracts.subjects import command_job
from volt.embedded import SERVICES, ControlPlane, Limits
from volt.embedded.accounts import new_api_key, open_account
from volt.embedded.service import DEFAULT_LIMITS
from volt.runtime.log import Log, Unreadable
from volt.runtime.nats import NatsBus
from volt.runtime.telemetry import producing, trace_headers

START_SECONDS_MAX = 60.0
EVENT_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Seen:
    """An event with the instant at which the observer had it, nanoseconds of the monotonic clock."""

    at_ns: int
    entry: Entry


@dataclass
class Observer:
    """Keeps the log of a run, by job."""

    all: list[Seen] = field(default_factory=list)
    by_job: dict[str, list[Seen]] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def watch(self, bus: NatsBus) -> None:
        async for page in Log(bus).read(LOG.subjects):
            now_ns = time.monotonic_ns()
            for entry in page.entries:
                assert not isinstance(entry, Unreadable), entry
                self._take(Seen(now_ns, entry))
            async with self._changed:
                self._changed.notify_all()

    async def until(self, find: Callable[[], Seen | None]) -> Seen:
        """Waits until `find` finds something. Raises TimeoutError after `EVENT_SECONDS_MAX`."""
        async with asyncio.timeout(EVENT_SECONDS_MAX), self._changed:
            while (found := find()) is None:
                await self._changed.wait()
            return found

    async def event(self, job: str, kind: type[Event], generation: int = 0) -> Seen:
        """The first event of a kind about a job, in a generation if one is given."""
        return await self.until(lambda: self.find(job, kind, generation))

    def find(self, job: str, kind: type[Event], generation: int = 0) -> Seen | None:
        for seen in self.by_job.get(job, ()):
            event = seen.entry.event
            if isinstance(event, kind) and generation in (0, getattr(event, "generation", 0)):
                return seen
        return None

    def _take(self, seen: Seen) -> None:
        self.all.append(seen)
        event = seen.entry.event
        jobs = {gang.job for gang in event.gangs} if isinstance(event, MarketCleared) else {getattr(event, "job", "")}
        for job in jobs:
            self.by_job.setdefault(job, []).append(seen)


@dataclass(frozen=True)
class Market:
    """What a benchmark works with."""

    bus: NatsBus
    observer: Observer
    nodes: list[Node]
    buyer: str
    control_plane: ControlPlane

    def draft(self, command: tuple[str, ...]) -> tuple[str, RequestJob]:
        """A request for one GPU and one process on each of two nodes, and the job that it will be."""
        request = RequestJob(
            account=self.buyer,
            request_id=f"bench-{secrets.token_hex(6)}",
            gpu="h100-80gb",
            count=2,
            nodes=2,
            workload=Workload(kind="ddp", command=command, processes_per_node=1),
            max_price_microusd_per_gpu_hour=2_500_000,
        )
        return job_id(self.buyer, request.request_id), request

    async def send(self, request: RequestJob) -> int:
        """Publishes a request and returns the instant before, in nanoseconds."""
        requested_ns = time.monotonic_ns()
        subject = command_job(self.buyer)
        with producing("buyer", subject):
            headers = trace_headers()
            await self.bus.publish(subject, encode(request), message_id=request.request_id, headers=headers)
        return requested_ns

    async def request(self, command: tuple[str, ...]) -> tuple[str, int]:
        """Drafts and sends: the job, and the instant in nanoseconds."""
        job, request = self.draft(command)
        return job, await self.send(request)

    async def release(self, job: str) -> None:
        command = ReleaseJob(account=self.buyer, request_id=f"release-{job}", job=job)
        await self.bus.publish(command_job(self.buyer), encode(command), message_id=command.request_id)


@asynccontextmanager
async def market(
    sites: tuple[Site, ...],
    services: Mapping[str, Sequence[str]] = SERVICES,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncIterator[Market]:
    """Starts everything, yields when each node is alive and offered, and leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="volt-bench-") as name:
        folder = Path(name)
        async with ControlPlane(folder / "control", "embedded", services=services, limits=limits) as control_plane:
            bus = await NatsBus.connect(control_plane.nats_url, "benchmark")
            accounts = {operator: operator for operator in {site.operator for site in sites}}
            await asyncio.gather(*(open_account(bus, one, new_api_key()) for one in ("buyer", *accounts)))
            nodes = await start_nodes(folder / "nodes", control_plane.nats_url, accounts, sites)
            observer = Observer()
            watching = asyncio.create_task(observer.watch(bus))
            try:
                await _all_alive(observer, len(nodes))
                yield Market(bus, observer, nodes, "buyer", control_plane)
            finally:
                watching.cancel()
                await asyncio.gather(*(node.child.stop() for node in nodes))
                await bus.close()


async def _all_alive(observer: Observer, count: int) -> None:
    def alive() -> Seen | None:
        events = [seen for seen in observer.all if isinstance(seen.entry.event, NodeAlive)]
        return events[-1] if len({getattr(seen.entry.event, "node", "") for seen in events}) == count else None

    if count:
        await observer.until(alive)
