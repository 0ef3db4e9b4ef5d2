"""What went wrong elsewhere, with the outcome that is right."""

from msgspec.structs import fields

from tests.unit.health_monitor.builders import BEAT_MS, LOST_MS, beat, kinds, wait, watching
from volt.contracts.nodes import Heartbeat, NodeAlive, NodeLost, NodeUnknown


def test_the_window_of_silence_begins_afresh_with_each_recovery() -> None:
    """skypilot#10155: 25 status timeouts caused 24 relaunches, because the clock was never reset."""
    monitor = watching("n1", "n2")
    for number in range(25):
        wait(monitor, LOST_MS - 200, "n2", first=2 + 100 * number)
        monitor.hear(beat(2 + number))
        monitor.act()

    of_n1 = [event for event in monitor.log if getattr(event, "node", "") == "n1"]
    assert not [event for event in of_n1 if isinstance(event, NodeLost)]
    assert sum(isinstance(event, NodeUnknown) for event in of_n1) == 25


def test_no_beat_tells_what_time_its_node_believes_it_is() -> None:
    """zos#2272: a clock that is 3 hours ahead, or jumps, has no effect where nobody reads it."""
    told = {field.name for field in fields(Heartbeat) if field.name.endswith(("_ms", "_at", "time"))}
    assert told == {"fence_after_ms"}


def test_a_stream_time_that_jumps_three_hours_ahead_and_back_loses_nobody() -> None:
    monitor = watching("n1", "n2", "n3")
    for sequence, ahead_ms in enumerate((0, 10_800_000, 10_800_000, 0, 0), start=2):
        monitor.now_ms += BEAT_MS
        for node in ("n1", "n2", "n3"):
            monitor.hear_at(monitor.now_ms + ahead_ms, beat(sequence, node=node))
        monitor.probe()
        monitor.act()

    assert kinds(wait(monitor, 2 * LOST_MS, "n1", "n2", "n3", first=100)) == []
    assert [kind for kind, _ in kinds(monitor.log)] == ["NodeAlive"] * 3


def test_a_blip_of_the_control_plane_closes_nothing() -> None:
    """akash support#245: it closed every lease."""
    nodes = [f"n{number}" for number in range(50)]
    monitor = watching(*nodes)
    monitor.now_ms += 60_000
    monitor.reconnect()
    monitor.probe()

    said = [*monitor.act(), *wait(monitor, LOST_MS - 200), *wait(monitor, 4 * LOST_MS, *nodes)]

    assert not [event for event in said if isinstance(event, NodeLost)]


def test_a_lost_node_that_beats_again_is_alive_at_once() -> None:
    """nomad#5876: a reconnecting agent was killed."""
    monitor = watching("n1", "n2")
    wait(monitor, 2 * LOST_MS, "n2")

    monitor.hear(beat(2))

    (again,) = monitor.act()
    assert isinstance(again, NodeAlive)
    assert again.incarnation == "i1"
