"""The table of a node's states, and that nothing leaves it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.health_monitor.builders import BEAT_MS, Monitor, alive, beat, lost, unknown
from volt.contracts.nodes import NO_INCARNATION, NodeAlive, NodeEvent
from volt_health_monitor.nodes import UNSEEN, Alive, Lost, NodeState, Unknown, after

SEEN = ("i1",)
TABLE: list[tuple[NodeState, NodeEvent, NodeState | None]] = [
    (UNSEEN, alive(at_ms=1), Alive(SEEN, 1)),
    (UNSEEN, unknown(), None),
    (UNSEEN, lost(), None),
    (UNSEEN, replace(lost(incarnation=NO_INCARNATION, at_ms=5), cause="never_beat"), Lost((NO_INCARNATION,), 5, 5)),
    (Alive(SEEN, 1), alive(), None),
    (Alive(SEEN, 1), alive(incarnation="i2", at_ms=5), Alive(("i1", "i2"), 5)),
    (Alive(SEEN, 1), unknown(at_ms=5), Unknown(SEEN, 1, 5)),
    (Alive(SEEN, 1), lost(at_ms=5), Lost(SEEN, 1, 5)),
    (Alive(SEEN, 1), lost(incarnation="i2", at_ms=5), Lost(("i1", "i2"), 1, 5)),
    (Unknown(SEEN, 1, 5), alive(at_ms=6), Alive(SEEN, 6)),
    (Unknown(SEEN, 1, 5), unknown(), None),
    (Unknown(SEEN, 1, 5), lost(at_ms=6), Lost(SEEN, 1, 6)),
    (Lost(SEEN, 1, 5), alive(at_ms=6), Alive(SEEN, 6)),
    (Lost(SEEN, 1, 5), unknown(), None),
    (Lost(SEEN, 1, 5), lost(), None),
]


@pytest.mark.parametrize(("node", "event", "expected"), TABLE)
def test_no_transition_outside_the_table_is_folded(
    node: NodeState, event: NodeEvent, expected: NodeState | None
) -> None:
    if expected is not None:
        assert after(node, event) == expected
        return
    with pytest.raises(AssertionError):
        after(node, event)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["beat", "leave", "new", "old", "repeat", "probe", "act", "wait", "restart", "reconnect"]),
        st.sampled_from(["n1", "n2"]),
    ),
    max_size=60,
)


@given(STEPS)
@settings(deadline=None)
def test_whatever_happens_the_log_stays_within_the_table(steps: list[tuple[str, str]]) -> None:
    """Invariant: every event that effects ask for can be folded, and a node that beats at the end is alive."""
    monitor = Monitor()
    starts, sequences = {"n1": 1, "n2": 1}, {"n1": 0, "n2": 0}
    for what, node in steps:
        if what == "new":
            starts[node] += 1
        if what in ("beat", "leave", "new"):
            sequences[node] += 1
        match what:
            case "beat" | "leave" | "new" | "repeat":
                incarnation = f"i{starts[node]}"
                monitor.hear(beat(sequences[node], node=node, incarnation=incarnation, leaving=what == "leave"))
            case "old":
                monitor.hear(beat(1, node=node, incarnation="i1"))
            case "probe":
                monitor.probe()
            case "act":
                monitor.act()
            case "wait":
                monitor.now_ms += 700
            case "restart":
                monitor.restart()
            case "reconnect":
                monitor.reconnect()
    for node in ("n1", "n2"):
        monitor.now_ms += BEAT_MS
        starts[node] += 1
        monitor.hear(beat(1, node=node, incarnation=f"i{starts[node]}"))
        monitor.probe()
        monitor.act()
    last = {event.node: event for event in monitor.log if isinstance(event, NodeEvent)}
    assert all(isinstance(event, NodeAlive) for event in last.values())
    assert {node: event.incarnation for node, event in last.items()} == {
        node: f"i{start}" for node, start in starts.items()
    }
