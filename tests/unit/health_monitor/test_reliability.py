"""How far a node, and its provider, can be relied on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.health_monitor.builders import LOST_MS, beat, wait, watching
from volt.contracts.faults import Fault
from volt.contracts.nodes import (
    GpuFaulted,
    GpuQuarantined,
    LostCause,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    NodeRated,
    NodeUnknown,
)
from volt.contracts.reliability import (
    COST_MS,
    DAY_MS,
    HALF_LIFE_MS,
    PERMILLE,
    Record,
    aged,
    change_of,
    changed,
    node_permille,
    provider_permille,
    weight,
)
from volt.contracts.units import MS_PER_HOUR

FAULT = Fault(kind="xid", xid=48, name="ROBUST_CHANNEL_GPU_ECC_DBE")


def alive(at_ms: int) -> NodeAlive:
    return NodeAlive(account="lab", node="n1", incarnation="i", at_ms=at_ms)


def lost(at_ms: int, cause: LostCause = "silent") -> NodeLost:
    return NodeLost(account="lab", node="n1", incarnation="i", at_ms=at_ms, cause=cause)


def faulted(
    kind: type[GpuFaulted] | type[GpuQuarantined] | type[NodeQuarantined], at_ms: int
) -> GpuFaulted | GpuQuarantined | NodeQuarantined:
    return kind(
        account="lab", node="n1", incarnation="i", at_ms=at_ms, gpus=("g",), fault=FAULT, reliability_permille=0
    )


def history(*events: NodeEvent) -> Record:
    record = Record()
    for event in events:
        record = changed(record, change_of(record, event), event.at_ms)
    return record


def permille(record: Record, at_ms: int) -> int:
    """Of a node that is its provider's only one."""
    return node_permille(record, record, at_ms)


def test_a_node_is_relied_on_until_it_falls_silent() -> None:
    assert permille(Record(), 0) == PERMILLE
    assert permille(history(alive(0), lost(MS_PER_HOUR)), MS_PER_HOUR) == 875
    assert permille(history(alive(0), lost(MS_PER_HOUR, "left")), MS_PER_HOUR) == PERMILLE


def test_a_loss_after_thirty_days_costs_three_per_cent() -> None:
    """As docs/reliability.md says."""
    assert permille(history(alive(0), lost(30 * DAY_MS)), 30 * DAY_MS) == 966


def test_a_doubt_that_passes_costs_nothing() -> None:
    unknown = NodeUnknown(account="lab", node="n1", incarnation="i", at_ms=5)
    assert permille(history(alive(0), unknown, alive(9)), 9) == PERMILLE


def test_time_alive_makes_up_for_a_loss() -> None:
    record = history(alive(0), lost(MS_PER_HOUR), alive(2 * MS_PER_HOUR))
    after = [permille(record, hours * MS_PER_HOUR) for hours in (2, 24, 24 * 30)]
    assert after == sorted(after)
    assert after[-1] > 960


def test_a_worse_mishap_costs_more() -> None:
    costs = [
        permille(history(alive(0), event), MS_PER_HOUR)
        for event in (
            faulted(GpuFaulted, MS_PER_HOUR),
            faulted(GpuQuarantined, MS_PER_HOUR),
            faulted(NodeQuarantined, MS_PER_HOUR),
        )
    ]
    assert PERMILLE > costs[0] > costs[1] > costs[2]
    assert costs[2] == permille(history(alive(0), lost(MS_PER_HOUR)), MS_PER_HOUR)


def test_a_new_node_is_trusted_as_far_as_its_providers_others() -> None:
    others = history(alive(0), *(lost(hour * MS_PER_HOUR) for hour in range(1, 5)))
    at_ms = 5 * MS_PER_HOUR
    assert node_permille(Record(), others, at_ms) == provider_permille(others, at_ms) < 700
    assert node_permille(Record(), Record(), at_ms) == PERMILLE


def test_a_half_life_halves_what_a_mishap_weighs() -> None:
    record = history(alive(0), lost(MS_PER_HOUR))
    later = aged(record, MS_PER_HOUR + HALF_LIFE_MS)
    assert later.bad_ms == pytest.approx(COST_MS["lost"] / 2)
    assert later.good_ms == pytest.approx(record.good_ms / 2)
    assert weight(2 * HALF_LIFE_MS) == pytest.approx(0.25)


SPELLS = st.lists(
    st.tuples(st.sampled_from(["alive", "lost", "left", "fault", "nothing"]), st.integers(0, 90 * DAY_MS))
)


def lived(spells: list[tuple[str, int]]) -> tuple[Record, int]:
    at_ms, record = 0, Record()
    for what, passed_ms in spells:
        at_ms += passed_ms
        events: dict[str, NodeEvent] = {
            "alive": alive(at_ms),
            "lost": lost(at_ms),
            "left": lost(at_ms, "left"),
            "fault": faulted(GpuQuarantined, at_ms),
        }
        if what in events:
            record = changed(record, change_of(record, events[what]), at_ms)
    return record, at_ms


@given(SPELLS)
def test_it_is_always_between_nothing_and_all(spells: list[tuple[str, int]]) -> None:
    record, at_ms = lived(spells)
    assert 0 < permille(record, at_ms) <= PERMILLE
    assert 0 < provider_permille(record, at_ms) <= PERMILLE


@given(SPELLS, st.integers(0, 10**10), st.integers(0, 10**10))
def test_ageing_in_two_steps_is_ageing_in_one(spells: list[tuple[str, int]], first_ms: int, second_ms: int) -> None:
    """Invariant: what a history weighs does not depend on when it was looked at in between."""
    record, at_ms = lived(spells)
    once, twice = (
        aged(record, at_ms + first_ms + second_ms),
        aged(aged(record, at_ms + first_ms), at_ms + first_ms + second_ms),
    )
    assert once.good_ms == pytest.approx(twice.good_ms)
    assert once.bad_ms == pytest.approx(twice.bad_ms)


@given(SPELLS, st.integers(1, 10**10))
def test_nothing_but_a_mishap_lowers_it(spells: list[tuple[str, int]], passed_ms: int) -> None:
    """Invariant: time never costs a node that is alive anything, and a mishap never helps."""
    record, at_ms = lived([*spells, ("alive", 0)])
    assert permille(record, at_ms + passed_ms) >= permille(record, at_ms)
    worse = changed(record, change_of(record, lost(at_ms)), at_ms)
    assert permille(worse, at_ms) <= permille(record, at_ms)


def test_the_monitor_tells_a_recovered_reliability_while_the_node_is_alive() -> None:
    monitor = watching("n1")
    wait(monitor, 2 * LOST_MS)
    monitor.hear(beat(2))
    told = [event for event in monitor.act() if isinstance(event, NodeAlive)]
    assert [event.reliability_permille for event in told] == [875]
    sequence = 3
    for _ in range(30 * 24):
        monitor.now_ms += MS_PER_HOUR
        monitor.hear(beat(sequence))
        monitor.probe()
        monitor.act()
        sequence += 1
    rated = [event.reliability_permille for event in monitor.log if isinstance(event, NodeRated)]
    assert rated == sorted(rated)
    assert 5 < len(rated) < 15, "each time that it has moved by enough, and no more often"
