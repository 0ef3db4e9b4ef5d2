"""Who is alive, unknown or lost: what the log says of a node, and what may not make it say so."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.health_monitor.builders import EPOCH_MS, PROVIDER, Monitor, alive, beat, lost, unknown
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeEvent, NodeLost, NodeUnknown
from volt.contracts.timing import EMBEDDED
from volt_health_monitor.domain import probe_after_ms
from volt_health_monitor.nodes import UNSEEN, Alive, Lost, NodeKey, NodeState, Unknown, after

BEAT_MS, LOST_MS = EMBEDDED.beat_ms, EMBEDDED.lost_after_ms


def watching(*nodes: str) -> Monitor:
    """A monitor in sight of these nodes, each alive by its first beat at 0."""
    monitor = Monitor()
    monitor.probe()
    monitor.hear(*(beat(1, node=node) for node in nodes))
    monitor.act()
    return monitor


def wait(monitor: Monitor, ms: int, *beating: str, first: int = 2) -> list[NodeEvent]:
    """Time passes, with the probes and these nodes' beats in it; returns what the monitor said of nodes."""
    known, sequence = len(monitor.log), first
    for _ in range(ms // 100):
        monitor.now_ms += 100
        if monitor.now_ms % BEAT_MS == 0:
            monitor.hear(*(beat(sequence, node=node) for node in beating))
            sequence += 1
        monitor.probe()
        monitor.act()
    return [event for event in monitor.log[known:] if isinstance(event, NodeEvent)]


def kinds(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(type(event).__name__, event.node) for event in events if isinstance(event, NodeEvent)]


def test_the_first_beat_makes_a_node_alive() -> None:
    monitor = watching("n1")

    assert monitor.log == [alive("n1", "i1", EPOCH_MS)]


def test_further_beats_of_the_same_incarnation_say_nothing_new() -> None:
    monitor = watching("n1")

    assert wait(monitor, 60_000, "n1") == []


def test_a_silent_node_is_unknown_after_half_of_l_and_lost_after_l_of_its_last_beat() -> None:
    monitor = watching("n1", "n2")

    events = wait(monitor, 10_000, "n2")

    assert [(type(event), event.node, event.at_ms - EPOCH_MS) for event in events] == [
        (NodeUnknown, "n1", 1_300),
        (NodeLost, "n1", LOST_MS),
    ]
    assert isinstance(events[1], NodeLost)
    assert (events[1].cause, events[1].incarnation) == ("silent", "i1")


def test_a_leaving_beat_loses_the_node_at_once() -> None:
    monitor = watching("n1")

    monitor.hear(beat(2, leaving=True))

    (left,) = monitor.act()
    assert isinstance(left, NodeLost)
    assert (left.cause, left.at_ms) == ("left", EPOCH_MS)
    assert wait(monitor, 10_000) == []


def test_an_unknown_node_that_leaves_is_lost_at_once() -> None:
    monitor = watching("n1")
    wait(monitor, 1_500)

    monitor.hear(beat(2, leaving=True))

    (left,) = monitor.act()
    assert isinstance(left, NodeLost)
    assert left.cause == "left"


def test_a_node_whose_only_beat_says_that_it_leaves_was_never_there() -> None:
    monitor = Monitor()
    monitor.probe()

    monitor.hear(beat(1, leaving=True))

    assert monitor.act() == []


def test_an_unknown_node_that_beats_again_is_alive_and_keeps_what_it_ran() -> None:
    monitor = watching("n1")
    said = wait(monitor, 1_500)

    monitor.hear(beat(2))

    assert kinds(said) == [("NodeUnknown", "n1")]
    assert monitor.act() == [alive("n1", "i1", EPOCH_MS + 1_500)]


def test_the_window_begins_anew_at_recovery() -> None:
    """One full L has to pass after a node that was nearly lost has beaten again."""
    monitor = watching("n1")
    wait(monitor, 2_400)
    monitor.hear(beat(2))
    monitor.act()

    events = wait(monitor, 10_000)

    assert [(type(event), event.at_ms - EPOCH_MS) for event in events] == [(NodeUnknown, 3_700), (NodeLost, 4_900)]


def test_a_lost_node_that_beats_again_is_alive_again() -> None:
    monitor = watching("n1")
    wait(monitor, 3_000)

    monitor.hear(beat(2))

    assert monitor.act() == [alive("n1", "i1", EPOCH_MS + 3_000)]


def test_a_new_incarnation_is_announced_without_a_loss() -> None:
    monitor = watching("n1")

    monitor.hear(beat(1, incarnation="i2"))

    assert monitor.act() == [alive("n1", "i2", EPOCH_MS)]


def test_beats_of_an_older_incarnation_do_not_count() -> None:
    """Two agents with one identity: the one that started last is the node."""
    monitor = watching("n1")
    monitor.hear(beat(1, incarnation="i2"))
    monitor.act()

    said: list[NodeEvent] = []
    for sequence in range(2, 40):
        monitor.hear(beat(sequence, incarnation="i1"))
        said += wait(monitor, 100)

    assert kinds(said) == [("NodeUnknown", "n1"), ("NodeLost", "n1")]
    assert all(event.incarnation == "i2" for event in said)


def test_an_older_incarnation_does_not_come_back_after_a_restart_either() -> None:
    monitor = watching("n1")
    monitor.hear(beat(1, incarnation="i2"))
    monitor.act()
    monitor.restart()
    monitor.probe()

    monitor.hear(beat(2, incarnation="i1"), beat(2, incarnation="i2"))

    assert monitor.act() == []


def test_an_older_incarnation_of_which_only_the_log_knows_does_not_count_either() -> None:
    monitor = Monitor()
    monitor.append(alive("n1", "i1", EPOCH_MS), alive("n1", "i2", EPOCH_MS + 1_000))
    monitor.now_ms = 60_000
    monitor.probe()

    said: list[NodeEvent] = []
    for sequence in range(2, 40):
        monitor.hear(beat(sequence, incarnation="i1"))
        said += wait(monitor, 100)

    assert [(type(event), event.incarnation) for event in said] == [(NodeUnknown, "i2"), (NodeLost, "i2")]


def test_an_older_incarnation_whose_beats_are_read_again_is_not_announced_again() -> None:
    """The newer one's beats were lost with their server; the log knows of it."""
    monitor = Monitor()
    monitor.append(alive("n1", "i1", EPOCH_MS), alive("n1", "i2", EPOCH_MS + 1_000))
    monitor.hear_at(500, beat(1, incarnation="i1"))

    monitor.probe()

    assert monitor.act() == []


def test_repeated_and_overtaken_beats_do_not_keep_a_node_alive() -> None:
    monitor = watching("n1")
    monitor.hear(beat(7))

    said: list[NodeEvent] = []
    for sequence in (7, 6, 5, 7, 4, 3, 7, 7, 1, 2, 7, 7, 7) * 3:
        monitor.hear(beat(sequence))
        said += wait(monitor, 100)

    assert kinds(said) == [("NodeUnknown", "n1"), ("NodeLost", "n1")]


def test_a_node_that_the_log_says_is_alive_and_that_never_beats_is_lost_after_l() -> None:
    """Its agent was seen by an earlier process of the monitor, and not by this one."""
    monitor = Monitor()
    monitor.append(alive("n1"))
    monitor.now_ms = 60_000
    monitor.probe()

    events = wait(monitor, 10_000)

    assert [(type(event), event.at_ms - EPOCH_MS) for event in events] == [(NodeUnknown, 61_300), (NodeLost, 62_500)]


def test_a_monitor_that_was_down_loses_nobody_that_beats() -> None:
    monitor = watching("n1")
    monitor.now_ms = 600_000

    monitor.restart()
    monitor.probe()

    assert monitor.act() == []
    assert wait(monitor, 10_000, "n1") == []


def test_a_bus_that_is_away_for_long_loses_nobody_that_beats_again() -> None:
    """Neither beats nor probes are stored while it is away; the nodes' beats come after the monitor's own probe."""
    monitor = watching("n1", "n2")
    monitor.now_ms = 60_000

    monitor.reconnect()
    monitor.probe()
    said = [*monitor.act(), *wait(monitor, 400), *wait(monitor, 10_000, "n1", "n2")]

    assert said == []


def test_a_bus_that_stalls_without_breaking_the_connection_loses_nobody() -> None:
    """The probes that wait in the monitor's connection are stored before the beats that wait in the nodes'."""
    monitor = watching("n1")
    sent_ms, monitor.now_ms = range(BEAT_MS, 60_000, BEAT_MS), 60_000

    said = []
    for one in sent_ms:
        monitor.probe_sent(one)
        said += monitor.act()
    monitor.hear(beat(2))

    assert [*said, *monitor.act(), *wait(monitor, 10_000, "n1", first=3)] == []


def test_a_monitor_that_was_paused_loses_nobody() -> None:
    """The beats of the pause are read late, after its end; the probe in flight was sent before it."""
    monitor = watching("n1")
    monitor.now_ms = 400
    sent_ms, monitor.now_ms = monitor.now_ms, 60_000

    monitor.probe_sent(sent_ms)
    said = monitor.act()
    monitor.hear(*(beat(sequence) for sequence in range(2, 120)))
    monitor.probe()

    assert [*said, *monitor.act(), *wait(monitor, 10_000, "n1", first=120)] == []


def test_a_reader_that_lags_loses_nobody() -> None:
    """Probes are read ten seconds after they were sent, and so are the beats before them."""
    monitor = watching("n1")
    said = []

    for sequence in range(2, 60):
        monitor.now_ms += BEAT_MS
        monitor.hear(beat(sequence))
        monitor.probe_sent(monitor.now_ms - 10_000)
        said += monitor.act()

    assert said == []


def test_silence_without_probes_proves_nothing() -> None:
    monitor = watching("n1")

    monitor.now_ms = 3_600_000

    assert monitor.act() == []


def test_only_a_probe_sent_after_l_of_silence_proves_the_loss() -> None:
    """What the node sent meanwhile is stored behind a probe that was sent before."""
    monitor = watching("n1")
    wait(monitor, 2_400)
    sent_ms, monitor.now_ms = monitor.now_ms, 3_000

    monitor.probe_sent(sent_ms)

    assert monitor.act() == []
    monitor.probe()
    assert kinds(monitor.act()) == [("NodeLost", "n1")]


def test_a_probe_sent_before_half_of_l_of_silence_proves_nothing() -> None:
    monitor = watching("n1")
    wait(monitor, 1_200)
    sent_ms, monitor.now_ms = monitor.now_ms, 2_000

    monitor.probe_sent(sent_ms)

    assert monitor.act() == []


def test_a_lost_node_is_not_waited_for_any_more() -> None:
    monitor = watching("n1", "n2")

    wait(monitor, 3_000, "n2")

    assert list(monitor.state.beats.receipts) == [NodeKey(PROVIDER, "n2")]
    assert monitor.state.beats.silences == {}


def test_a_beat_read_before_the_loss_is_recorded_cancels_it() -> None:
    monitor = watching("n1")
    wait(monitor, LOST_MS - 100)
    monitor.now_ms += 100
    monitor.probe()

    monitor.hear(beat(2))

    assert monitor.act() == [alive("n1", "i1", EPOCH_MS + LOST_MS)]


def test_nothing_is_said_of_nodes_before_a_probe_has_been_read_back() -> None:
    """What has been read so far may be old: the stream's end may say otherwise."""
    monitor = Monitor()
    monitor.hear(beat(1))
    assert monitor.act() == []

    monitor.probe()

    assert monitor.act() == [alive("n1", "i1", EPOCH_MS)]


def test_beats_from_before_a_loss_that_are_read_again_do_not_revive_the_node() -> None:
    monitor = watching("n1")
    wait(monitor, 3_000)

    monitor.restart()
    monitor.probe()

    assert NodeKey(PROVIDER, "n1") in monitor.state.beats.sights
    assert monitor.act() == []


def test_a_stream_time_that_jumps_back_changes_nothing_for_nodes() -> None:
    monitor = watching("n1")
    wait(monitor, 1_000, "n1")

    for sequence in range(10, 20):
        monitor.now_ms += BEAT_MS
        monitor.hear_at(monitor.now_ms - 10_800_000, beat(sequence))
        monitor.probe()

    assert monitor.act() == []


def test_a_thousand_nodes_that_fall_silent_together_are_each_lost_once() -> None:
    nodes = [f"n{number}" for number in range(1_000)]
    monitor = watching(*nodes)

    events = wait(monitor, 5_000)

    assert len(events) == 2_000
    assert {event.node for event in events if isinstance(event, NodeLost)} == set(nodes)


def test_a_probe_is_sent_early_when_a_node_is_about_to_be_silent_for_l() -> None:
    monitor = watching("n1")
    wait(monitor, 2_200)

    assert probe_after_ms(monitor.state, monitor.now_ms) == 300
    assert probe_after_ms(monitor.state, LOST_MS - 1) == EMBEDDED.tick_ms
    assert probe_after_ms(monitor.state, LOST_MS) == BEAT_MS
    assert probe_after_ms(Monitor().state, 0) == BEAT_MS


SEEN = ("i1",)
TABLE: list[tuple[NodeState, NodeEvent, NodeState | None]] = [
    (UNSEEN, alive(at_ms=1), Alive(SEEN, 1)),
    (UNSEEN, unknown(), None),
    (UNSEEN, lost(), None),
    (Alive(SEEN, 1), alive(), None),
    (Alive(SEEN, 1), alive(incarnation="i2", at_ms=5), Alive(("i1", "i2"), 5)),
    (Alive(SEEN, 1), unknown(at_ms=5), Unknown(SEEN, 1, 5)),
    (Alive(SEEN, 1), lost(at_ms=5), Lost(SEEN, 1, 5)),
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
