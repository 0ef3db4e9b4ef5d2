"""What the runtime promises every service."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.runtime.tiny import (
    DEFINITION,
    TICK_MS,
    WITHOUT_EFFECTS,
    State,
    bench,
    open_account,
    opened,
    running,
)
from volt.contracts.jobs import AccountOpened, CommandRejected, OpenAccount
from volt.contracts.ledger import AccountCredited
from volt.contracts.messages import MESSAGE_BYTES_MAX, Asked, Command, Event, encode
from volt.contracts.streams import LOG, STORED_BYTES_MAX
from volt.contracts.subjects import command_account, command_job, log_account
from volt.runtime.engine import (
    DECIDE_ATTEMPTS_MAX,
    ERROR_CHARS_MAX,
    RETRY_SECONDS,
    Broken,
    Engine,
    Outcome,
    Verdict,
    guarded,
)
from volt.runtime.memory import MemoryBus, MemoryClock, settle

RETRY_MS = round(RETRY_SECONDS * 1000)
FOUR = ("a", "b", "c", "d")


async def test_an_answer_is_in_the_log_and_in_the_state_on_return() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        with on.bus.readers_held():
            arriving = on.engine.handle(command_account("a"), open_account("a"), 1, on.bus.now_ms())
            handling = asyncio.create_task(arriving)
            await settle()
            assert on.bus.publishes == 1
            assert not handling.done(), "stored, and not folded yet"
        assert await handling == Outcome(Verdict.DONE)
        assert "a" in on.engine.state.opened
        assert list(await on.events()) == [opened("a", at_ms=on.bus.now_ms())]


async def test_a_command_is_answered_once_though_delivered_three_times() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        verdicts = [(await on.open("a", seq=1)).verdict for _ in range(3)]
        assert verdicts == [Verdict.DONE] * 3
        assert len(await on.events()) == 1


async def test_a_conflict_lets_it_decide_again_on_what_the_log_knows() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        on.bus.rivals = [opened("a", request_id="rival")]
        assert (await on.open("a")).verdict is Verdict.DONE
        assert list(await on.events()) == [opened("a", request_id="rival")]
        assert on.engine.stuck == {}


async def test_an_append_is_fenced_by_what_its_decision_knew_not_by_what_was_folded_since() -> None:
    async with bench() as on:

        def decide_as_a_rival_writes(state: State, _command: Command, _asked: Asked) -> Sequence[Event]:
            if "a" not in state.opened:
                on.bus.store_at_once(opened("a", request_id="rival"))
                return (opened("a"),)
            return ()

        raced = replace(WITHOUT_EFFECTS, decide=decide_as_a_rival_writes)
        async with running(raced, on.bus, on.clock) as engine:
            outcome = await engine.handle(command_account("a"), open_account("a"), 1, on.bus.now_ms())
            assert outcome.verdict is Verdict.DONE
            assert engine.stuck == {}
        openings = [event for event in await on.events() if not isinstance(event, AccountCredited)]
        assert openings == [opened("a", request_id="rival")]


async def test_after_a_conflict_it_waits_for_the_fold_instead_of_trying_in_vain() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        with on.bus.readers_held():
            on.bus.rivals = [opened("a", request_id="rival")]
            handling = asyncio.create_task(on.open("a"))
            await settle()
            assert not handling.done()
            assert on.bus.publishes == 1
        assert (await handling).verdict is Verdict.DONE
        assert on.bus.publishes == 1


async def test_a_contended_aggregate_is_given_up_for_later_after_a_bound() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        on.bus.rivals = [opened(f"other{number}") for number in range(3)]
        assert (await on.open("a")).verdict is Verdict.DONE, "a rival elsewhere is no conflict"

        never_satisfied = replace(WITHOUT_EFFECTS, decide=lambda _state, _command, _asked: (opened("b"),))
        ignore = replace(never_satisfied, evolve=lambda _state, _entry: None)
        async with running(ignore, on.bus, on.clock) as engine:
            on.bus.rivals = [opened("b", request_id=f"r{number}") for number in range(DECIDE_ATTEMPTS_MAX)]
            outcome = await engine.handle(command_account("b"), open_account("b"), 9, on.bus.now_ms())
        assert outcome.verdict is Verdict.RETRY
        assert on.bus.rivals == []


async def test_a_lost_acknowledgement_of_an_answer_does_not_double_it() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        on.bus.lost_acks = 1
        assert (await on.open("a", seq=1)).verdict is Verdict.AWAY
        assert (await on.open("a", seq=1)).verdict is Verdict.DONE
        assert len(await on.events()) == 1


async def test_a_lost_acknowledgement_of_an_effect_does_not_double_it() -> None:
    async with bench() as on:
        on.bus.store_at_once(opened("a"))
        on.bus.lost_acks = 1
        await settle()
        await on.clock.advance(2 * RETRY_MS)
        assert on.engine.state.credited == ["a"]


async def test_effects_follow_from_the_state_once_each() -> None:
    async with bench() as on:
        for account in FOUR:
            assert (await on.open(account)).verdict is Verdict.DONE
        await on.clock.advance(10 * TICK_MS)
        assert sorted(on.engine.state.credited) == list(FOUR)


async def test_effects_are_repeated_until_their_receipt_is_in_the_log() -> None:
    async with bench() as on:
        on.bus.store_at_once(opened("a"))
        with on.bus.outage():
            await on.clock.advance(10 * RETRY_MS)
            assert on.engine.state.credited == []
        await on.clock.advance(2 * RETRY_MS)
        assert on.engine.state.credited == ["a"]


async def test_an_effect_that_is_due_later_happens_on_a_tick() -> None:
    due_after_ms = 5 * TICK_MS

    def later(state: State, at_ms: int) -> list[AccountCredited]:
        waiting = [one for one in state.opened.values() if one.account not in state.credited]
        return [
            AccountCredited(account=one.account, at_ms=at_ms) for one in waiting if at_ms > one.at_ms + due_after_ms
        ]

    async with bench(replace(DEFINITION, effects=later)) as on:
        await on.open("a")
        await on.clock.advance(due_after_ms)
        assert on.engine.state.credited == []
        await on.clock.advance(2 * TICK_MS)
        assert on.engine.state.credited == ["a"]
        credit = (await on.events())[-1]
        assert isinstance(credit, AccountCredited)
        assert credit.at_ms - on.engine.state.opened["a"].at_ms <= due_after_ms + TICK_MS


async def test_a_crash_at_any_moment_neither_loses_nor_doubles() -> None:
    clock = MemoryClock()
    for crash_after_turns in range(0, 60, 3):
        bus = MemoryBus(clock)
        await bus.ensure(LOG)
        async with running(DEFINITION, bus, clock) as engine:
            handling = asyncio.create_task(engine.handle(command_account("a"), open_account("a"), 1, bus.now_ms()))
            for _ in range(crash_after_turns):
                await asyncio.sleep(0)
        handling.cancel()
        async with running(DEFINITION, bus, clock) as engine:
            await engine.handle(command_account("a"), open_account("a"), 1, bus.now_ms())
            await clock.advance(TICK_MS)
            assert engine.state.credited == ["a"]
            assert engine.stuck == {}


async def test_a_restart_folds_the_same_state() -> None:
    async with bench() as on:
        for account in FOUR:
            await on.open(account)
        await on.clock.advance(TICK_MS)
        async with running(WITHOUT_EFFECTS, on.bus, on.clock) as again:
            assert again.state == on.engine.state
            assert again.folded_seq == on.engine.folded_seq


@pytest.mark.parametrize(
    "spoilt",
    [b"not json", b"{}", b'{"type":"AccountOpened.v2"}', b'{"type":"Unheard.v1"}', b'{"type":"AccountOpened.v1"}'],
)
async def test_an_unreadable_event_marks_only_its_aggregate_stuck(spoilt: bytes) -> None:
    async with bench() as on:
        await on.open("good")
        await on.bus.publish(log_account("bad"), spoilt)
        await settle()
        assert on.engine.stuck.keys() == {log_account("bad")}
        on.bus.store_at_once(opened("bad"))
        await settle()
        assert on.engine.state.opened.keys() == {"good"}, "what follows in a stuck aggregate cannot be trusted"
        assert (await on.open("other")).verdict is Verdict.DONE
        await on.clock.advance(TICK_MS)
        assert sorted(on.engine.state.credited) == ["good", "other"]


async def test_an_event_of_another_aggregate_than_its_subject_is_not_believed() -> None:
    async with bench() as on:
        await on.bus.publish(log_account("victim"), encode(opened("thief")))
        await settle()
        assert on.engine.stuck.keys() == {log_account("victim")}
        assert on.engine.state.opened == {}


async def test_an_event_that_the_state_cannot_have_marks_its_aggregate_stuck() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        on.bus.store_at_once(opened("a"))
        on.bus.store_at_once(opened("a", request_id="twice"))
        on.bus.store_at_once(opened("b"))
        await settle()
        assert on.engine.stuck.keys() == {log_account("a")}
        assert on.engine.state.opened.keys() == {"a", "b"}


async def test_nothing_is_appended_to_a_stuck_aggregate() -> None:
    async with bench() as on:
        await on.bus.publish(log_account("bad"), b"not json")
        await settle()
        verdict, _, cause = await on.open("bad")
        assert verdict is Verdict.DEAD
        assert "stuck" in cause
        await on.clock.advance(10 * TICK_MS)
        assert await on.events() == []


async def test_an_effect_that_cannot_be_made_marks_only_its_aggregate_stuck() -> None:
    def credit(account: str, at_ms: int) -> AccountOpened:
        if account == "bad":
            raise ZeroDivisionError("an account that nobody foresaw")
        return opened(f"{account}s-friend", at_ms)

    def befriend(state: State, at_ms: int) -> list[Event | Broken]:
        alone = [one for one in state.opened if not one.endswith("friend") and f"{one}s-friend" not in state.opened]
        made = (guarded(log_account(one), partial(credit, one, at_ms)) for one in alone)
        return [one for one in made if one is not None]

    async with bench(replace(WITHOUT_EFFECTS, effects=befriend)) as on:
        on.bus.store_at_once(opened("bad"))
        on.bus.store_at_once(opened("good"))
        await settle()
        await on.clock.advance(TICK_MS)
        assert "goods-friend" in on.engine.state.opened
        assert on.engine.stuck.keys() == {log_account("bad")}
        assert (await on.open("other")).verdict is Verdict.DONE


@pytest.mark.parametrize("size_bytes", [MESSAGE_BYTES_MAX, STORED_BYTES_MAX])
async def test_a_command_whose_answer_is_too_large_is_dead_and_its_aggregate_goes_on(size_bytes: int) -> None:
    def answer(_state: State, command: Command, _asked: Asked) -> tuple[Event, ...]:
        huge = getattr(command, "key_sha256", "") == "huge"
        return (opened("a", request_id="r" * size_bytes if huge else "r"),)

    async with bench(replace(WITHOUT_EFFECTS, decide=answer)) as on:
        command = OpenAccount(account="a", request_id="r", key_sha256="huge")
        assert (await on.deliver(command_account("a"), encode(command))).verdict is Verdict.DEAD
        assert on.engine.stuck == {}
        assert (await on.open("a")).verdict is Verdict.DONE


@pytest.mark.parametrize("size_bytes", [MESSAGE_BYTES_MAX, STORED_BYTES_MAX])
async def test_an_effect_too_large_for_its_readers_marks_its_aggregate_stuck(size_bytes: int) -> None:
    def huge(_state: State, _at_ms: int) -> list[Event]:
        return [opened("a", request_id="r" * size_bytes)]

    async with bench(replace(WITHOUT_EFFECTS, effects=huge)) as on:
        await on.clock.advance(2 * TICK_MS)
        assert on.engine.stuck.keys() == {log_account("a")}
        assert await on.events() == []


async def test_what_is_no_command_is_refused_to_an_account_that_exists() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        await on.open("a")
        assert (await on.deliver(command_account("a"), b"not json")).verdict is Verdict.DONE
        refusal = (await on.events())[-1]
        assert isinstance(refusal, CommandRejected)
        assert refusal.reason.code == "not_json"
        assert refusal.command_seq == 2


async def test_a_refusal_repeats_only_so_much_of_what_was_sent() -> None:
    async with bench(WITHOUT_EFFECTS) as on:
        await on.open("a")
        sent = open_account("a").replace(b'"request_id"', b'"%b"' % (b"x" * 100_000))
        assert (await on.deliver(command_account("a"), sent)).verdict is Verdict.DONE
        refusal = (await on.events())[-1]
        assert isinstance(refusal, CommandRejected)
        assert len(refusal.reason.message) <= ERROR_CHARS_MAX


@pytest.mark.parametrize(
    ("subject", "data", "words"),
    [
        (command_account("nobody"), b"not json", "not_json"),
        (command_account("nobody"), b'{"x":' + b"[" * 100_000, "not_json"),
        (command_account("nobody"), b'{"type":"Unheard.v1","x":' + b"[" * 100_000, "not_json"),
        (command_account("nobody"), b" " * 300_000, "too_large"),
        (command_account("nobody"), b'{"type":"OpenAccount.v9"}', "unknown_version"),
        (command_account("nobody"), b'{"type":"ReleaseJob.v1"}', "unknown_type"),
        (command_account("nobody"), open_account("somebody"), "wrong_subject"),
        (command_job("nobody"), open_account("somebody"), "wrong_subject"),
        (command_account("banned"), open_account("banned"), "banned: never"),
        (command_account("bug"), open_account("bug"), "KeyError"),
    ],
)
async def test_what_nobody_can_be_answered_about_is_dead(subject: str, data: bytes, words: str) -> None:
    async with bench() as on:
        verdict, error, cause = await on.deliver(subject, data)
        assert verdict is Verdict.DEAD
        assert words in error
        assert cause in ("undecodable", "nobody to answer", "a fault in the decision")
        assert await on.events() == []
        assert (await on.open("a")).verdict is Verdict.DONE, "the next one is answered"


async def test_a_bus_that_is_away_makes_a_command_wait() -> None:
    async with bench() as on:
        with on.bus.outage():
            assert (await on.open("a")).verdict is Verdict.AWAY
        assert (await on.open("a")).verdict is Verdict.DONE


async def test_a_command_waits_until_the_log_has_been_folded() -> None:
    clock = MemoryClock()
    bus = MemoryBus(clock)
    await bus.ensure(LOG)
    await bus.publish(log_account("a"), encode(opened("a")))
    engine = Engine(WITHOUT_EFFECTS, bus, clock, TICK_MS)
    handling = asyncio.create_task(engine.handle(command_account("a"), b"not json", 1, bus.now_ms()))
    await settle()
    assert not handling.done()
    running_task = asyncio.create_task(engine.run())
    assert (await handling).verdict is Verdict.DONE, "the account is known, once the log has been read"
    assert engine.folded_seq == 2
    running_task.cancel()
    await asyncio.wait([running_task])


@given(steps=st.lists(st.tuples(st.integers(-10_000, 10_000), st.integers(0, 10_000)), max_size=30))
def test_now_never_goes_back(steps: list[tuple[int, int]]) -> None:
    clock = SteppedClock()
    engine = Engine(DEFINITION, MemoryBus(MemoryClock()), clock, TICK_MS)
    base_ms = 1_700_000_000_000
    engine.observe(base_ms)
    before_ms = engine.now_ms()
    for offset_ms, passed_ms in steps:
        clock.at_ms += passed_ms
        assert engine.now_ms() >= before_ms + passed_ms, "it goes on with the local clock"
        engine.observe(base_ms + offset_ms)
        assert engine.now_ms() >= max(before_ms, base_ms + offset_ms)
        before_ms = engine.now_ms()


class SteppedClock:
    """A clock that a synchronous test moves by hand."""

    def __init__(self) -> None:
        self.at_ms = 12_345

    def monotonic_ms(self) -> int:
        return self.at_ms

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")
