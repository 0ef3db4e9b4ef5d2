"""Buyers and providers: what they ask for, and when they change their minds."""

import asyncio
from random import Random

from msgspec.structs import replace

from volt.contracts.bids import ChangeBid, DrainNode, ResumeNode, WithdrawBid
from volt.contracts.errors import BusUnavailable
from volt.contracts.ids import AccountId, JobId, job_id
from volt.contracts.jobs import OpenAccount, ReleaseJob, RequestJob, ScaleJob, Workload
from volt.contracts.messages import Command, encode
from volt.contracts.subjects import command_account, command_bid, command_job
from volt.contracts.units import MS_PER_SECOND
from volt_simulator.plan import Fault, JobPlan, NodePlan
from volt_simulator.wire import Link, Network

RETRY_SECONDS = 1.0
ASK_MICROUSD_MIN, ASK_MICROUSD_MAX = 300_000, 2_000_000


class People:
    """All of them, over one way to the bus. They ask again until they hear that they were heard."""

    def __init__(self, network: Network, chance: Random) -> None:
        self._link, self._chance = Link(network, chance), chance

    async def open_account(self, account: AccountId) -> None:
        opening = OpenAccount(account=account, request_id="open", key_sha256="0" * 64)
        await self._ask(command_account(account), opening)

    async def sell_otherwise(self, fault: Fault, node: NodePlan) -> None:
        name, subject = f"{fault.kind}-{fault.at_ms}", command_bid(node.account, node.node)
        change = ChangeBid(account=node.account, node=node.node, request_id=name)
        match fault.kind:
            case "withdraws":
                await self._ask(subject, WithdrawBid(account=node.account, node=node.node, request_id=name))
            case "reprices":
                ask_microusd = self._chance.randrange(ASK_MICROUSD_MIN, ASK_MICROUSD_MAX)
                await self._ask(subject, replace(change, ask_microusd_per_gpu_hour=ask_microusd))
            case "drains":
                # The deadline is half-way, so that some clusters reach it and others are resumed before they moved.
                seconds = fault.for_ms // (2 * MS_PER_SECOND)
                drain = DrainNode(account=node.account, node=node.node, request_id=name, deadline_seconds=seconds)
                await self._ask(subject, drain)
                await asyncio.sleep(fault.for_ms / 1000)
                await self._ask(subject, ResumeNode(account=node.account, node=node.node, request_id=f"{name}-over"))
            case _:
                await self._ask(subject, replace(change, paused=True))
                await asyncio.sleep(fault.for_ms / 1000)
                await self._ask(subject, replace(change, request_id=f"{name}-over", paused=False))

    async def buy(self, job: JobPlan) -> None:
        await asyncio.sleep(job.at_ms / 1000)
        request = RequestJob(
            account=job.account,
            request_id=job.request,
            gpu=job.model,
            count=job.nodes * job.gpus_per_node,
            nodes=job.nodes,
            workload=Workload(kind=job.kind, command=("train",)),
            recovery=job.recovery,
            max_price_microusd_per_gpu_hour=job.cap_microusd,
            max_duration_seconds=job.max_duration_seconds,
            max_wait_seconds=job.max_wait_seconds,
        )
        await self._ask(command_job(job.account), request)
        async with asyncio.TaskGroup() as later:
            if job.scale_after_ms is not None:
                later.create_task(self._scale(job, job.scale_after_ms))
            if job.cancel_after_ms is not None:
                later.create_task(self._cancel(job, job.cancel_after_ms))

    async def release(self, job: JobPlan) -> None:
        release = ReleaseJob(account=job.account, request_id=f"{job.request}-release", job=_id(job))
        await self._ask(command_job(job.account), release)

    async def _scale(self, job: JobPlan, after_ms: int) -> None:
        await asyncio.sleep(after_ms / 1000)
        wish = ScaleJob(
            account=job.account,
            request_id=f"{job.request}-scale",
            job=_id(job),
            count=job.scale_to_nodes * job.gpus_per_node,
        )
        await self._ask(command_job(job.account), wish)

    async def _cancel(self, job: JobPlan, after_ms: int) -> None:
        await asyncio.sleep(after_ms / 1000)
        await self.release(job)

    async def _ask(self, subject: str, command: Command) -> None:
        """Whoever does not hear that it was heard asks again, in the same words."""
        while True:
            try:
                await self._link.publish(subject, encode(command))
            except BusUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


def _id(job: JobPlan) -> JobId:
    """The name that its job has, or would have."""
    return job_id(job.account, job.request)
