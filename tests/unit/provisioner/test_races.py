"""What the log shows first decides, whichever two things happen at once."""

from tests.unit.provisioner.world import World, admitted, code, killed
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReleased,
    GenerationEnded,
    MemberLost,
    MembersWanted,
)


def test_loss_before_failing_exit_gives_a_new_generation() -> None:
    world = World().granted_and_running()
    world.write(world.lost("n1"))
    world.record(world.ended(0, code(1), generation=1))
    world.follow()
    assert world.last(GenerationEnded).lease == "j1-1", "whose trouble was recorded first"
    assert world.last(ClusterForming).generation == 2
    assert not world.all(ClusterReleased)


def test_failing_exit_before_loss_gives_a_new_generation_too() -> None:
    world = World().granted_and_running()
    world.report(world.ended(0, code(1)))
    assert world.names()[-1] == "GenerationEnded"
    assert not world.all(ClusterReleased), "rank 1 has neither ended nor is lost"
    world.lose("n1")
    forming = world.last(ClusterForming)
    assert (forming.generation, forming.replaces) == (2, ("j1-2",))
    world.report(world.prepared(0))
    world.replace("n9", 3, 1)
    world.report(world.prepared(1))
    assert world.names()[-1] == "ClusterStarting", "rank 0 had ended generation 1 by failing"


def test_a_loss_after_the_cause_was_decided_comes_too_late() -> None:
    world = World().granted_and_running()
    world.report(world.ended(0, code(1)))
    world.record(world.ended(1, killed(15)))
    world.lose("n1")
    assert world.last(ClusterReleased).reason == "workload_failed"
    assert not world.all(MemberLost)


def test_a_loss_after_everybody_exited_0_comes_too_late() -> None:
    world = World().granted_and_running()
    world.record(world.ended(0, code(0)))
    world.record(world.ended(1, code(0)))
    world.lose("n1")
    assert world.last(ClusterReleased).reason == "completed"
    assert not world.all(MemberLost)


def test_a_loss_before_the_last_exit_0_restarts_the_gang() -> None:
    world = World().granted_and_running()
    world.record(world.ended(0, code(0)))
    world.write(world.lost("n0"))
    world.record(world.ended(1, code(0)))
    world.follow()
    assert not world.all(ClusterReleased)
    assert world.last(ClusterForming).replaces == ("j1-1",)


def test_loss_before_release_and_release_before_loss_both_end_released() -> None:
    for first, second in (("loss", "release"), ("release", "loss")):
        world = World().granted_and_running()
        for what in (first, second):
            world.write(world.lost("n1") if what == "loss" else world.release_accepted())
        world.follow()
        assert world.names()[-1] == "ClusterReleased"
        assert world.last(ClusterReleased).reason == "released"
        assert not world.all(MembersWanted)
        assert world.phases("n0") == world.phases("n1") == [("stop", 1)]


def test_a_loss_that_was_answered_stays_answered_by_the_release_that_follows() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.release()
    assert world.last(ClusterReleased).generation == 2
    assert world.phases("n0") == [("stop", 2)]
    assert world.phases("n1") == [("stop", 1)]


def test_starting_and_a_loss_that_the_log_shows_before_it_ends_that_start() -> None:
    """The provisioner appends what it decided before it could read of the loss."""
    world = World()
    world.write(admitted(wanted=world.spec))
    world.happen(world.first_gang())
    world.report(world.prepared(0))
    world.record(world.prepared(1))
    (starting,) = world.due()
    world.write(world.lost("n1"))
    world.write(starting)
    world.follow()
    assert world.names()[-4:] == ["MemberLost", "GenerationEnded", "ClusterForming", "MembersWanted"]
    assert world.generation == 2
