"""A running cluster is brought to another size: it grows beside what runs, and shrinks from its highest ranks."""

from tests.unit.provisioner.sizes import (
    clear_leavers,
    end,
    end_and_prepare,
    growing,
    grown,
    half_prepared,
    joining,
    ranks,
    start,
)
from tests.unit.provisioner.world import TIMING, World, code, killed, spec
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    GrowthGivenUp,
    MemberDropped,
    MemberJoined,
    MemberLost,
    MembersWanted,
    Wanted,
)
from volt.contracts.timing import FINAL_STORE_MS_MAX
from volt_provisioner.causes import RESTARTS_MAX
from volt_provisioner.lifecycle import halt_ms_max


def test_the_market_is_asked_for_the_ranks_above_while_the_generation_runs_on() -> None:
    world = World().granted_and_running()
    seq = len(world.log)
    world.scale(4)
    assert world.since(seq) == ["MembersWanted"]
    asked = world.last(MembersWanted)
    assert (asked.generation, asked.within) == (1, "fabric:eu/A")
    assert asked.wanted == (Wanted(rank=2, attempt=1), Wanted(rank=3, attempt=2)), "growth replaces nothing"
    assert world.phases("n0") == [("start", 1)]


def test_who_is_to_join_prepares_for_the_next_generation_and_nobody_else_is_disturbed() -> None:
    world = growing()
    told = world.desired("n0").log_seq, world.desired("n1").log_seq
    world.replace("n2", 3, 2)
    world.report(world.prepared(2, generation=2))
    assert world.last(MemberJoined).generation == 2
    assert world.phases("n2") == [("prepare", 2)]
    assert world.phases("n0") == world.phases("n1") == [("start", 1)]
    assert told == (world.desired("n0").log_seq, world.desired("n1").log_seq)
    assert not world.all(GenerationEnded)


def test_when_all_are_prepared_the_generation_ends_on_purpose_and_the_next_has_them_all() -> None:
    world = half_prepared()
    world.report(world.prepared(3, generation=2))
    ended = world.last(GenerationEnded)
    assert (ended.generation, ended.cause, ended.lease, ended.leaves) == (1, "growth", None, ())
    assert world.phases("n0") == world.phases("n1") == [("halt", 1)]
    end(world, 0)
    assert world.generation == 1, "rank 1 still has generation 1"
    end(world, 1)
    forming = world.last(ClusterForming)
    assert (forming.generation, forming.replaces) == (2, ())
    assert ranks(forming) == [(0, "n0"), (1, "n1"), (2, "n2"), (3, "n3")]
    assert [world.phases(f"n{rank}") for rank in range(4)] == [[("prepare", 2)]] * 4
    for rank in (0, 1):
        world.report(world.prepared(rank))
    manifest = world.last(ClusterStarting).manifest
    assert (manifest.generation, manifest.world_size) == (2, 8)
    assert [node.address for node in manifest.nodes] == [f"10.0.0.{rank}" for rank in range(4)]
    start(world, 0, 1, 2, 3)
    assert world.names()[-1] == "ClusterReady"


def test_a_planned_change_is_no_restart_and_no_cause() -> None:
    world = World().granted_and_running()
    for number in range(3, 3 + RESTARTS_MAX + 1):
        world.scale(1)
        end(world, 1)
        end_and_prepare(world, 0)
        clear_leavers(world)
        start(world, 0)
        world.scale(2)
        world.replace("n1", number, 1)
        world.report(world.prepared(1, generation=world.generation + 1))
        end_and_prepare(world, 0)
        start(world, 0, 1)
    assert world.names()[-1] == "ClusterReady"
    for _ in range(RESTARTS_MAX + 1):
        world.report(world.ended(1))
        world.report(world.ended(0, killed(15)))
        for rank in range(2):
            world.report(world.prepared(rank))
        start(world, 0, 1)
    released = world.last(ClusterReleased)
    assert released.reason == "restarts_exhausted"
    assert released.generation == world.generation == 1 + 2 * (RESTARTS_MAX + 1) + RESTARTS_MAX
    assert released.first_cause.startswith("rank 1 on node n1: its processes were gone")


def test_the_present_size_changes_nothing() -> None:
    world = World().granted_and_running()
    seq = len(world.log)
    world.scale(2)
    world.tick(TIMING.replace_ms_max)
    assert world.since(seq) == []


def test_a_cluster_shrinks_from_its_highest_ranks_and_its_gpus_go_back() -> None:
    world = grown()
    world.scale(2)
    ended = world.last(GenerationEnded)
    assert (ended.cause, ended.lease, ended.leaves) == ("shrink", None, ("j1-3", "j1-4"))
    assert [world.phases(f"n{rank}") for rank in range(4)] == [[("halt", 2)]] * 4
    end(world, 0, 1, 2)
    assert world.generation == 2, "rank 3 may still run, and store what it has done last"
    end(world, 3)
    assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1")]
    assert world.phases("n2") == world.phases("n3") == [("stop", 2)]
    for rank in (0, 1):
        world.report(world.prepared(rank))
    world.report(world.node_cleared("n3", 4))
    world.report(world.node_cleared("n2", 3))
    assert world.phases("n2") == world.phases("n3") == []
    start(world, 0, 1)
    assert world.names()[-1] == "ClusterReady"
    assert not world.all(MemberLost)


def test_nobody_waits_for_ever_for_who_leaves() -> None:
    world = grown()
    world.scale(3)
    end(world, 0, 1, 2)
    world.tick(halt_ms_max(TIMING) + FINAL_STORE_MS_MAX - 1)
    assert world.generation == 2
    world.tick(2)
    assert world.generation == 3
    assert world.phases("n3") == [("stop", 2)]
    for rank in (0, 1, 2):
        world.report(world.prepared(rank))
    assert world.last(ClusterStarting).generation == 3
    assert not world.all(MemberLost)


def test_nobody_waits_for_who_leaves_once_its_node_is_lost_and_it_is_no_loss() -> None:
    world = grown()
    world.scale(3)
    end(world, 0, 1, 2)
    world.lose("n3")
    assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert not world.all(MemberLost)
    assert len(world.all(MembersWanted)) == 1, "nothing is replaced"


def test_a_loss_that_the_log_shows_before_the_end_of_a_shrinking_generation_counts_only_for_who_stays() -> None:
    for node, is_replaced in (("n3", False), ("n0", True)):
        world = grown()
        world.write(world.scale_accepted(3))
        (ended,) = world.due()
        world.write(world.lost(node))
        world.write(ended)
        world.follow()
        if node == "n3":
            end(world, 0, 1, 2)
        assert bool(world.all(MemberLost)) == is_replaced
        assert ranks(world.last(ClusterForming))[-1] == (2, "n2")
        assert [one.replaces for one in world.last(MembersWanted).wanted] == (["j1-1"] if is_replaced else [None, None])


def test_shrinking_while_growing_gives_the_growth_up_first() -> None:
    world = half_prepared()
    seq = len(world.log)
    world.scale(1)
    assert world.since(seq) == ["GrowthGivenUp", "GenerationEnded"]
    given_up = world.last(GrowthGivenUp)
    assert (given_up.ranks, given_up.leases, given_up.cause) == ((2, 3), ("j1-3", "j1-4"), "unwanted")
    assert world.phases("n2") == world.phases("n3") == [("stop", 2)], "of the generation that they were told of"
    end(world, 0, 1)
    assert ranks(world.last(ClusterForming)) == [(0, "n0")]


def test_wishing_for_the_size_it_has_ends_the_growth_and_the_cluster_runs_on() -> None:
    world = growing()
    world.replace("n2", 3, 2)
    seq = len(world.log)
    world.scale(2)
    assert world.since(seq) == ["GrowthGivenUp"]
    assert world.last(GrowthGivenUp).attempts == (2,), "which the market does not know of"
    assert world.phases("n0") == [("start", 1)]


def test_what_the_market_grants_for_a_growth_that_was_given_up_goes_straight_back() -> None:
    world = growing()
    world.scale(2)
    world.replace("n3", 4, 3)
    given_up = world.last(GrowthGivenUp)
    assert (given_up.ranks, given_up.leases, given_up.attempts) == ((3,), ("j1-4",), ())
    assert world.phases("n3") == [("stop", 2)]
    world.report(world.node_cleared("n3", 4))
    assert world.phases("n3") == []
    assert not world.all(MemberJoined)


def test_a_rank_that_was_given_up_is_wanted_anew_by_another_attempt() -> None:
    world = growing(3)
    world.scale(2)
    late = world.replacement("n2", 3, 2)
    world.scale(3)
    assert world.last(MembersWanted).wanted == (Wanted(rank=2, attempt=2),)
    world.happen(late)
    assert not world.all(MemberJoined), "the market too counts only the last attempt at a rank"
    world.replace("n2", 4, 2)
    assert world.last(MemberJoined).member.lease == "j1-4"


def test_a_smaller_growth_lets_the_highest_ranks_go_and_a_larger_one_asks_for_more() -> None:
    world = half_prepared()
    world.scale(5)
    assert world.last(MembersWanted).wanted == (Wanted(rank=4, attempt=3),)
    world.scale(3)
    assert world.last(GrowthGivenUp).ranks == (3, 4)
    end(world, 0, 1)
    assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1"), (2, "n2")], "n2 was prepared, and is all"


def test_who_cannot_prepare_is_replaced_by_another_node() -> None:
    world = joining()
    world.report(world.failed(3, "prepare", generation=2))
    dropped, asked = world.last(MemberDropped), world.last(MembersWanted)
    assert (dropped.generation, dropped.lease, dropped.cause, dropped.detail) == (2, "j1-4", "prepare_failed", "no")
    assert asked.wanted == (Wanted(rank=3, attempt=3),)
    assert asked.excluded == ("n3",)
    assert world.phases("n3") == [("stop", 2)]
    assert not world.all(GenerationEnded)


def test_who_is_not_prepared_in_time_or_whose_node_is_lost_is_replaced_too() -> None:
    world = joining()
    world.lose("n2")
    assert world.last(MemberDropped).cause == "node_lost"
    world.tick(TIMING.prepare_ms_max + 1)
    assert world.last(MemberDropped).cause == "prepare_overdue"
    assert [one.rank for event in world.all(MembersWanted)[1:] for one in event.wanted] == [2, 3]
    assert not world.all(GenerationEnded)
    assert not world.all(MemberLost)


def test_a_grant_on_a_node_that_is_lost_does_not_join() -> None:
    world = growing(3)
    world.write(world.lost("n2"))
    world.replace("n2", 3, 2)
    assert world.last(MemberDropped).cause == "node_lost"
    assert world.last(MembersWanted).wanted == (Wanted(rank=2, attempt=2),)


def test_after_too_many_failures_the_growth_is_given_up_and_the_cluster_runs_on() -> None:
    world = half_prepared()
    for number in range(RESTARTS_MAX + 1):
        if number:
            world.replace(f"m{number}", 10 + number, 3)
        world.report(world.failed(3, "prepare", generation=2))
    given_up = world.last(GrowthGivenUp)
    assert (given_up.cause, given_up.leases) == ("failed", ("j1-3",))
    assert given_up.detail == "rank 3 on node m3: the node could not prepare: no"
    assert world.names()[-1] == "GrowthGivenUp"
    assert world.phases("n0") == [("start", 1)]
    world.tick(TIMING.replace_ms_max + 1)
    assert world.names()[-1] == "GrowthGivenUp"
    world.scale(3)
    assert world.names()[-1] == "MembersWanted", "another wish begins afresh"
    world.report(world.ended(0, code(1)))
    world.report(world.ended(1, killed(15)))
    assert "exited with 1" in world.last(ClusterReleased).first_cause


def test_who_waits_prepared_for_what_the_market_has_not_joins_alone_after_a_while() -> None:
    world = growing()
    world.replace("n3", 4, 3)
    world.report(world.prepared(3, generation=2))
    world.tick(TIMING.replace_ms_max)
    assert not world.all(GenerationEnded)
    world.tick(1)
    end(world, 0, 1)
    assert ranks(world.last(ClusterForming)) == [(0, "n0"), (1, "n1"), (2, "n3")], "at the next rank without a gap"
    assert world.desired("n3").leases[0].node_rank == 2
    for rank in (0, 1):
        world.report(world.prepared(rank))
    start(world, 0, 1, 2)
    assert world.last(MembersWanted).wanted == (Wanted(rank=3, attempt=3),), "it goes on wanting the rest"


def test_growing_past_what_the_market_has_never_ends_a_cluster() -> None:
    world = growing()
    world.tick(3 * TIMING.replace_ms_max)
    assert world.names()[-1] == "MembersWanted"
    world.report(world.ended(0, code(0)))
    world.report(world.ended(1, code(0)))
    assert world.last(ClusterReleased).reason == "completed"


def test_a_cluster_can_grow_from_one_node_and_come_back_to_it() -> None:
    world = World(spec(1)).granted_and_running()
    world.scale(2)
    world.replace("n1", 2, 1)
    world.report(world.prepared(1, generation=2))
    end_and_prepare(world, 0)
    start(world, 0, 1)
    world.scale(1)
    end(world, 1)
    end_and_prepare(world, 0)
    start(world, 0)
    assert world.names()[-1] == "ClusterReady"
    assert world.last(ClusterStarting).manifest.world_size == 2
