"""How far cover is complete, how it moves, and when it may rest."""

import pytest

from tests.unit.health_monitor.builders import (
    BEAT_MS,
    EPOCH_MS,
    FLUSH_MS,
    GAP_MS,
    Monitor,
    beats,
    closed,
    granted,
    leasing,
    recorded_by,
    released,
    span,
)
from volt.contracts.nodes import (
    BeatsCovered,
)
from volt_health_monitor.cover import JOBS_OVER_REMEMBERED_MAX


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
    recorded_by(monitor, 10_000)
    recorded_by(monitor, 11_000)

    moved = [event for event in monitor.log if isinstance(event, BeatsCovered)]
    assert [event.complete_to_ms - EPOCH_MS for event in moved] == [8_000, 9_000]


def test_cover_is_recorded_once_in_a_period() -> None:
    monitor = leasing()
    recorded_by(monitor, 10_000)

    recorded_by(monitor, 10_000 + FLUSH_MS - 1)

    assert monitor.complete_to_ms() == 10_000 - GAP_MS


def test_nothing_is_recorded_while_no_job_is_open() -> None:
    monitor = Monitor()
    beats(monitor, 1_000, 1_500, 2_000)

    recorded_by(monitor, 60_000)

    assert not any(isinstance(event, BeatsCovered) for event in monitor.log)


def test_the_watermark_rests_once_it_has_passed_the_clusters_end() -> None:
    monitor = leasing()
    monitor.append(granted("j1", ("j1-2", "n2"), generation=2))
    monitor.append(released("j1", EPOCH_MS + 5_500))
    recorded_by(monitor, 7_999)
    before = monitor.complete_to_ms()
    recorded_by(monitor, 8_000)

    recorded_by(monitor, 60_000)

    assert (before, monitor.complete_to_ms()) == (5_000, 6_000)
    assert monitor.state.cover.ended == {}
    assert monitor.state.cover.holders == {}


def test_the_watermark_goes_on_for_the_job_that_is_still_open() -> None:
    monitor = leasing()
    monitor.append(granted("j2", ("j2-1", "n2")), released("j1", EPOCH_MS + 5_000))

    recorded_by(monitor, 60_000)

    assert monitor.complete_to_ms() == 58_000
    assert list(monitor.state.cover.holders) == ["j2-1"]


def test_a_closed_bill_ends_the_wait_for_its_cover() -> None:
    monitor = leasing()

    monitor.append(closed("j1"))

    recorded_by(monitor, 60_000)
    assert monitor.complete_to_ms() == -EPOCH_MS


@pytest.mark.parametrize("ending", [released("j1", EPOCH_MS), closed("j1")])
def test_a_void_gang_opens_nothing(ending: BeatsCovered) -> None:
    monitor = Monitor()
    monitor.append(ending, granted("j1", ("j1-1", "n1")))

    recorded_by(monitor, 60_000)

    assert not any(isinstance(event, BeatsCovered) for event in monitor.log)


def test_only_so_many_ended_jobs_are_remembered() -> None:
    monitor = Monitor()

    monitor.append(*(closed(f"j{number}") for number in range(JOBS_OVER_REMEMBERED_MAX + 5)))

    assert len(monitor.state.cover.over) == JOBS_OVER_REMEMBERED_MAX


def test_a_second_release_changes_nothing() -> None:
    monitor = leasing()
    monitor.append(released("j1", EPOCH_MS + 1_000))
    recorded_by(monitor, 10_000)

    monitor.append(released("j1", EPOCH_MS + 1_000), closed("j1"))

    assert monitor.act() == []
