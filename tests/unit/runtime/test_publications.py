"""Values beside the log: a service shows them, and the last one counts."""

from dataclasses import replace

from tests.unit.runtime.tiny import TICK_MS, WITHOUT_EFFECTS, State, bench, running
from volt.contracts.streams import DESIRED, DESIRED_BYTES_MAX
from volt.runtime.engine import Definition, Publication, Verdict

VALUE = "desired.a.n"


def shows(value: bytes) -> Definition[State]:
    """A definition that wants `value` on a subject beside the log as soon as somebody was opened."""

    def publications(state: State) -> list[Publication]:
        return [Publication(DESIRED.name, VALUE, value + b"%d" % len(state.opened))] if state.opened else []

    return replace(WITHOUT_EFFECTS, publications=publications)


async def test_a_value_beside_the_log_is_published_when_it_changes_and_only_then() -> None:
    async with bench(shows(b"v")) as on:
        await on.open("a")
        first = await on.bus.last(DESIRED.name, VALUE)
        assert first is not None
        assert first.data == b"v1"
        await on.clock.advance(10 * TICK_MS)
        assert await on.bus.last(DESIRED.name, VALUE) == first
        await on.open("b")
        second = await on.bus.last(DESIRED.name, VALUE)
        assert second is not None
        assert (second.seq, second.data) == (2, b"v2")


async def test_a_restart_does_not_publish_a_value_that_is_there() -> None:
    async with bench(shows(b"v")) as on:
        await on.open("a")
        before = await on.bus.last(DESIRED.name, VALUE)
        async with running(shows(b"v"), on.bus, on.clock):
            await on.clock.advance(TICK_MS)
            assert await on.bus.last(DESIRED.name, VALUE) == before


async def test_a_value_that_somebody_overwrote_is_published_again() -> None:
    async with bench(shows(b"v")) as on:
        await on.open("a")
        await on.bus.publish(VALUE, b"foreign")
        await on.open("b")
        await on.clock.advance(2 * TICK_MS)
        last = await on.bus.last(DESIRED.name, VALUE)
        assert last is not None
        assert last.data == b"v2"


async def test_a_value_too_large_does_not_stop_the_service() -> None:
    async with bench(shows(b"x" * DESIRED_BYTES_MAX)) as on:
        await on.open("a")
        await on.clock.advance(2 * TICK_MS)
        assert await on.bus.last(DESIRED.name, VALUE) is None
        assert (await on.open("b")).verdict is Verdict.DONE
