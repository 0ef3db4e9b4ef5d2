"""A lease that its node froze goes on only by a word in the log, and the log's order decides whether it may."""

from msgspec.structs import replace

from tests.unit.provisioner.world import World, beat, killed
from volt.contracts.clusters import ClusterForming, ClusterReleased, LeaseResumed, MemberLost, MemberPrepared
from volt.contracts.nodes import Thaw


def thaw_of(world: World, node: str) -> Thaw | None:
    return world.desired(node).leases[0].thaw


def test_a_member_that_nobody_has_lost_may_go_on_from_its_freeze() -> None:
    world = World().granted_and_running()
    world.report(world.frozen(1, freeze=2, sequence=40))
    resumed = world.last(LeaseResumed)
    assert (resumed.lease, resumed.node, resumed.freeze, resumed.beat) == ("j1-2", "n1", 2, beat(40))
    assert thaw_of(world, "n1") == Thaw(incarnation="i1", freeze=2)
    assert thaw_of(world, "n0") is None
    assert world.generation == 1


def test_a_freeze_is_answered_once_and_each_one_anew() -> None:
    world = World().granted_and_running()
    for freeze, sequence in ((1, 40), (1, 44), (2, 50)):
        world.report(world.frozen(1, freeze, sequence))
    assert [(one.freeze, one.beat.sequence) for one in world.all(LeaseResumed)] == [(1, 40), (2, 50)]


def test_all_members_that_froze_while_the_bus_was_away_go_on_in_the_same_generation() -> None:
    world = World().granted_and_running()
    for rank in (0, 1):
        world.report(world.frozen(rank, 1, 40))
    assert thaw_of(world, "n0") == thaw_of(world, "n1") == Thaw(incarnation="i1", freeze=1)
    assert len(world.all(ClusterForming)) == 1


def test_a_loss_before_it_voids_the_leave_to_go_on() -> None:
    world = World().granted_and_running()
    decided = world.decided(world.frozen(1, 1, 40))
    world.write(world.lost("n1", sequence=30))
    for event in decided:
        world.happen(event)
    assert world.last(MemberLost).lease == "j1-2"
    assert thaw_of(world, "n1") is None


def test_the_leave_to_go_on_voids_a_loss_that_knows_only_of_older_beats() -> None:
    world = World().granted_and_running()
    world.report(world.frozen(1, 1, sequence=40))
    world.lose_after("n1", sequence=30)
    assert not world.all(MemberLost)
    assert thaw_of(world, "n1") == Thaw(incarnation="i1", freeze=1)
    world.lose_after("n1", sequence=41)
    assert world.last(MemberLost).lease == "j1-2", "a silence after that beat is another one"


def test_a_node_that_prepared_after_its_silence_is_not_lost_by_it() -> None:
    """A node that starts after a loss was decided, and before it is told, would run beside its successor."""
    world = World()
    world.grant()
    for rank in (0, 1):
        world.report(replace(world.prepared(rank), beat=beat(40)))
    world.lose_after("n1", sequence=30)
    assert not world.all(MemberLost)
    world.lose_after("n1", sequence=40)
    assert world.last(MemberLost).lease == "j1-2"


def test_a_loss_of_which_nobody_knows_the_last_beat_counts() -> None:
    world = World().granted_and_running()
    world.report(world.frozen(1, 1, 40))
    world.lose("n1")
    assert world.last(MemberLost).lease == "j1-2"


def test_who_was_fenced_and_prepared_anew_is_prepared_since_then() -> None:
    world = World()
    world.grant()
    for sequence in (10, 10, 20):
        world.report(replace(world.prepared(0), beat=beat(sequence)))
    assert [one.beat for one in world.all(MemberPrepared)] == [beat(10), beat(20)]


def test_whoever_has_ended_left_or_is_to_halt_does_not_go_on() -> None:
    world = World().granted_and_running()
    world.report(world.ended(1, killed(9)))
    for rank in (0, 1):
        world.report(world.frozen(rank, 1, 40))
    assert not world.all(LeaseResumed), "the generation has ended"
    world = World().granted_and_running()
    world.release()
    world.report(world.frozen(0, 1, 40))
    assert world.all(ClusterReleased)
    assert not world.all(LeaseResumed)


def test_a_freeze_of_an_older_generation_is_not_answered() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.report(world.frozen(0, 1, 40, generation=1))
    assert not world.all(LeaseResumed)
