"""A workload that fails begins again as often as its job says, each time after twice as long, with the same members."""

import pytest

from tests.unit.provisioner.sizes import ranks, start
from tests.unit.provisioner.world import World, code, killed, spec
from volt.contracts.clusters import ClusterForming, ClusterReleased, Exit, MembersWanted, RetryPlanned
from volt.contracts.jobs import Recovery
from volt_provisioner.causes import RESTARTS_MAX, RETRY_MS_MAX, RETRY_MS_MIN


def running(retries: int, nodes: int = 2) -> World:
    return World(spec(nodes, recovery=Recovery(retries=retries))).granted_and_running()


def fail(world: World, exit_: Exit | None = None) -> None:
    """Rank 1 fails, and the others are ended."""
    world.report(world.ended(1, exit_ or code(3)))
    world.report(world.ended(0, killed(15)))


def begin_again(world: World) -> None:
    planned = world.last(RetryPlanned)
    world.tick(planned.begins_ms - world.now_ms + 1)
    for rank in range(2):
        world.report(world.prepared(rank))
    start(world, 0, 1)
    assert world.names()[-1] == "ClusterReady"


def test_without_retries_a_failure_ends_the_job_with_the_culprits_exit_code() -> None:
    world = running(0)
    fail(world)
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code) == ("workload_failed", 3)


def test_a_retry_waits_with_its_members_which_are_halted_and_then_begins_with_them() -> None:
    world = running(1)
    fail(world)
    planned = world.last(RetryPlanned)
    assert (planned.cause, planned.retry, planned.exit_code, planned.lease) == ("workload_failed", 1, 3, "j1-2")
    assert planned.detail == "rank 1 on node n1: process 0 exited with 3"
    assert planned.begins_ms - planned.at_ms == RETRY_MS_MIN
    assert world.phases("n0") == world.phases("n1") == [("halt", 1)]
    world.tick(RETRY_MS_MIN)
    assert world.generation == 1
    world.tick(1)
    assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1")]
    assert not world.all(MembersWanted)


def test_each_wait_is_twice_as_long_as_the_one_before_up_to_a_bound() -> None:
    world = running(12)
    for _ in range(12):
        fail(world)
        begin_again(world)
    waits_ms = [planned.begins_ms - planned.at_ms for planned in world.all(RetryPlanned)]
    assert waits_ms == [min(RETRY_MS_MIN * 2**number, RETRY_MS_MAX) for number in range(12)]
    assert waits_ms[-1] == RETRY_MS_MAX


def test_after_its_last_retry_the_job_ends_as_its_last_culprit_did() -> None:
    world = running(2)
    for exit_ in (code(3), code(4)):
        fail(world, exit_)
        begin_again(world)
    fail(world, code(5))
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code) == ("workload_failed", 5)
    assert [planned.exit_code for planned in world.all(RetryPlanned)] == [3, 4]


def test_out_of_memory_is_told_apart() -> None:
    world = running(1)
    fail(world, Exit(local_rank=0, signal=9, out_of_memory=True))
    assert world.last(RetryPlanned).cause == "out_of_memory"
    assert world.last(RetryPlanned).exit_code == 137


def test_retries_do_not_count_as_restarts_without_a_cause() -> None:
    world = running(RESTARTS_MAX + 1)
    for _ in range(RESTARTS_MAX + 1):
        fail(world)
        begin_again(world)
    world.report(world.ended(1))
    world.report(world.ended(0, killed(15)))
    assert not world.all(ClusterReleased), "it is the first time that nobody saw its processes end"


@pytest.mark.parametrize("what", ["release", "loss"])
def test_a_release_or_a_loss_while_it_waits_is_answered_at_once(what: str) -> None:
    world = running(1)
    fail(world)
    if what == "release":
        world.release()
        assert world.last(ClusterReleased).reason == "released"
    else:
        world.lose("n1")
        assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(1, "j1-2")]


def test_a_service_that_begins_in_between_waits_no_longer_than_was_planned() -> None:
    """The wait is in the log, and what others have to answer is not waited for: there is nothing to hear."""
    world = running(1)
    fail(world)
    world.state.watch = None
    world.tick(RETRY_MS_MIN + 1)
    assert world.generation == 2
