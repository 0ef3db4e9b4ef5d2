"""The matcher as the runtime runs it, over a bus in memory: crashes, races and outages change no grant."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.unit.matcher.builders import (
    AT_MS,
    A,
    Market,
    admitted,
    alive,
    bid,
    cleared,
    funded,
    lost,
    members_funded,
    released,
    spec,
    wanted,
)
from volt.audit.market import audit_market
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Event, encode
from volt.contracts.streams import LOG
from volt.contracts.subjects import LOG_MARKET
from volt.runtime.engine import Engine
from volt.runtime.log import read_entry
from volt.runtime.memory import MemoryBus, MemoryClock, settle
from volt.runtime.ports import SequenceConflict
from volt_matcher import effects as matcher_effects
from volt_matcher.clear import clear
from volt_matcher.effects import DEFINITION, effects
from volt_matcher.state import State

TICK_MS = 100


class ContestedBus(MemoryBus):
    """Counts conflicts; a `rival` message gets in just before the next market message."""

    rival: MarketCleared | None = None
    conflicts = 0

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        if subject == LOG_MARKET and self.rival is not None:
            rival, self.rival = self.rival, None
            await super().publish(subject, encode(rival), expected_seq=expected_seq)
        try:
            return await super().publish(
                subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers
            )
        except SequenceConflict:
            self.conflicts += 1
            raise


class World:
    """A bus with the log on it, and whatever matchers run."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.bus = ContestedBus(self.clock)

    async def add(self, *events: Event) -> None:
        """Events of the other services, all of them in the log before the matcher gets a turn."""
        for event in events:
            await self.bus.publish(event.subject(), encode(event))
        await settle()

    async def log(self) -> list[Entry]:
        """Everything in the log, audited."""
        entries = list[Entry]()
        async for batch in self.bus.read(LOG.name, ("log.>",)):
            entries += [entry for entry in map(read_entry, batch.records) if isinstance(entry, Entry)]
            if batch.pending == 0:
                break
        for number, entry in enumerate(entries, start=1):
            assert entry.seq == number
        assert audit_market(entries).findings == ()
        return entries

    async def said(self) -> list[MarketCleared]:
        return [entry.event for entry in await self.log() if isinstance(entry.event, MarketCleared)]

    async def gangs(self) -> list[Gang]:
        return [gang for one in await self.said() for gang in one.gangs]


async def world() -> World:
    made = World()
    await made.bus.ensure(LOG)
    return made


@asynccontextmanager
async def running(where: World) -> AsyncIterator[Engine[State]]:
    """A matcher, killed without notice at the end."""
    engine = Engine(DEFINITION, where.bus, where.clock, TICK_MS)
    task = asyncio.create_task(engine.run())
    try:
        await settle()
        yield engine
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


def node(name: str) -> tuple[Event, ...]:
    return (bid(name), alive(name))


def job(name: str, nodes: int = 1) -> tuple[Event, ...]:
    return (admitted(name, spec(nodes, interconnect="fabric")), funded(name))


async def test_a_job_is_granted_replaced_and_its_gpus_sold_again() -> None:
    here = await world()
    async with running(here) as engine:
        await here.add(*node("n1"), *node("n2"), *job("j", 2), *node("n3"))
        assert [gang.job for gang in await here.gangs()] == ["j"]
        await here.add(lost("n2"), wanted("j", (1, 1), excluded=("n2",), within="fabric:eu/A"), members_funded("j", 1))
        replacement = (await here.gangs())[-1]
        assert [(grant.rank, grant.node, grant.lease) for grant in replacement.grants] == [(1, "n3", "j-3")]
        await here.add(*job("k"), released("j"), cleared("j", "j-1", "n1"))
        assert (await here.gangs())[-1].grants[0].node == "n1"
        assert engine.stuck == {}


async def test_what_arrives_while_a_message_is_on_its_way_is_seen_in_the_next_one() -> None:
    here = await world()
    async with running(here):
        await here.add(*node("n1"), *job("j"))
        for number in range(5):
            await here.bus.publish(bid(f"m{number}").subject(), encode(bid(f"m{number}")))
            await here.bus.publish(alive(f"m{number}").subject(), encode(alive(f"m{number}")))
            await here.add(*job(f"k{number}"))
        assert sorted(gang.job for gang in await here.gangs()) == ["j", *(f"k{number}" for number in range(5))]


@pytest.mark.parametrize("crash_after", range(1, 9))
async def test_a_matcher_that_crashes_anywhere_goes_on_from_the_log(crash_after: int) -> None:
    here = await world()
    events = [*node("n1"), *job("a"), *node("n2"), *job("b"), *node("n3"), *job("c")]
    async with running(here):
        await here.add(*events[:crash_after])
    await here.add(*events[crash_after:])
    async with running(here) as engine:
        await settle()
        assert engine.stuck == {}
    assert sorted(gang.job for gang in await here.gangs()) == ["a", "b", "c"]
    async with running(here):
        await here.clock.advance(1_000)
    assert len(await here.gangs()) == 3


@pytest.mark.parametrize("turns", range(25))
async def test_a_matcher_that_crashes_in_the_middle_of_a_pass_grants_once(turns: int) -> None:
    here = await world()
    async with running(here):
        await here.add(*node("n1"), *node("n2"), admitted("a", spec()), admitted("b", spec(2)))
        for event in (funded("a"), funded("b", 1_000_000)):
            await here.bus.publish(event.subject(), encode(event))
        for _ in range(turns):
            await asyncio.sleep(0)
    async with running(here) as engine:
        assert [gang.job for gang in await here.gangs()] == ["a"]
        assert set(engine.state.reasons) == {"b"}
        assert engine.stuck == {}


async def test_a_message_whose_acknowledgement_is_lost_is_not_said_twice() -> None:
    here = await world()
    async with running(here) as engine:
        await here.add(*node("n1"), *node("n2"), admitted("j", spec()))
        await here.bus.publish(funded("j").subject(), encode(funded("j")))
        here.bus.lost_acks = 1
        await settle()
        assert here.bus.lost_acks == 0
        await here.clock.advance(2_000)
        assert [gang.job for gang in await here.gangs()] == ["j"]
        await here.add(*job("k"))
        assert [gang.job for gang in await here.gangs()] == ["j", "k"]
        assert engine.stuck == {}


async def test_a_matcher_that_runs_beside_another_grants_nothing_twice() -> None:
    here = await world()
    async with running(here) as one, running(here) as other:
        for number in range(6):
            await here.add(*node(f"n{number}"), *job(f"j{number}"))
        await here.add(*job("j6"), released("j0"), cleared("j0", "j0-1", "n0"))
        gangs = await here.gangs()
        assert sorted(gang.job for gang in gangs) == [f"j{number}" for number in range(7)]
        assert here.bus.conflicts > 0
        assert one.stuck == other.stuck == {}
        assert one.state.leased == other.state.leased


async def test_a_writer_that_was_first_is_believed_and_the_pass_runs_again() -> None:
    here = await world()
    here.bus.rival = Market(*node("n1"), *job("a")).plan()
    async with running(here) as engine:
        await here.add(*node("n1"), *job("a"), *job("b"))
        assert here.bus.conflicts == 1
        assert [gang.job for gang in await here.gangs()] == ["a"]
        assert set(engine.state.reasons) == {"b"}
        await here.add(*node("n2"))
        assert [gang.job for gang in await here.gangs()] == ["a", "b"]
        assert engine.stuck == {}


async def test_an_outage_delays_a_grant_and_loses_none() -> None:
    here = await world()
    async with running(here) as engine:
        await here.add(*node("n1"), *node("n2"), admitted("j", spec(2)))
        await here.bus.publish(funded("j").subject(), encode(funded("j")))
        with here.bus.outage():
            await here.clock.advance(5_000)
        await here.clock.advance(2_000)
        assert [gang.job for gang in await here.gangs()] == ["j"]
        assert engine.stuck == {}


async def test_a_market_at_rest_writes_nothing_and_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    here = await world()
    async with running(here) as engine:
        await here.add(*node("n1"), *job("a"), *job("b"))
        length = len(await here.log())
        passes = list[int]()

        def counted(state: State, at_ms: int) -> MarketCleared | None:
            passes.append(at_ms)
            return clear(state, at_ms)

        monkeypatch.setattr(matcher_effects, "clear", counted)
        await here.clock.advance(60 * TICK_MS)
        assert (passes, len(await here.log())) == ([], length)
        await here.add(*node("n2"))
        assert len(passes) > 0
        assert engine.stuck == {}


def test_effects_ask_for_the_same_message_until_it_is_in_the_log() -> None:
    market = Market(*node("n1"), *job("a"))
    assert effects(market.state, AT_MS) == effects(market.state, AT_MS) != ()


async def test_a_gang_overtaken_by_its_job_s_release_sells_its_gpus_to_the_next() -> None:
    here = await world()
    overtaken = Market(*node("n1"), *job("a")).plan()
    assert overtaken is not None
    await here.add(*node("n1"), *job("a"), released("a"), overtaken, *job("b"))
    async with running(here) as engine:
        assert [gang.job for gang in await here.gangs()] == ["a", "b"]
        assert engine.state.leases.keys() == {"b-1"}
        assert engine.state.lots["n1"][0].place == A
