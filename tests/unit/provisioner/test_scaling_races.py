"""Whatever comes while a cluster changes its size: trouble, other wishes, grants that are late, the end."""

import pytest
from msgspec.structs import replace

from tests.unit.provisioner.sizes import (
    end,
    end_and_prepare,
    growing,
    grown,
    half_prepared,
    joining,
    ranks,
    start,
)
from tests.unit.provisioner.world import World, code, killed
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReleased,
    GenerationEnded,
    GrowthGivenUp,
    MemberLost,
    MembersWanted,
    Wanted,
)


@pytest.mark.parametrize("trouble", ["loss", "failure"])
def test_recovery_never_waits_for_growth_and_takes_who_is_prepared(trouble: str) -> None:
    world = joining()
    world.report(world.prepared(3, generation=2))
    if trouble == "loss":
        world.lose("n1")
    else:
        world.report(world.ended(1))
        world.report(world.ended(0, killed(15)))
    ended, forming = world.last(GenerationEnded), world.last(ClusterForming)
    assert (ended.cause, ended.lease) == ("trouble", "j1-2")
    kept = [(0, "n0")] if trouble == "loss" else [(0, "n0"), (1, "n1")]
    assert ranks(forming) == [*kept, (2, "n3")], "n3 was prepared and moves up, n2 was not"
    assert world.phases("n2") == [("stop", 2)]
    assert world.phases("n3") == [("prepare", 2)]
    if trouble == "loss":
        assert world.last(MembersWanted).wanted == (Wanted(rank=1, attempt=3, replaces="j1-2"),)
        world.replace("n8", 5, 1)
        end_and_prepare(world, 0)
        world.report(world.prepared(1))
    else:
        world.report(world.prepared(0))
        world.report(world.prepared(1))
    start(world, 0, 1, 2)
    assert world.names()[-2:] == ["ClusterReady", "MembersWanted"]
    assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(3, None)]


def test_a_grant_for_a_growth_while_its_generation_has_ended_leaves_again() -> None:
    """The market does not know yet that the generation has ended, so it has leased."""
    world = growing()
    world.report(world.ended(0, code(1)))
    assert world.names()[-1] == "GenerationEnded"
    world.replace("n2", 3, 2)
    assert world.phases("n2") == [], "it is not told of the next generation before it can join"
    world.lose("n1")
    assert ranks(world.last(ClusterForming)) == [(0, "n0")]
    assert world.phases("n2") == [("stop", 2)]


def test_a_grant_for_a_growth_behind_the_next_generation_is_void() -> None:
    world = growing()
    late = world.replacement("n2", 3, 2)
    world.lose("n1")
    world.happen(late)
    assert "j1-3" not in world.state.leases


def test_a_loss_in_the_planned_generation_is_replaced_in_it() -> None:
    world = half_prepared()
    world.report(world.prepared(3, generation=2))
    end(world, 0, 1)
    world.lose("n3")
    assert world.last(MemberLost).generation == 2
    assert world.last(MembersWanted).wanted == (Wanted(rank=3, attempt=3, replaces="j1-4"),)
    assert world.generation == 2


def test_a_wish_while_the_cluster_recovers_counts_once_it_runs() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    seq = len(world.log)
    world.scale(3)
    world.scale(1)
    assert world.since(seq) == []
    world.replace("n8", 3, 1)
    end_and_prepare(world, 0)
    world.report(world.prepared(1))
    start(world, 0, 1)
    assert world.names()[-2:] == ["ClusterReady", "GenerationEnded"]
    end(world, 0, 1)
    assert ranks(world.last(ClusterForming)) == [(0, "n0")]


def test_a_cluster_of_which_some_member_has_finished_stays_as_it_is() -> None:
    world = half_prepared()
    world.report(world.ended(0, code(0)))
    assert world.last(GrowthGivenUp).cause == "unwanted"
    world.scale(1)
    assert not world.all(GenerationEnded)
    world.report(world.ended(1, code(0)))
    assert world.last(ClusterReleased).reason == "completed"
    assert world.phases("n2") == [("stop", 2)]


@pytest.mark.parametrize("end", ["release", "exhaustion"])
def test_the_end_of_the_job_ends_its_growth(end: str) -> None:
    world = half_prepared()
    world.happen(world.release_accepted() if end == "release" else world.funds_exhausted())
    assert world.phases("n0") == [("stop", 1)]
    assert world.phases("n2") == world.phases("n3") == [("stop", 2)]
    seq = len(world.log)
    world.scale(8)
    assert world.since(seq) == []


def test_the_end_of_the_job_ends_a_shrinking() -> None:
    world = grown()
    world.scale(2)
    end(world, 3)
    world.release()
    assert [world.phases(f"n{rank}") for rank in range(4)] == [[("stop", 2)]] * 4
    for rank in range(4):
        world.report(world.node_cleared(f"n{rank}", rank + 1))
    assert not world.state.leases


def test_reports_that_come_again_or_late_change_nothing() -> None:
    world = half_prepared()
    for report in (
        world.prepared(2, generation=2),
        world.prepared(2, generation=1),
        world.prepared(3, generation=3),
        world.started(2, generation=2),
        world.ended(2, killed(15), generation=2),
        world.failed(2, "start", generation=2),
        world.node_cleared("n2", 3),
    ):
        assert world.decided(report) == (), report
    assert world.decided(world.prepared(3, generation=2))


def test_who_is_prepared_elsewhere_says_so_again() -> None:
    world = half_prepared()
    assert world.decided(replace(world.prepared(2, generation=2), port=31_000))
