"""Before a node is lost the leader of the beat stream is asked for its last beat; and a bid is followed by a first."""

from tests.unit.health_monitor.builders import (
    BEAT_MS,
    LOST_MS,
    PROVIDER,
    Monitor,
    alive,
    beat,
    kinds,
    wait,
    watching,
)
from volt.contracts.bids import BidAccepted, BidWithdrawn, Gpu, Place, Terms
from volt.contracts.nodes import NodeAlive, NodeLost
from volt.contracts.timing import EMBEDDED
from volt_health_monitor.domain import cancel, confirm, unconfirmed
from volt_health_monitor.nodes import NodeKey

KEY = NodeKey(PROVIDER, "n1")


def offered(node: str = "n1") -> BidAccepted:
    gpu = Gpu(uuid="gpu-1", model="h100-80gb")
    return BidAccepted(
        account=PROVIDER,
        node=node,
        request_id="r1",
        request_digest="",
        place=Place(),
        at_ms=0,
        gpus=(gpu,),
        terms=Terms(ask_microusd_per_gpu_hour=1),
    )


def test_nobody_is_lost_before_the_leader_has_been_asked() -> None:
    monitor = watching("n1", "n2")
    monitor.is_leader_there = False

    said = wait(monitor, 4 * LOST_MS, "n2")

    assert kinds(said) == [("NodeUnknown", "n1")]
    assert [key for key, _ in unconfirmed(monitor.state)] == [KEY]
    monitor.ask_the_leader()
    assert kinds(monitor.act()) == [("NodeLost", "n1")]


def test_a_newer_beat_at_the_leader_cancels_and_silence_begins_afresh() -> None:
    monitor = watching("n1", "n2")
    monitor.is_leader_there = False
    wait(monitor, 2 * LOST_MS, "n2")

    cancel(monitor.state, KEY, monitor.now_ms)
    monitor.is_leader_there = True

    assert kinds(wait(monitor, LOST_MS - 200, "n2", first=100)) == []
    assert kinds(wait(monitor, LOST_MS, "n2", first=200)) == [("NodeLost", "n1")]


def test_an_answer_about_an_older_beat_than_the_last_read_confirms_nothing() -> None:
    monitor = watching("n1")
    monitor.is_leader_there = False
    wait(monitor, 2 * LOST_MS)
    ((key, seen),) = unconfirmed(monitor.state)
    monitor.hear(beat(2))
    wait(monitor, 2 * LOST_MS)

    confirm(monitor.state, key, seen)

    assert monitor.act() == []


def test_a_bid_whose_node_never_beats_ends_as_lost_after_its_deadline() -> None:
    """PrimeIntellect protocol#13: an agent that registers and never sends its first heartbeat waited forever."""
    monitor = watching("n2")
    monitor.append(offered())

    said = wait(monitor, EMBEDDED.first_beat_ms_max + 1_000, "n2")

    (lost,) = said
    assert isinstance(lost, NodeLost)
    assert (lost.node, lost.cause) == ("n1", "never_beat")
    monitor.hear(beat(1))
    (revived,) = monitor.act()
    assert isinstance(revived, NodeAlive)
    assert revived.reliability_permille == 1_000


def test_a_bid_whose_node_beats_before_the_deadline_is_no_loss() -> None:
    monitor = watching("n2")
    monitor.append(offered())
    wait(monitor, EMBEDDED.first_beat_ms_max - 1_000, "n2")

    said = wait(monitor, EMBEDDED.first_beat_ms_max, "n1", "n2", first=1_000)

    assert kinds(said) == [("NodeAlive", "n1")]


def test_a_bid_that_is_withdrawn_waits_for_no_beat() -> None:
    monitor = watching("n2")
    monitor.append(offered(), BidWithdrawn(account=PROVIDER, node="n1", request_id="r2", at_ms=0))

    assert wait(monitor, 2 * EMBEDDED.first_beat_ms_max, "n2") == []


def test_the_deadline_of_a_first_beat_starts_afresh_with_the_monitor() -> None:
    monitor = Monitor()
    monitor.append(offered())
    monitor.now_ms = 3_600_000
    monitor.restart()
    monitor.probe()

    assert wait(monitor, EMBEDDED.first_beat_ms_max - BEAT_MS) == []
    assert kinds(wait(monitor, 2 * BEAT_MS)) == [("NodeLost", "n1")]


def test_a_bid_of_a_node_that_is_known_already_sets_no_deadline() -> None:
    monitor = watching("n1")
    monitor.append(offered())
    monitor.append(alive("n3"), offered("n3"))

    said = wait(monitor, 2 * EMBEDDED.first_beat_ms_max, "n1", "n3")

    assert kinds(said) == []


def test_many_bids_without_beats_do_not_put_the_brake_on() -> None:
    monitor = watching("n0")
    monitor.append(*(offered(f"m{number}") for number in range(50)))

    said = wait(monitor, EMBEDDED.first_beat_ms_max + 1_000, "n0")

    assert [type(event) for event in said] == [NodeLost] * 50
