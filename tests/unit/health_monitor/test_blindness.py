"""Cannot observe is not dead: what proves no silence, and what does."""

from tests.unit.health_monitor.builders import (
    BEAT_MS,
    EPOCH_MS,
    LOST_MS,
    PROVIDER,
    Monitor,
    alive,
    beat,
    kinds,
    wait,
    watching,
)
from volt.contracts.nodes import NodeLost, NodeUnknown
from volt.contracts.timing import EMBEDDED
from volt_health_monitor.domain import probe_after_ms
from volt_health_monitor.nodes import NodeKey


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


def test_a_probe_is_sent_early_when_a_node_is_about_to_be_silent_for_l() -> None:
    monitor = watching("n1")
    wait(monitor, 2_200)

    assert probe_after_ms(monitor.state, monitor.now_ms) == 300
    assert probe_after_ms(monitor.state, LOST_MS - 1) == EMBEDDED.tick_ms
    assert probe_after_ms(monitor.state, LOST_MS) == BEAT_MS
    assert probe_after_ms(Monitor().state, 0) == BEAT_MS
