"""What heartbeats cover: chains of beats."""

import pytest

from tests.unit.health_monitor.builders import BEAT_MS, GAP_MS, LEASE, beat, beats, granted, leasing, recorded_by, span
from volt.contracts.nodes import (
    LeaseState,
)


def test_two_running_beats_cover_what_lies_between_them() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500)

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 1_500)]


def test_a_single_beat_covers_nothing() -> None:
    monitor = leasing()
    beats(monitor, 1_000)

    assert recorded_by(monitor, 10_000) == []


def test_a_chain_of_beats_is_one_span() -> None:
    monitor = leasing()
    beats(monitor, *range(1_000, 9_000, BEAT_MS))

    assert recorded_by(monitor, 20_000) == [span("j1-1", 1_000, 8_500)]


@pytest.mark.parametrize(("gap_ms", "covers"), [(GAP_MS, True), (GAP_MS + 1, False)])
def test_beats_further_apart_than_the_gap_do_not_cover_what_lies_between(gap_ms: int, covers: bool) -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_000 + gap_ms)

    assert recorded_by(monitor, 10_000) == ([span("j1-1", 1_000, 1_000 + gap_ms)] if covers else [])


def test_a_node_that_was_away_goes_on_and_only_the_gap_is_not_covered() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500, 5_000, 5_500)

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 5_000, 5_500)]


@pytest.mark.parametrize("state", ["prepared", "ended"])
def test_only_running_counts(state: LeaseState) -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500)
    monitor.now_ms = 2_000
    monitor.hear(beat(3, running=[LEASE], state=state))
    beats(monitor, 2_500, 3_000, first=4)

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 2_500, 3_000)]


def test_two_incarnations_cover_nothing_between_them() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 1_500)
    beats(monitor, 2_000, 2_500, incarnation="i2")

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 1_500), span("j1-1", 2_000, 2_500)]


def test_each_generation_is_covered_for_itself() -> None:
    monitor = leasing()
    for sequence, generation in enumerate((1, 1, 2, 2), start=1):
        monitor.now_ms = sequence * 1_000
        monitor.hear(beat(sequence, running=[("j1-1", generation)]))

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 2_000), span("j1-1", 3_000, 4_000, generation=2)]


def test_a_repeated_beat_changes_nothing() -> None:
    monitor = leasing()
    beats(monitor, 1_000, 2_000)
    beats(monitor, 2_900, first=2)
    beats(monitor, 3_000, first=3)

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 3_000)]


def test_a_beat_that_was_overtaken_changes_nothing() -> None:
    monitor = leasing()
    beats(monitor, 1_000)
    beats(monitor, 2_000, first=3)
    monitor.now_ms = 2_500
    monitor.hear(beat(2, running=[]))
    beats(monitor, 3_000, first=4)

    assert recorded_by(monitor, 10_000) == [span("j1-1", 1_000, 3_000)]


def test_a_node_covers_only_the_leases_that_it_holds() -> None:
    monitor = leasing(("j1-1", "n1"), ("j1-2", "n2"))
    beats(monitor, 1_000, 1_500, node="n2")
    beats(monitor, 2_000, 2_500, node="stranger")
    monitor.hear(beat(3, node="n2"))

    assert recorded_by(monitor, 10_000) == []


def test_a_stream_time_that_jumps_back_covers_nothing_twice() -> None:
    monitor = leasing()
    beats(monitor, 10_000, 10_500)
    for sequence, at_ms in enumerate((1_000, 1_500, 11_000), start=3):
        monitor.hear_at(at_ms, beat(sequence, running=[LEASE]))

    assert recorded_by(monitor, 20_000) == [span("j1-1", 10_000, 11_000)]


def test_a_replacement_is_covered_like_the_first_members() -> None:
    monitor = leasing()
    monitor.append(granted("j1", ("j1-2", "n2"), generation=2))
    for sequence in (1, 2):
        monitor.now_ms += BEAT_MS
        monitor.hear(beat(sequence, node="n2", running=[("j1-2", 2)]))

    assert recorded_by(monitor, 10_000) == [span("j1-2", 500, 1_000, generation=2)]
