"""What a loss comes to is the job's to say: another node, a smaller cluster, or the end."""

import pytest

from tests.unit.provisioner.sizes import end, end_and_prepare, half_prepared, ranks, start
from tests.unit.provisioner.world import World, code, killed, spec
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    MemberLost,
    MembersWanted,
)
from volt.contracts.jobs import OnLoss, Recovery
from volt_provisioner.causes import RESTARTS_MAX


def running(nodes: int, on_loss: OnLoss, min_nodes: int = 1) -> World:
    return World(spec(nodes, recovery=Recovery(on_loss=on_loss, min_nodes=min_nodes))).granted_and_running()


def test_a_job_that_shrinks_goes_on_without_the_lost_rank_and_the_others_close_up() -> None:
    world = running(4, "shrink")
    world.lose("n1")
    forming = world.last(ClusterForming)
    assert (forming.generation, forming.replaces, forming.shrunk) == (2, (), ("j1-2",))
    assert ranks(forming) == [(0, "n0"), (1, "n2"), (2, "n3")]
    assert not world.all(MembersWanted)
    assert world.phases("n1") == [("stop", 1)]
    for rank, node in enumerate(("n0", "n2", "n3")):
        assert world.desired(node).leases[0].node_rank == rank
    end_and_prepare(world, 0, 1, 2)
    manifest = world.last(ClusterStarting).manifest
    assert [(node.node_rank, node.node) for node in manifest.nodes] == [(0, "n0"), (1, "n2"), (2, "n3")]
    start(world, 0, 1, 2)
    assert world.names()[-1] == "ClusterReady", "and it does not grow back"


def test_the_lowest_survivor_is_the_head_when_the_head_is_lost() -> None:
    world = running(3, "shrink")
    world.lose("n0")
    assert ranks(world.last(ClusterForming)) == [(0, "n1"), (1, "n2")]
    end_and_prepare(world, 0, 1)
    assert world.last(ClusterStarting).manifest.master_address == "10.0.0.0", "as the new rank 0 reported it"


def test_a_loss_while_the_smaller_generation_forms_makes_it_smaller_still() -> None:
    world = running(4, "shrink")
    world.lose("n1")
    end_and_prepare(world, 0)
    world.lose("n3")
    forming = world.last(ClusterForming)
    assert (forming.generation, forming.shrunk, ranks(forming)) == (3, ("j1-4",), [(0, "n0"), (1, "n2")])
    assert world.phases("n0") == [("prepare", 3)]
    world.report(world.prepared(0))
    world.report(world.prepared(1))
    assert world.last(ClusterStarting).generation == 3, "who is prepared has ended what it ran, said or not"
    start(world, 0, 1)
    assert world.last(ClusterReady).generation == 3


def test_the_smaller_generation_waits_for_what_still_runs_of_the_one_before_the_last() -> None:
    world = running(4, "shrink")
    world.lose("n1")
    world.lose("n3")
    for rank in (0, 1):
        world.report(world.ended(rank, killed(15), generation=1))
    assert not world.decided(world.ended(0, killed(15), generation=2)), "it was said"
    for rank in (0, 1):
        world.report(world.prepared(rank))
    assert world.last(ClusterStarting).generation == 3


@pytest.mark.parametrize("on_loss", ["shrink", "stop"])
def test_a_cluster_that_does_not_go_on_ends_with_the_first_cause(on_loss: OnLoss) -> None:
    world = running(3, on_loss, min_nodes=3)
    world.lose("n1")
    released = world.last(ClusterReleased)
    assert released.reason == "member_lost"
    assert released.first_cause == "rank 1 on node n1: the node was lost"
    assert not world.all(MembersWanted)


def test_below_its_fewest_nodes_a_shrinking_job_ends_and_above_it_goes_on() -> None:
    world = running(4, "shrink", min_nodes=3)
    world.lose("n1")
    assert world.generation == 2
    world.lose("n2")
    assert world.last(ClusterReleased).reason == "member_lost"
    assert "n2" in world.last(ClusterReleased).first_cause


@pytest.mark.parametrize("on_loss", ["replace", "shrink", "stop"])
def test_a_cluster_that_was_never_ready_is_completed_whatever_its_job_says(on_loss: OnLoss) -> None:
    """One of four nodes cannot start, and the three others do not hang."""
    world = World(spec(4, recovery=Recovery(on_loss=on_loss)))
    world.grant()
    for rank in range(3):
        world.report(world.prepared(rank))
    world.report(world.failed(3, "prepare"))
    assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(3, "j1-4")]
    world.replace("n9", 5, 3)
    world.report(world.prepared(3))
    start(world, 0, 1, 2, 3)
    assert world.names()[-1] == "ClusterReady"


def test_growth_that_is_prepared_joins_the_smaller_generation_and_the_rest_is_still_wanted() -> None:
    world = World(spec(2, recovery=Recovery(on_loss="shrink"))).granted_and_running()
    world.scale(4)
    world.replace("n2", 3, 2)
    world.report(world.prepared(2, generation=2))
    world.lose("n0")
    assert ranks(world.last(ClusterForming)) == [(0, "n1"), (1, "n2")]
    end_and_prepare(world, 0)
    start(world, 0, 1)
    assert [one.rank for one in world.last(MembersWanted).wanted] == [2], "three of the four that were wished for"


def test_a_smaller_cluster_can_be_scaled_again() -> None:
    world = running(3, "shrink")
    world.lose("n2")
    end_and_prepare(world, 0, 1)
    start(world, 0, 1)
    world.scale(3)
    assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(2, None)]


def test_a_failing_exit_is_no_loss_for_any_policy() -> None:
    for on_loss in ("replace", "shrink", "stop"):
        world = running(3, on_loss)
        world.report(world.ended(2, code(1)))
        for rank in (0, 1):
            world.report(world.ended(rank, killed(15)))
        released = world.last(ClusterReleased)
        assert (released.reason, released.exit_code) == ("workload_failed", 1)
        assert not world.all(MemberLost)


def test_processes_that_nobody_saw_end_restart_with_all_members_whatever_the_policy() -> None:
    for on_loss in ("shrink", "stop"):
        world = running(2, on_loss)
        world.report(world.ended(1))
        world.report(world.ended(0, killed(15)))
        assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1")]


def test_a_shrinking_job_whose_nodes_cannot_start_is_bounded_by_its_restarts() -> None:
    world = running(8, "shrink")
    for _ in range(RESTARTS_MAX + 1):
        size = len(world.last(ClusterForming).members)
        world.report(world.ended(0))
        for rank in range(1, size):
            world.report(world.ended(rank, killed(15)))
        if world.all(ClusterReleased):
            break
        for rank in range(size):
            world.report(world.prepared(rank))
        start(world, *range(size))
    assert world.last(ClusterReleased).reason == "restarts_exhausted"


def test_who_leaves_while_it_shrinks_on_purpose_is_no_loss_that_stops_a_job() -> None:
    world = running(3, "stop")
    world.scale(2)
    end(world, 0, 1)
    world.lose("n2")
    assert not world.all(ClusterReleased)
    assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1")]


def test_what_a_scaled_down_cluster_has_done_last_is_committed_before_the_next_generation_forms() -> None:
    world = running(3, "replace")
    world.commit(10)
    world.scale(2)
    for rank in range(3):
        lease = world.desired(f"n{rank}").leases[0]
        assert (lease.phase, lease.store_ms > 0) == ("halt", True)
    for rank in range(3):
        world.report(world.stored(rank, 11))
        world.report(world.ended(rank, code(0), generation=1))
    resume = world.desired("n0").leases[0].resume
    assert resume is not None
    assert resume.step == 11


def test_a_generation_that_ends_in_trouble_waits_for_no_last_checkpoint() -> None:
    world = half_prepared()
    world.report(world.ended(1))
    assert world.last(GenerationEnded).cause == "trouble"
    assert world.desired("n0").leases[0].store_ms == 0
