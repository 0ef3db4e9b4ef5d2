"""When too many nodes fall silent at once, nobody is lost until the monitor has reason to trust its eyes."""

import pytest

from tests.unit.health_monitor.builders import BEAT_MS, LOST_MS, Monitor, beat, kinds, wait, watching
from volt.contracts.fleet import FleetEvent, LossesHeld, LossesReleased
from volt.contracts.nodes import NodeLost, NodeUnknown
from volt.contracts.timing import EMBEDDED
from volt_health_monitor.brake import SILENT_NODES_MAX, SILENT_PERCENT_MAX

BRAKE_MS = EMBEDDED.brake_ms_min


def fleet(size: int) -> list[str]:
    return [f"n{number}" for number in range(size)]


def lost(monitor: Monitor) -> list[str]:
    return [event.node for event in monitor.log if isinstance(event, NodeLost)]


def of_fleet(monitor: Monitor) -> list[FleetEvent]:
    return [event for event in monitor.log if isinstance(event, LossesHeld | LossesReleased)]


@pytest.mark.parametrize(
    ("size", "silent", "is_believed"),
    [(3, 3, True), (4, 3, True), (4, 4, False), (1_000, 100, True), (1_000, 300, True), (1_000, 400, False)],
)
def test_more_than_three_nodes_and_three_in_ten_at_once_are_not_believed(
    size: int, silent: int, *, is_believed: bool
) -> None:
    nodes = fleet(size)
    monitor = watching(*nodes)

    wait(monitor, 2 * LOST_MS, *nodes[silent:])

    assert sorted(lost(monitor)) == (sorted(nodes[:silent]) if is_believed else [])
    held = [] if is_believed else [(silent, size, max(SILENT_NODES_MAX, size * SILENT_PERCENT_MAX // 100))]
    assert [
        (one.silent, one.watched, one.silent_max) for one in of_fleet(monitor) if isinstance(one, LossesHeld)
    ] == held


def test_survivors_that_beat_again_resume_as_if_nothing_were() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)
    wait(monitor, 2 * LOST_MS)

    said = wait(monitor, 2 * BRAKE_MS, *nodes)

    assert kinds(said) == [("NodeAlive", node) for node in nodes]
    assert lost(monitor) == []
    assert [type(event).__name__ for event in of_fleet(monitor)] == ["LossesHeld", "LossesReleased"]


def test_whoever_is_silent_when_the_brake_ends_is_lost_then() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)

    wait(monitor, LOST_MS + BRAKE_MS, *nodes[:5])
    assert lost(monitor) == []
    wait(monitor, 2 * LOST_MS, *nodes[:5], first=1_000)

    assert sorted(lost(monitor)) == nodes[5:]
    held, released = of_fleet(monitor)
    assert isinstance(held, LossesHeld)
    assert isinstance(released, LossesReleased)
    assert (released.silent, released.watched) == (5, 10)
    assert released.at_ms - held.at_ms >= BRAKE_MS


def test_nodes_that_fall_silent_one_after_the_other_within_one_l_are_counted_together() -> None:
    nodes = fleet(8)
    monitor = watching(*nodes)
    first = 2
    for gone in range(1, 5):
        wait(monitor, BEAT_MS, *nodes[gone:], first=first)
        first += 1

    wait(monitor, LOST_MS, *nodes[4:], first=first)

    assert [type(event) for event in of_fleet(monitor)] == [LossesHeld]
    assert len(lost(monitor)) < SILENT_NODES_MAX + 1


def test_nodes_that_die_far_apart_are_each_lost() -> None:
    nodes = fleet(8)
    monitor = watching(*nodes)

    for gone in range(1, 8):
        wait(monitor, 2 * LOST_MS, *nodes[gone:], first=1_000 * gone)

    assert lost(monitor) == nodes[:7]
    assert of_fleet(monitor) == []


def test_a_blip_shorter_than_l_does_not_put_the_brake_on() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)
    wait(monitor, LOST_MS - 200)

    wait(monitor, LOST_MS, *nodes)

    assert (of_fleet(monitor), lost(monitor)) == ([], [])


def test_probes_that_do_not_come_back_keep_the_brake_on() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)
    wait(monitor, 2 * LOST_MS)
    for _ in range(5):
        wait(monitor, BRAKE_MS // 2, *nodes[:1], first=monitor.now_ms)
        monitor.reconnect()

    assert [type(event) for event in of_fleet(monitor)] == [LossesHeld]
    assert lost(monitor) == []


def test_another_surge_while_the_brake_holds_begins_its_time_afresh() -> None:
    nodes = fleet(20)
    monitor = watching(*nodes)
    wait(monitor, BRAKE_MS, *nodes[10:])

    wait(monitor, BRAKE_MS, first=1_000)

    assert [type(event) for event in of_fleet(monitor)] == [LossesHeld]
    assert lost(monitor) == []
    wait(monitor, BRAKE_MS)
    assert sorted(lost(monitor)) == sorted(nodes)


def test_a_monitor_that_restarts_holds_on_and_trusts_its_eyes_only_after_as_long_again() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)
    wait(monitor, LOST_MS + BRAKE_MS - 1_000)

    monitor.restart()
    wait(monitor, BRAKE_MS)

    assert lost(monitor) == []
    wait(monitor, 2 * LOST_MS)
    assert sorted(lost(monitor)) == sorted(nodes)


def test_a_node_that_leaves_on_purpose_is_not_held() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)
    wait(monitor, 2 * LOST_MS, *nodes[5:])

    monitor.hear(beat(1_000, node="n9", leaving=True))
    monitor.act()

    assert lost(monitor) == ["n9"]


def test_while_the_brake_holds_silent_nodes_are_unknown_and_nothing_is_sold_of_them() -> None:
    nodes = fleet(10)
    monitor = watching(*nodes)

    wait(monitor, 2 * LOST_MS)

    unknown = [event.node for event in monitor.log if isinstance(event, NodeUnknown)]
    assert sorted(unknown) == nodes
