"""One job on two hosts, followed through the log and through what its processes wrote."""

import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.hosts.house import BUYER, House, until
from tests.hosts.progress import Run, broken, is_gone, now_ns, runs
from tests.support.losses import all_cleared, assert_each_loss_has_one_replacement, gangs
from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.contracts.clusters import ClusterForming, ClusterReady, ClusterReleased, MemberJoined, MemberLost
from volt.contracts.ids import LeaseId, job_id
from volt.contracts.jobs import ReleaseJob, RequestJob, Workload
from volt.contracts.ledger import JobClosed
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeLost

WORKER = Path(__file__).with_name("worker.py")
RANKS = (0, 1)


@dataclass(frozen=True)
class Bill:
    """What a lease was charged for, and for how long its processes made steps."""

    lease: LeaseId
    billable_ms: int
    ran_ms: int


E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Job:
    """A gang of two ranks, on a host each."""

    house: House
    id: str
    since: int
    """How many events the log had when it was asked for."""

    def of(self, kind: type[E]) -> list[E]:
        """The job's events of a kind."""
        return [event for event in self._events if isinstance(event, kind)]

    def lost_nodes(self) -> list[str]:
        """The hosts that were called lost since the job was asked for, in the order of the log."""
        events = self.house.events[self.since :]
        return [self.house.agent_of(event.node) for event in events if isinstance(event, NodeLost)]

    @property
    def generation(self) -> int:
        """The last that has formed."""
        return self.of(ClusterForming)[-1].generation

    def host(self, rank: int) -> str:
        """Where a rank is, in the last generation that has formed."""
        members = {member.rank: member for member in self.of(ClusterForming)[-1].members}
        # Who is lost while it forms is followed by another at its rank.
        joined = [event.member for event in self.of(MemberJoined) if event.generation == self.generation]
        members |= {member.rank: member for member in joined}
        return self.house.agent_of(members[rank].node)

    def runs(self) -> list[Run]:
        return runs(self.house.steps, self.id)

    def run(self, rank: int) -> Run:
        """The last process of a rank."""
        return [run for run in self.runs() if run.rank == rank][-1]

    async def runs_on(self) -> None:
        """Waits until the last generation is ready and each of its ranks makes steps again."""
        asked_ns = now_ns()

        def does() -> bool:
            ready = {event.generation for event in self.of(ClusterReady)}
            at_work = {run.rank for run in self.runs() if run.generation == self.generation and run.ended_ns > asked_ns}
            return self.generation in ready and at_work == set(RANKS)

        await until(does)

    async def loses(self, host: str) -> None:
        """Waits until a host is called lost."""
        await until(lambda: host in self.lost_nodes())

    async def ready(self, generation: int) -> None:
        await until(lambda: generation in {event.generation for event in self.of(ClusterReady)})

    async def release(self) -> None:
        command = ReleaseJob(account=BUYER, request_id=f"release-{self.id}", job=self.id)
        await self.house.send(command, command.request_id)

    async def ends_well(self) -> None:
        """Releases it, and holds the files and the log to all that must be true of them, whatever happened."""
        await self.release()
        await until(lambda: [event.reason for event in self.of(ClusterReleased)] == ["released"])
        await until(lambda: all_cleared(self._events))
        await self.house.all_alive()
        assert_each_loss_has_one_replacement(self._events)
        wrong = list(self._wrong())
        assert wrong == [], "\n".join(wrong)

    def _wrong(self) -> Iterator[str]:
        yield from (f"{run} lives on" for run in self.runs() if not is_gone(run.pid))
        yield from broken(runs(self.house.steps))
        yield from (f"blamed: {event}" for event in self.of(MemberLost) if event.cause != "node_lost")
        entries = [seen.entry for seen in self.house.observer.all]
        yield from map(str, audit(entries).findings)
        yield from map(str, audit_market(entries).findings)

    @property
    def _events(self) -> list[Event]:
        return [seen.entry.event for seen in self.house.observer.by_job.get(self.id, ())]


@asynccontextmanager
async def running(house: House) -> AsyncIterator[Job]:
    """A job from the first steps of each rank on; at the end it has to end well."""
    async with forming(house) as job:
        await job.runs_on()
        yield job


@asynccontextmanager
async def forming(house: House) -> AsyncIterator[Job]:
    """One GPU on each of two hosts, from the grant on; at the end it has to end well.

    A test that fails gives its hosts back too: the next one needs them.
    """
    request = _request(house)
    job = Job(house, job_id(BUYER, request.request_id), len(house.events))
    await house.send(request, request.request_id)
    try:
        await until(lambda: bool(job.of(ClusterForming)))
        yield job
    except BaseException:
        await job.release()
        raise
    await job.ends_well()


def _request(house: House) -> RequestJob:
    command = (sys.executable, "-I", "-S", str(WORKER), str(house.steps))
    return RequestJob(
        account=BUYER,
        request_id=f"hosts-{secrets.token_hex(6)}",
        gpu="h100-80gb",
        count=len(RANKS),
        nodes=len(RANKS),
        workload=Workload(kind="ddp", command=command, processes_per_node=1),
        max_price_microusd_per_gpu_hour=2_500_000,
    )


async def closed(house: House) -> list[Bill]:
    """Waits for the last bill of every job that was ready; each of its leases that ran."""
    ready = {event.job for event in house.events if isinstance(event, ClusterReady)}
    await until(lambda: ready <= {event.job for event in house.events if isinstance(event, JobClosed)})
    whose = {grant.lease: (gang.job, frozenset(grant.gpus)) for gang in gangs(house.events) for grant in gang.grants}
    ran_ms = dict.fromkeys(whose.values(), 0)
    for run in runs(house.steps):
        ran_ms[run.job, run.gpus] += run.ran_ms
    lines = [line for event in house.events if isinstance(event, JobClosed) for line in event.lines]
    return [Bill(line.lease, line.billable_ms, ran_ms[whose[line.lease]]) for line in lines]
