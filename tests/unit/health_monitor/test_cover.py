"""What heartbeats cover: chains of beats, the watermark, and when it may rest."""

import pytest

from tests.unit.health_monitor.builders import (
    EPOCH_MS,
    PROVIDER,
    Monitor,
    beat,
    closed,
    granted,
    released,
    span,
)
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt.contracts.nodes import BeatsCovered, CoverSpan, Heartbeat, LeaseBeat, LeaseState
from volt.contracts.timing import EMBEDDED
from volt_health_monitor.cover import SPANS_PER_EVENT_MAX
from volt_health_monitor.domain import GENERATION_MAX, LEASES_PER_BEAT_MAX, beat_problem

GAP_MS, FLUSH_MS, BEAT_MS = EMBEDDED.cover_gap_ms, EMBEDDED.cover_flush_ms, EMBEDDED.beat_ms
LEASE = ("j1-1", 1)


def leasing(*leases: tuple[str, str]) -> Monitor:
    monitor = Monitor()
    monitor.append(granted("j1", *(leases or (("j1-1", "n1"),))))
    return monitor


def beats(monitor: Monitor, *at_ms: int, first: int = 1, node: str = "n1", incarnation: str = "i1") -> None:
    """Running beats at these instants."""
    for sequence, instant_ms in enumerate(at_ms, start=first):
        monitor.now_ms = instant_ms
        monitor.hear(beat(sequence, node=node, incarnation=incarnation, running=[LEASE]))


def settle(monitor: Monitor, at_ms: int) -> list[CoverSpan]:
    """Probes move the time read to `at_ms`; returns all that is recorded by then."""
    monitor.now_ms = at_ms
    monitor.probe()
    monitor.act()
    return monitor.covered()


def test_two_running_beats_cover_what_lies_between_them() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500)

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 1_500)]


def test_a_single_beat_covers_nothing() -> None:
    monitor = leasing()
    beats(monitor, 1_000)

    assert settle(monitor, 10_000) == []


def test_a_chain_of_beats_is_one_span() -> None:
    monitor = leasing()
    beats(monitor, *range(1_000, 9_000, BEAT_MS))

    assert settle(monitor, 20_000) == [span("j1-1", 1_000, 8_500)]


@pytest.mark.parametrize(("gap_ms", "covers"), [(GAP_MS, True), (GAP_MS + 1, False)])
def test_beats_further_apart_than_the_gap_do_not_cover_what_lies_between(gap_ms: int, covers: bool) -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_000 + gap_ms)

    assert settle(monitor, 10_000) == ([span("j1-1", 1_000, 1_000 + gap_ms)] if covers else [])


def test_a_node_that_was_away_goes_on_and_only_the_gap_is_not_covered() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500, 5_000, 5_500)

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 5_000, 5_500)]


@pytest.mark.parametrize("state", ["preparing", "prepared", "frozen", "ended"])
def test_only_running_counts(state: LeaseState) -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500)
    monitor.now_ms = 2_000
    monitor.hear(beat(3, running=[LEASE], state=state))
    beats(monitor, 2_500, 3_000, first=4)

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 2_500, 3_000)]


def test_two_incarnations_cover_nothing_between_them() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500)
    beats(monitor, 2_000, 2_500, incarnation="i2")

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 2_000, 2_500)]


def test_each_generation_is_covered_for_itself() -> None:
    monitor = leasing()
    for sequence, generation in enumerate((1, 1, 2, 2), start=1):
        monitor.now_ms = sequence * 1_000
        monitor.hear(beat(sequence, running=[("j1-1", generation)]))

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 2_000), span("j1-1", 3_000, 4_000, generation=2)]


def test_a_repeated_beat_changes_nothing() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 2_000)
    beats(monitor, 2_900, first=2)
    beats(monitor, 3_000, first=3)

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 3_000)]


def test_a_beat_that_was_overtaken_changes_nothing() -> None:
    monitor = leasing()
    beats(monitor, 1_000)
    beats(monitor, 2_000, first=3)
    monitor.now_ms = 2_500
    monitor.hear(beat(2, running=[]))
    beats(monitor, 3_000, first=4)

    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 3_000)]


def test_a_node_covers_only_the_leases_that_it_holds() -> None:
    monitor = leasing(("j1-1", "n1"), ("j1-2", "n2"))
    beats(monitor, 1_000, 1_500, node="n2")
    beats(monitor, 2_000, 2_500, node="stranger")
    monitor.hear(beat(3, node="n2"))

    assert settle(monitor, 10_000) == []


def test_a_stream_time_that_jumps_back_covers_nothing_twice() -> None:
    monitor = leasing()
    beats(monitor, 10_000, 10_500)
    for sequence, at_ms in enumerate((1_000, 1_500, 11_000), start=3):
        monitor.hear_at(at_ms, beat(sequence, running=[LEASE]))

    assert settle(monitor, 20_000) == [span("j1-1", 10_000, 11_000)]


def test_the_watermark_stays_a_gap_behind_what_was_read() -> None:
    monitor = leasing()
    beats(monitor, *range(0, 7_001, BEAT_MS))
    monitor.act()

    assert monitor.complete_to_ms() == 7_000 - GAP_MS
    assert monitor.covered() == [span("j1-1", 0, 7_000 - GAP_MS)]


def test_what_goes_on_is_recorded_piece_by_piece_without_a_seam() -> None:
    monitor = leasing()
    for sequence, at_ms in enumerate(range(0, 10_001, BEAT_MS), start=1):
        beats(monitor, at_ms, first=sequence)
        monitor.act()

    assert monitor.covered() == [span("j1-1", at_ms, at_ms + FLUSH_MS) for at_ms in range(0, 8_000, FLUSH_MS)]


def test_an_open_job_moves_the_watermark_though_nothing_is_covered() -> None:
    monitor = leasing()
    settle(monitor, 10_000)
    settle(monitor, 11_000)

    moved = [event for event in monitor.log if isinstance(event, BeatsCovered)]
    assert [event.complete_to_ms - EPOCH_MS for event in moved] == [8_000, 9_000]


def test_cover_is_recorded_once_in_a_period() -> None:
    monitor = leasing()
    settle(monitor, 10_000)

    settle(monitor, 10_000 + FLUSH_MS - 1)

    assert monitor.complete_to_ms() == 10_000 - GAP_MS


def test_nothing_is_recorded_while_no_job_is_open() -> None:
    monitor = Monitor()
    beats(monitor, 1_000, 1_500, 2_000)

    settle(monitor, 60_000)

    assert not any(isinstance(event, BeatsCovered) for event in monitor.log)


def test_the_watermark_rests_once_it_has_passed_the_clusters_end() -> None:
    monitor = leasing()
    monitor.append(released("j1", EPOCH_MS + 5_500))
    settle(monitor, 7_999)
    before = monitor.complete_to_ms()
    settle(monitor, 8_000)

    settle(monitor, 60_000)

    assert (before, monitor.complete_to_ms()) == (5_000, 6_000)
    assert monitor.state.cover.ended == {}
    assert monitor.state.cover.holders == {}


def test_the_watermark_goes_on_for_the_job_that_is_still_open() -> None:
    monitor = leasing()
    monitor.append(granted("j2", ("j2-1", "n2")), released("j1", EPOCH_MS + 5_000))

    settle(monitor, 60_000)

    assert monitor.complete_to_ms() == 58_000
    assert list(monitor.state.cover.holders) == ["j2-1"]


def test_a_closed_bill_ends_the_wait_for_its_cover() -> None:
    monitor = leasing()

    monitor.append(closed("j1"))

    settle(monitor, 60_000)
    assert monitor.complete_to_ms() == -EPOCH_MS


@pytest.mark.parametrize("ending", [released("j1", EPOCH_MS), closed("j1")])
def test_a_void_gang_opens_nothing(ending: BeatsCovered) -> None:
    monitor = Monitor()
    monitor.append(ending, granted("j1", ("j1-1", "n1")))

    settle(monitor, 60_000)

    assert not any(isinstance(event, BeatsCovered) for event in monitor.log)


def test_a_replacement_is_covered_like_the_first_members() -> None:
    monitor = leasing()
    monitor.append(granted("j1", ("j1-2", "n2"), generation=2))
    for sequence in (1, 2):
        monitor.now_ms += BEAT_MS
        monitor.hear(beat(sequence, node="n2", running=[("j1-2", 2)]))

    assert settle(monitor, 10_000) == [span("j1-2", 500, 1_000, generation=2)]


def test_a_second_release_changes_nothing() -> None:
    monitor = leasing()
    monitor.append(released("j1", EPOCH_MS + 1_000))
    settle(monitor, 10_000)

    monitor.append(released("j1", EPOCH_MS + 1_000), closed("j1"))

    assert monitor.act() == []


def test_a_monitor_that_was_down_covers_what_was_stored_meanwhile() -> None:
    monitor = leasing()
    for sequence, at_ms in enumerate(range(0, 20_001, BEAT_MS), start=1):
        monitor.now_ms = at_ms
        monitor.stream.append((EPOCH_MS + at_ms, beat(sequence, running=[LEASE])))
    monitor.restart()

    assert settle(monitor, 22_000) == [span("j1-1", 0, 20_000)]


def test_a_restart_goes_on_from_the_watermark_and_covers_nothing_twice() -> None:
    monitor = leasing()
    beats(monitor, *range(0, 7_001, BEAT_MS))
    monitor.act()

    monitor.restart()

    assert settle(monitor, 12_000) == [span("j1-1", 0, 5_000), span("j1-1", 5_000, 7_000)]


def test_after_a_restart_a_repeated_beat_is_still_known_as_one() -> None:
    """The beats from which cover goes on are judged by those that came before them, so these are read again too."""
    monitor = leasing()
    beats(monitor, 9_500)
    beats(monitor, 11_400, first=1)
    beats(monitor, 12_500, first=2)
    settle(monitor, 12_000 + GAP_MS)

    monitor.restart()

    assert monitor.complete_to_ms() == 12_000
    assert settle(monitor, 20_000) == []


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
    assert settle(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 2_000, 2_500)]


def test_what_is_recorded_is_not_kept() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500, 5_000, 5_500, 9_000)

    settle(monitor, 20_000)

    assert monitor.state.cover.broken == []
    assert monitor.state.cover.recorded == {}


def test_what_is_uncovered_below_the_watermark_is_final() -> None:
    """A beat that turns up late, with an old instant, cannot fill the past."""
    monitor = leasing()
    beats(monitor, 1_000)
    settle(monitor, 20_000)

    monitor.hear_at(2_000, beat(2, running=[LEASE]))

    assert settle(monitor, 30_000) == []
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

    assert beat_problem(with_leases(*range(1, LEASES_PER_BEAT_MAX + 1))) is None
    assert beat_problem(with_leases(*range(1, LEASES_PER_BEAT_MAX + 2))) is not None
    assert beat_problem(with_leases(GENERATION_MAX)) is None
    assert beat_problem(with_leases(GENERATION_MAX + 1)) is not None
    assert beat_problem(with_leases(0)) is not None
