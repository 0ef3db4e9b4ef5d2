"""Who is alive, unknown or lost: what beats and silence make the log say of a node."""

from msgspec.structs import replace

from tests.unit.health_monitor.builders import EPOCH_MS, LOST_MS, PROVIDER, Monitor, alive, beat, kinds, wait, watching
from volt.contracts.nodes import NodeLost, NodeUnknown
from volt_health_monitor.nodes import NodeKey


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

    assert monitor.act() == [replace(alive("n1", "i1", EPOCH_MS + 3_000), reliability_permille=875)]


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


def test_a_hundred_nodes_of_a_thousand_that_fall_silent_together_are_each_lost_once() -> None:
    nodes = [f"n{number}" for number in range(1_000)]
    monitor = watching(*nodes)

    events = wait(monitor, 5_000, *nodes[100:])

    assert len(events) == 200
    assert {event.node for event in events if isinstance(event, NodeLost)} == set(nodes[:100])
