"""Cover in the log: recorded once, in parts if need be, through crashes and restarts."""

import pytest

from tests.unit.health_monitor.builders import (
    BEAT_MS,
    EPOCH_MS,
    FLUSH_MS,
    GAP_MS,
    LEASE,
    PROVIDER,
    Monitor,
    beat,
    beats,
    granted,
    leasing,
    recorded_by,
    span,
)
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt.contracts.nodes import BeatsCovered, Heartbeat, LeaseBeat
from volt.contracts.timing import EMBEDDED
from volt_health_monitor.cover import SPANS_PER_EVENT_MAX
from volt_health_monitor.domain import GENERATION_MAX, LEASES_PER_BEAT_MAX, beat_problem, read_from_ms


def test_a_monitor_that_was_down_covers_what_was_stored_meanwhile() -> None:
    monitor = leasing()
    for sequence, at_ms in enumerate(range(0, 20_001, BEAT_MS), start=1):
        monitor.now_ms = at_ms
        monitor.stream.append((EPOCH_MS + at_ms, beat(sequence, running=[LEASE])))
    monitor.restart()

    assert recorded_by(monitor, 22_000) == [span("j1-1", 0, 20_000)]


def test_a_restart_goes_on_from_the_watermark_and_covers_nothing_twice() -> None:
    monitor = leasing()
    beats(monitor, *range(0, 7_001, BEAT_MS))
    monitor.act()

    monitor.restart()

    assert recorded_by(monitor, 12_000) == [span("j1-1", 0, 5_000), span("j1-1", 5_000, 7_000)]


def test_after_a_restart_a_repeated_beat_is_still_known_as_one() -> None:
    """The beats from which cover goes on are judged by those that came before them, so these are read again too."""
    monitor = leasing()
    beats(monitor, 9_500)
    beats(monitor, 11_400, first=1)
    beats(monitor, 12_500, first=2)
    recorded_by(monitor, 12_000 + GAP_MS)

    monitor.restart()

    assert monitor.complete_to_ms() == 12_000
    assert recorded_by(monitor, 20_000) == []


def test_an_incarnation_that_ended_is_still_covered_after_a_restart() -> None:
    """The log knows that another has begun since; beats from before that count."""
    monitor = leasing()
    monitor.probe()
    beats(monitor, 1_000)
    monitor.act()
    beats(monitor, 1_500, first=2)
    beats(monitor, 2_000, 2_500, incarnation="i2")
    monitor.act()

    monitor.restart()

    assert monitor.complete_to_ms() == 0
    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 2_000, 2_500)]


def test_a_reconnect_reads_on_from_what_was_read_and_a_restart_from_what_cover_needs() -> None:
    monitor = leasing()
    beats(monitor, *range(0, 20_001, BEAT_MS))
    monitor.act()
    after_a_reconnect_ms = read_from_ms(monitor.state)

    monitor.restart()

    monitor.state.beats.read_ms = 0
    assert after_a_reconnect_ms == EPOCH_MS + 20_000
    assert read_from_ms(monitor.state) == EPOCH_MS + 20_000 - 3 * GAP_MS


def test_what_is_recorded_is_not_kept() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500, 5_000, 5_500, 9_000)

    recorded_by(monitor, 20_000)

    assert monitor.state.cover.broken == []
    assert monitor.state.cover.recorded == {}


def test_what_is_uncovered_below_the_watermark_is_final() -> None:
    """A beat that turns up late, with an old instant, cannot fill the past."""
    monitor = leasing()
    beats(monitor, 1_000)
    recorded_by(monitor, 20_000)

    monitor.hear_at(2_000, beat(2, running=[LEASE]))

    assert recorded_by(monitor, 30_000) == []
    assert monitor.complete_to_ms() == 28_000


def many_leases(count: int) -> Monitor:
    """A job with so many leases on one node, that all ran from 0 to 8000."""
    leases = [f"{'j' * 58}-{number}" for number in range(count)]
    monitor = Monitor()
    monitor.append(granted("j1", *((lease, "n1") for lease in leases)))
    for sequence, at_ms in enumerate(range(0, 8_001, BEAT_MS), start=1):
        monitor.now_ms = at_ms
        monitor.hear(beat(sequence, running=[(lease, GENERATION_MAX) for lease in leases]))
    return monitor


def test_more_spans_than_fit_into_one_message_are_recorded_in_several_before_the_watermark_moves() -> None:
    monitor = many_leases(2 * SPANS_PER_EVENT_MAX + 1)

    recorded = [event for event in monitor.act() if isinstance(event, BeatsCovered)]

    assert [len(event.spans) for event in recorded] == [SPANS_PER_EVENT_MAX, SPANS_PER_EVENT_MAX, 1]
    assert [event.complete_to_ms for event in recorded] == [0, 0, EPOCH_MS + 6_000]
    assert all(len(encode(event)) < MESSAGE_BYTES_MAX for event in recorded)


def test_a_recording_in_parts_goes_on_with_what_it_has_not_said_yet() -> None:
    """Though beats that arrive meanwhile cover more of what it has said."""
    monitor = many_leases(SPANS_PER_EVENT_MAX + 1)
    monitor.act_once()
    said = {one.lease for one in monitor.covered()}
    monitor.now_ms += FLUSH_MS
    monitor.hear(beat(100, running=[(lease, GENERATION_MAX) for lease in monitor.state.cover.holders]))

    monitor.act_once()

    assert monitor.covered()[SPANS_PER_EVENT_MAX].lease not in said


def test_a_crash_between_the_parts_of_a_recording_doubles_and_loses_nothing() -> None:
    monitor = many_leases(SPANS_PER_EVENT_MAX + 1)
    monitor.act_once()

    monitor.restart()
    monitor.act()

    assert sorted(one.lease for one in monitor.covered()) == sorted(set(monitor.state.cover.holders))
    assert {(one.from_ms, one.to_ms) for one in monitor.covered()} == {(0, 6_000)}


def test_a_recording_that_covers_twice_or_goes_back_is_never_folded() -> None:
    monitor = leasing()
    beats(monitor, *range(0, 7_001, BEAT_MS))
    monitor.act()
    complete_to_ms = monitor.state.cover.complete_to_ms

    for spans, to_ms in (
        ((span("j1-1", complete_to_ms - 1, complete_to_ms + 5),), complete_to_ms),
        ((), complete_to_ms - 1),
    ):
        with pytest.raises(AssertionError):
            monitor.append(BeatsCovered(spans=spans, complete_to_ms=to_ms, at_ms=0))


def test_a_stranger_cannot_make_the_monitor_write_without_bound() -> None:
    def with_leases(*generations: int) -> Heartbeat:
        leases = tuple(LeaseBeat(lease="j1-1", generation=one, state="running") for one in generations)
        return Heartbeat(account=PROVIDER, node="n1", incarnation="i1", sequence=1, leases=leases)

    assert beat_problem(EMBEDDED, with_leases(*range(1, LEASES_PER_BEAT_MAX + 1))) is None
    assert beat_problem(EMBEDDED, with_leases(*range(1, LEASES_PER_BEAT_MAX + 2))) is not None
    assert beat_problem(EMBEDDED, with_leases(GENERATION_MAX)) is None
    assert beat_problem(EMBEDDED, with_leases(GENERATION_MAX + 1)) is not None
    assert beat_problem(EMBEDDED, with_leases(0)) is not None
