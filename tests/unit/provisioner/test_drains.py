"""A node that is drained: another takes its rank beside what runs, and only then the generation ends, on purpose."""

import pytest

from tests.unit.provisioner.sizes import end, end_and_prepare, ranks, start
from tests.unit.provisioner.world import World, code, killed, spec
from volt.contracts.clusters import (
    CheckpointCommitted,
    ClusterForming,
    ClusterReleased,
    GenerationEnded,
    GrowthGivenUp,
    MemberLost,
    MembersWanted,
    Wanted,
)
from volt.contracts.jobs import OnLoss, Recovery
from volt_provisioner.causes import RESTARTS_MAX


def running(nodes: int = 3, on_loss: OnLoss = "replace") -> World:
    return World(spec(nodes, recovery=Recovery(on_loss=on_loss))).granted_and_running()


def replaced(nodes: int = 3, on_loss: OnLoss = "replace") -> World:
    """n1 is drained and n9 is prepared in its stead."""
    world = running(nodes, on_loss)
    world.drain("n1")
    world.replace("n9", 9, nodes)
    world.report(world.prepared(nodes, generation=2))
    return world


def test_another_node_is_leased_and_prepared_beside_what_runs() -> None:
    world = running()
    world.drain("n1")
    assert world.last(MembersWanted).wanted == (Wanted(rank=3, attempt=1, relieves="j1-2"),)
    world.replace("n9", 9, 3)
    assert world.phases("n9") == [("prepare", 2)]
    assert [world.phases(f"n{rank}") for rank in range(3)] == [[("start", 1)]] * 3
    assert not world.all(GenerationEnded)


def test_it_takes_the_rank_of_the_drained_node_which_is_let_go() -> None:
    world = replaced()
    ended = world.last(GenerationEnded)
    assert (ended.cause, ended.lease, ended.drains) == ("drain", None, ("j1-2",))
    assert [world.phases(f"n{rank}") for rank in range(3)] == [[("halt", 1)]] * 3
    end(world, 0, 1, 2)
    forming = world.last(ClusterForming)
    assert ranks(forming) == [(0, "n0"), (1, "n9"), (2, "n2")]
    assert (forming.replaces, forming.shrunk) == ((), ())
    assert world.phases("n1") == [("stop", 1)]
    assert world.desired("n9").leases[0].node_rank == 1
    world.report(world.node_cleared("n1", 2))
    assert world.phases("n1") == []
    for rank in (0, 2):
        world.report(world.prepared(rank))
    start(world, 0, 1, 2)
    assert world.names()[-1] == "ClusterReady"
    assert not world.all(MemberLost)


def test_what_is_stored_in_its_grace_is_where_the_next_generation_begins() -> None:
    world = replaced()
    for rank in range(3):
        assert world.desired(f"n{rank}").leases[0].store_ms > 0
        world.report(world.stored(rank, 7))
        assert world.generation == 1
        world.report(world.ended(rank, code(0), generation=1))
    assert world.last(CheckpointCommitted).checkpoint.step == 7
    assert world.names().index("CheckpointCommitted") < len(world.names()) - 1
    resume = world.desired("n9").leases[0].resume
    assert resume is not None
    assert resume.step == 7


def test_a_drained_job_is_not_a_finished_one_though_all_its_ranks_exit_0() -> None:
    world = replaced()
    for rank in range(3):
        world.report(world.ended(rank, code(0), generation=1))
    assert not world.all(ClusterReleased)
    assert world.generation == 2


def test_draining_is_no_restart_and_no_cause() -> None:
    world = running(2)
    for number in range(RESTARTS_MAX + 2):
        world.drain(world.member(1).node)
        world.replace(f"m{number}", 20 + number, 2)
        world.report(world.prepared(2, generation=world.generation + 1))
        end(world, 0, 1)
        world.report(world.prepared(0))
        start(world, 0, 1)
        assert world.names()[-1] == "ClusterReady"
    assert not world.all(MemberLost)


def test_a_node_that_is_resumed_keeps_its_lease() -> None:
    world = running()
    world.drain("n1")
    world.replace("n9", 9, 3)
    world.resume("n1")
    assert world.last(GrowthGivenUp).cause == "unwanted"
    world.tick(600_001)
    assert not world.all(GenerationEnded)


@pytest.mark.parametrize(
    ("on_loss", "what"), [("replace", "MembersWanted"), ("shrink", "ClusterForming"), ("stop", "ClusterReleased")]
)
def test_at_its_deadline_the_generation_ends_anyway_as_its_job_says(on_loss: OnLoss, what: str) -> None:
    world = running(3, on_loss)
    world.commit(5)
    world.drain("n1", seconds=60)
    world.tick(60_000)
    assert not world.all(GenerationEnded)
    world.tick(1)
    assert world.last(GenerationEnded).drains == ("j1-2",)
    for rank in range(3):
        world.report(world.stored(rank, 6))
        world.report(world.ended(rank, killed(15), generation=1))
    assert world.last(CheckpointCommitted).checkpoint.step == 6, "there is time for that in every case"
    assert (world.last(MemberLost).lease, world.last(MemberLost).cause) == ("j1-2", "drained")
    assert world.names()[-1] == what
    match on_loss:
        case "replace":
            assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(1, "j1-2")]
            assert world.last(MembersWanted).excluded == (), "nothing is wrong with the node"
        case "shrink":
            assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n2")]
            assert world.last(ClusterForming).shrunk == ("j1-2",)
        case "stop":
            released = world.last(ClusterReleased)
            assert released.reason == "member_lost"
            assert released.first_cause.startswith("rank 1 on node n1: the node was drained")


def test_the_only_node_of_a_job_is_drained_like_any_other() -> None:
    world = running(1)
    world.drain("n0")
    world.replace("n9", 9, 1)
    world.report(world.prepared(1, generation=2))
    end(world, 0)
    assert ranks(world.last(ClusterForming)) == [(0, "n9")]
    assert world.phases("n0") == [("stop", 1)]
    start(world, 0)
    assert world.names()[-1] == "ClusterReady"


def test_a_loss_while_a_node_is_drained_takes_who_is_prepared_in_its_stead() -> None:
    world = running()
    world.drain("n1")
    world.drain("n2")
    world.replace("n9", 9, 3)
    world.report(world.prepared(3, generation=2))
    world.lose("n0")
    assert ranks(world.last(ClusterForming)) == [(1, "n9"), (2, "n2")]
    assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(0, "j1-1")]
    assert world.phases("n1") == [("stop", 1)]


def test_a_grant_on_a_node_that_is_drained_meanwhile_is_moved_once_it_runs() -> None:
    world = World(spec(2))
    world.write(world.drain_accepted("n1"))
    world.granted_and_running()
    assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(2, None)]


def test_a_drain_waits_until_a_recovering_cluster_is_ready() -> None:
    world = running(2)
    world.lose("n0")
    seq = len(world.log)
    world.drain("n1", seconds=0)
    assert world.since(seq) == []
    world.replace("n8", 8, 0)
    end_and_prepare(world, 1)
    world.report(world.prepared(0))
    start(world, 0, 1)
    world.tick(1)
    assert world.last(GenerationEnded).drains == ("j1-2",)


def test_when_no_node_can_take_its_place_it_waits_for_its_deadline() -> None:
    world = running(2)
    world.drain("n1", seconds=600)
    for number in range(RESTARTS_MAX + 1):
        world.replace(f"m{number}", 10 + number, 2)
        world.report(world.failed(2, "prepare", generation=2))
    assert world.last(GrowthGivenUp).cause == "failed"
    world.tick(599_000)
    assert world.names()[-1] == "GrowthGivenUp"
    world.tick(2_000)
    assert world.last(GenerationEnded).cause == "drain"


def test_growth_waits_until_the_drained_nodes_are_left() -> None:
    world = running(2)
    world.drain("n1")
    world.scale(4)
    assert [one.rank for event in world.all(MembersWanted) for one in event.wanted] == [2]
    world.replace("n9", 9, 2)
    world.report(world.prepared(2, generation=2))
    end(world, 0, 1)
    world.report(world.prepared(0))
    start(world, 0, 1)
    assert [one.rank for one in world.last(MembersWanted).wanted] == [2, 3]


def test_deadlines_that_pass_are_no_restarts_that_end_a_job() -> None:
    world = running(2)
    for number in range(RESTARTS_MAX + 2):
        world.drain(world.member(1).node, seconds=0)
        world.tick(1)
        end(world, 0, 1)
        assert world.last(MemberLost).cause == "drained"
        world.replace(f"m{number}", 20 + number, 1)
        for rank in (0, 1):
            world.report(world.prepared(rank))
        start(world, 0, 1)
        assert world.names()[-1] == "ClusterReady"
