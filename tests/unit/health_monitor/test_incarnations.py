"""Repeated beats, late beats, and two agents with one identity."""

from tests.unit.health_monitor.builders import EPOCH_MS, PROVIDER, Monitor, alive, beat, kinds, wait, watching
from volt.contracts.nodes import NodeEvent, NodeLost, NodeUnknown
from volt_health_monitor.nodes import INCARNATIONS_REMEMBERED_MAX, NodeKey


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


def test_a_node_that_restarts_for_ever_is_remembered_within_a_bound() -> None:
    monitor = watching("n1")

    for number in range(2, 40):
        monitor.hear(beat(1, incarnation=f"i{number}"))
        monitor.act()

    key = NodeKey(PROVIDER, "n1")
    assert monitor.log[-1] == alive("n1", "i39", EPOCH_MS)
    assert len(monitor.state.beats.sights[key].started) == INCARNATIONS_REMEMBERED_MAX
    assert len(monitor.log) == 39
