"""A service as it lives and dies: its engine is the one of production, its state dies with each of its lives."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Generic, TypeVar

from volt.contracts.streams import COMMANDS
from volt.runtime.broker import DELIVERIES_MAX, retry_delay_seconds
from volt.runtime.engine import Definition, Engine, Verdict
from volt.runtime.ports import Bus, Clock, Record
from volt_simulator.wire import Link, Network

S = TypeVar("S")
Beside = Callable[[Engine[S], Link, Clock], tuple[Coroutine[None, None, None], ...]]


POSTHUMOUS_SHARE = 0.5
"""How often what a process was writing as it died is stored all the same, up to so long after."""
POSTHUMOUS_SECONDS_MAX = 3.0


class MortalLink(Link):
    """The way of one life of a service, which may end around any write."""

    def __init__(self, network: Network, chance: Random, death_permyriad: int) -> None:
        super().__init__(network, chance)
        self.died = asyncio.Event()
        self.death_permyriad = death_permyriad

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        if self._is_dying():
            if self._chance.random() < POSTHUMOUS_SHARE:
                seconds = self._chance.random() * POSTHUMOUS_SECONDS_MAX
                self._network.arrive_later(seconds, subject, data, expected_seq)
            await asyncio.Event().wait()
        seq = await super().publish(subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)
        if self._is_dying():
            await asyncio.Event().wait()
        return seq

    def _is_dying(self) -> bool:
        """Whether the service is dead, now or before. The dead wait for ever, that is until they are cleared away."""
        if self._chance.randrange(10_000) < self.death_permyriad:
            self.died.set()
        return self.died.is_set()


def nothing_beside(_engine: Engine[S], _bus: Bus, _clock: Clock) -> tuple[Coroutine[None, None, None], ...]:
    """For a service that is all engine."""
    return ()


class Service(Generic[S]):
    """What outlives a service's lives: the place of its durable consumer."""

    def __init__(
        self,
        definition: Definition[S],
        network: Network,
        clock: Clock,
        tick_ms: int,
        chance: Random,
        commands: tuple[str, ...] = (),
        beside: Beside[S] = nothing_beside,
    ) -> None:
        self.name = definition.name
        self.lives = 0
        self.dead_letters: list[str] = []
        self.stuck: dict[str, str] = {}
        self.death_permyriad = 0
        self.cut_until = 0.0
        self._definition, self._network, self._clock, self._tick_ms = definition, network, clock, tick_ms
        self._chance, self._commands, self._beside = chance, commands, beside
        self._answered_seq = 0
        self._down_seconds = 0.0
        self._link: MortalLink | None = None

    def die(self, down_seconds: float) -> None:
        """Ends this life at the next thing that it does; the next begins after so long."""
        if self._link is not None:
            self._down_seconds = down_seconds
            self._link.died.set()

    def cut(self, until: float) -> None:
        """It does not reach the bus until this instant of the loop."""
        self.cut_until = until
        if self._link is not None:
            self._link.cut_until = until

    def spare(self) -> None:
        """From now on it does not die by itself."""
        self.death_permyriad = 0
        if self._link is not None:
            self._link.death_permyriad = 0

    async def live(self) -> None:
        """Lives, dies and starts afresh from the log, until cancelled."""
        while True:
            self.lives += 1
            link = self._link = MortalLink(self._network, self._chance, self.death_permyriad)
            link.cut_until = self.cut_until
            running = asyncio.create_task(self._run(link))
            death = asyncio.create_task(link.died.wait())
            try:
                await asyncio.wait({running, death}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
            finally:
                running.cancel()
                death.cancel()
                await asyncio.gather(running, death, return_exceptions=True)
            await asyncio.sleep(self._down_seconds)
            self._down_seconds = 0.2

    async def _run(self, link: MortalLink) -> None:
        engine = Engine(self._definition, link, self._clock, self._tick_ms)
        self.stuck = engine.stuck
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engine.run())
            for task in self._beside(engine, link, self._clock):
                tasks.create_task(task)
            if self._commands:
                tasks.create_task(self._consume(engine, link))

    async def _consume(self, engine: Engine[S], link: Link) -> None:
        await engine.caught_up()
        async for batch in link.read(COMMANDS.name, self._commands, after_seq=self._answered_seq):
            for record in batch.records:
                await self._deliver(engine, link, record)
                self._answered_seq = record.seq

    async def _deliver(self, engine: Engine[S], link: Link, record: Record) -> None:
        """Delivers one command until it is answered, as the durable consumer does with one in flight.

        An acknowledgement may be lost: then it is delivered again, though it is answered.
        """
        for delivery in range(1, 1_000_000):
            outcome = await engine.handle(record.subject, record.data, record.seq, record.at_ms)
            await link.until_up()
            if outcome.verdict is Verdict.DONE and not self._is_ack_lost():
                return
            if outcome.verdict is Verdict.DEAD or (outcome.verdict is Verdict.RETRY and delivery >= DELIVERIES_MAX):
                self.dead_letters.append(f"{self.name}: {record.subject}: {outcome.error}")
                return
            await self._clock.sleep(retry_delay_seconds(delivery))

    def _is_ack_lost(self) -> bool:
        return self._chance.randrange(10_000) < self._network.ack_loss_permyriad
