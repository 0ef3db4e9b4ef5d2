"""The agent at work: follows its node's desired state, keeps its leases, offers its GPUs."""

import asyncio
from collections.abc import Coroutine

import structlog

from volt.contracts.bids import BidAccepted, BidRejected, Gpu, PlaceBid, Terms, WithdrawBid
from volt.contracts.errors import BusUnavailable, MalformedMessage, Refused, Unavailable
from volt.contracts.log import decode_event
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import Desired
from volt.contracts.streams import DESIRED, LOG
from volt.contracts.subjects import command_bid, desired, log_bid
from volt.runtime.ports import Bus
from volt_agent.checkpoints.lease import SharedStore
from volt_agent.domain import beat_of
from volt_agent.effects import Keeper
from volt_agent.gauge import Gauge
from volt_agent.heart import Heart
from volt_agent.node import Node
from volt_agent.process import ProcessRuntime
from volt_agent.settings import Settings

ANSWER_SECONDS_MAX = 30.0
FAREWELL_SECONDS_MAX = 5.0

_log = structlog.get_logger("volt.agent")


class Agent:
    """One node's agent, for one incarnation."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        incarnation: str,
        gpus: tuple[Gpu, ...],
        bus: Bus,
        runtime: ProcessRuntime,
        heart: Heart,
        checkpoints: SharedStore,
        gauge: Gauge | None = None,
    ) -> None:
        """`gauge` reads the GPUs, where a driver tells of them."""
        self._settings, self._id, self._incarnation, self._bus = settings, node, incarnation, bus
        self._gpus, self._heart = gpus, heart
        heart.on_acknowledged = self._on_acknowledged
        uuids = frozenset(gpu.uuid for gpu in gpus)
        self._node = Node(node, settings, uuids, bus, runtime, self._heart, self._on_changed, checkpoints, gauge)
        self._keepers: dict[str, Keeper] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._decoder: Decoder[Desired] = Decoder(Desired, bytes_max=DESIRED.message_bytes_max)
        self._reflected_seq = 0

    async def run(self) -> None:
        """Beats, offers the GPUs and runs what is leased, until cancelled; then ends what runs and takes its leave.

        Raises Refused if the bid is rejected, HeartStopped if another agent is this node.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heart.run())
            # Until a beat of its own is stored this agent is nobody: it neither offers nor touches what is leased.
            await self._heart.beating()
            following = tasks.create_task(self._follow(tasks))
            try:
                tasks.create_task(self._tell_steps())
                self._watch_gpus()
                await self._offer()
                await asyncio.Event().wait()
            finally:
                if self._node.gauge is not None:
                    self._node.gauge.stop()
                following.cancel()
                await asyncio.shield(self._take_leave())

    async def _tell_steps(self) -> None:
        """Steps of workloads ride on the beats."""
        while True:
            await asyncio.sleep(self._settings.timing.beat_ms / 1000)
            self._on_changed()

    def _watch_gpus(self) -> None:
        gauge = self._node.gauge
        if gauge is not None:
            gauge.on_read, gauge.on_xid = self._heart.say_gpus, self._heart.say_xid
            gauge.start()

    async def _offer(self) -> None:
        bid = PlaceBid(
            account=self._settings.account,
            node=self._id,
            request_id=f"bid-{self._incarnation}",
            gpus=self._gpus,
            terms=Terms(ask_microusd_per_gpu_hour=self._settings.price),
            place=self._settings.place,
            runtime=self._settings.runtime,
        )
        await self._bus.publish(command_bid(bid.account, bid.node), encode(bid), message_id=bid.request_id)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await self._answered(bid)
        except TimeoutError as error:
            raise Unavailable(f"the bid was not answered within {ANSWER_SECONDS_MAX:.0f} s") from error
        _log.info("offered", gpus=len(self._gpus), ask_microusd_per_gpu_hour=self._settings.price)

    async def _answered(self, bid: PlaceBid) -> None:
        async for batch in self._bus.read(LOG.name, [log_bid(bid.account, bid.node)]):
            for record in batch.records:
                match decode_event(record.data):
                    case BidAccepted(request_id=request_id) if request_id == bid.request_id:
                        return
                    case BidRejected(request_id=request_id, reason=reason) if request_id == bid.request_id:
                        raise Refused(reason)
                    case _:
                        continue

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        async for batch in self._bus.read(DESIRED.name, [desired(self._settings.account, self._id)]):
            for record in batch.records:
                try:
                    wanted = self._decoder.decode(record.data)
                except MalformedMessage as error:
                    _log.error("desired_unreadable", seq=record.seq, error=str(error))
                    continue
                self._converge(wanted, tasks)

    def _converge(self, wanted: Desired, tasks: asyncio.TaskGroup) -> None:
        if wanted.log_seq < self._reflected_seq:
            return
        self._reflected_seq = wanted.log_seq
        for lease in wanted.leases:
            if lease.lease in self._keepers:
                self._keepers[lease.lease].desire(lease)
            else:
                keeper = self._keepers[lease.lease] = Keeper(self._node, lease)
                self._keeping[lease.lease] = tasks.create_task(self._keep(keeper))
        for unlisted in self._keepers.keys() - {lease.lease for lease in wanted.leases}:
            self._keepers[unlisted].unlist()

    async def _keep(self, keeper: Keeper) -> None:
        await keeper.keep()
        self._keepers.pop(keeper.desired.lease, None)
        self._keeping.pop(keeper.desired.lease, None)
        self._on_changed()

    def _on_changed(self) -> None:
        beats = (beat_of(lease, keeper.local, keeper.steps) for lease, keeper in sorted(self._keepers.items()))
        self._heart.say([beat for beat in beats if beat is not None])

    def _on_acknowledged(self, sent_ms: int) -> None:
        for keeper in self._keepers.values():
            keeper.extend(sent_ms)

    async def _take_leave(self) -> None:
        """Ends what runs, takes the bid back and beats a last time, within `FAREWELL_SECONDS_MAX` each."""
        for keeping in self._keeping.values():
            keeping.cancel()
        await asyncio.gather(*(_within(keeper.abandon()) for keeper in self._keepers.values()))
        if self._heart.stopped:
            return  # Whoever is this node now keeps its bid.
        withdrawal = WithdrawBid(
            account=self._settings.account, node=self._id, request_id=f"withdraw-{self._incarnation}"
        )
        subject = command_bid(withdrawal.account, withdrawal.node)
        await _within(self._bus.publish(subject, encode(withdrawal), message_id=withdrawal.request_id))
        await _within(self._heart.leave())


async def _within(farewell: Coroutine[None, None, object]) -> None:
    try:
        async with asyncio.timeout(FAREWELL_SECONDS_MAX):
            await farewell
    except (TimeoutError, BusUnavailable) as error:
        _log.warning("farewell_cut_short", error=repr(error))
