"""How far a node can be relied on."""

from hypothesis import given
from hypothesis import strategies as st

from volt.contracts.nodes import LostCause, NodeAlive, NodeEvent, NodeLost, NodeUnknown
from volt.contracts.units import MS_PER_HOUR
from volt_health_monitor.reliability import PERMILLE, Record, recorded, reliability_permille


def alive(at_ms: int) -> NodeAlive:
    return NodeAlive(account="lab", node="n1", incarnation="i", at_ms=at_ms)


def lost(at_ms: int, cause: LostCause = "silent") -> NodeLost:
    return NodeLost(account="lab", node="n1", incarnation="i", at_ms=at_ms, cause=cause)


def history(*events: NodeEvent) -> Record:
    record = Record()
    for event in events:
        record = recorded(record, event)
    return record


def test_a_node_is_relied_on_until_it_falls_silent() -> None:
    assert reliability_permille(Record(), 0) == PERMILLE
    assert reliability_permille(history(alive(0), lost(MS_PER_HOUR)), MS_PER_HOUR) == 875
    assert reliability_permille(history(alive(0), lost(MS_PER_HOUR, "left")), MS_PER_HOUR) == PERMILLE


def test_a_doubt_that_passes_costs_nothing() -> None:
    unknown = NodeUnknown(account="lab", node="n1", incarnation="i", at_ms=5)
    assert history(alive(0), unknown, alive(9)) == history(alive(0))


def test_time_alive_makes_up_for_a_loss() -> None:
    record = history(alive(0), lost(MS_PER_HOUR), alive(2 * MS_PER_HOUR))
    after = [reliability_permille(record, hours * MS_PER_HOUR) for hours in (2, 24, 24 * 30)]
    assert after == sorted(after)
    assert after[-1] > 960


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**9)), max_size=30))
def test_it_is_always_between_nothing_and_all(steps: list[tuple[bool, int]]) -> None:
    at_ms, record = 0, Record()
    for is_alive, passed_ms in steps:
        at_ms += passed_ms
        record = recorded(record, alive(at_ms) if is_alive else lost(at_ms))
        assert 0 < reliability_permille(record, at_ms) <= PERMILLE
