"""Every loss is answered once: by one replacement, in one new generation."""

from tests.unit.provisioner.world import TIMING, World, code, killed, provider_of, spec
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MembersWanted,
    Wanted,
)
from volt.contracts.nodes import NodeLost


def test_a_lost_node_ends_the_generation_and_wants_one_replacement() -> None:
    world = World().granted_and_running()
    seq = len(world.log)
    world.lose("n1")
    assert world.since(seq) == ["MemberLost", "GenerationEnded", "ClusterForming", "MembersWanted"]
    assert world.last(GenerationEnded).lease == "j1-2"
    forming = world.last(ClusterForming)
    assert (forming.generation, forming.replaces) == (2, ("j1-2",))
    assert [member.lease for member in forming.members] == ["j1-1"]
    wanted = world.last(MembersWanted)
    assert wanted.generation == 2
    assert wanted.wanted == (Wanted(rank=1, attempt=1, replaces="j1-2"),)
    assert (wanted.excluded, wanted.within) == ((), "fabric:eu/A")


def test_the_replacement_takes_the_vacant_rank_and_the_cluster_is_ready_again() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n9", 3, 1)
    joined = world.last(MemberJoined)
    assert (joined.member.rank, joined.member.lease, joined.attempt, joined.generation) == (1, "j1-3", 1, 2)
    world.run()
    assert world.names()[-1] == "ClusterReady"
    assert [node.node for node in world.last(ClusterStarting).manifest.nodes] == ["n0", "n9"]


def test_ranks_are_stable_when_the_head_is_lost_and_its_address_is_the_new_one() -> None:
    world = World(spec(3)).granted_and_running()
    world.lose("n0")
    for rank in (1, 2):
        world.report(world.ended(rank, killed(15), generation=1))
    world.replace("n9", 4, 0)
    world.run()
    manifest = world.last(ClusterStarting).manifest
    assert [(node.node_rank, node.node) for node in manifest.nodes] == [(0, "n9"), (1, "n1"), (2, "n2")]
    assert manifest.master_port == 29_700, "the port of generation 2, of the new head"
    assert manifest.generation == 2


def test_a_generation_starts_only_when_the_one_before_has_ended_everywhere() -> None:
    world = World(spec(3)).granted_and_running()
    world.lose("n1")
    world.replace("n9", 4, 1)
    world.report(world.ended(0, killed(15), generation=1))
    world.report(world.prepared(0))
    world.report(world.prepared(1))
    assert world.names()[-1] == "MemberPrepared", "rank 2 still runs generation 1"
    world.report(world.ended(2, killed(15), generation=1))
    assert world.names()[-1] == "MemberEnded"
    assert world.last(MemberEnded).generation == 1
    world.report(world.prepared(2))
    assert world.names()[-1] == "ClusterStarting"


def test_a_survivor_is_told_to_prepare_the_new_generation_while_it_runs_the_old_one() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    assert world.phases("n0") == [("prepare", 2)]
    assert world.phases("n1") == [("stop", 1)]


def test_a_member_that_is_prepared_again_has_ended_though_it_did_not_say_so() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.replace("n9", 3, 1)
    world.report(world.prepared(0))
    ended = world.last(MemberEnded)
    assert (ended.lease, ended.generation, ended.exits) == ("j1-1", 1, ())
    world.report(world.prepared(1))
    assert world.names()[-1] == "ClusterStarting"


def test_a_survivor_that_is_lost_before_it_has_ended_is_not_waited_for() -> None:
    world = World(spec(3)).granted_and_running()
    world.lose("n1")
    world.lose("n2")
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n8", 4, 1)
    world.replace("n9", 5, 2)
    for rank in range(3):
        world.report(world.prepared(rank))
    assert world.names()[-1] == "ClusterStarting"


def test_a_survivor_that_does_not_end_the_old_generation_in_time_is_lost() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.tick(TIMING.prepare_ms_max)
    assert [lost.lease for lost in world.all(MemberLost)] == ["j1-2"]
    world.tick(1)
    assert (world.last(MemberLost).lease, world.last(MemberLost).cause) == ("j1-1", "prepare_overdue")


def test_a_member_that_does_not_end_a_failed_generation_in_time_is_lost() -> None:
    world = World().granted_and_running()
    world.report(world.ended(0, code(1)))
    world.tick(TIMING.stop_grace_ms + TIMING.start_ms_max)
    assert not world.all(MemberLost)
    world.tick(1)
    assert (world.last(MemberLost).lease, world.last(MemberLost).cause) == ("j1-2", "halt_overdue")
    assert world.generation == 2


def test_two_losses_at_once_are_wanted_together() -> None:
    world = World(spec(3)).granted_and_running()
    world.write(world.lost("n1"))
    world.write(world.lost("n2"))
    seq = len(world.log)
    world.follow()
    assert world.since(seq) == ["MemberLost", "GenerationEnded", "MemberLost", "ClusterForming", "MembersWanted"]
    assert world.last(ClusterForming).replaces == ("j1-2", "j1-3")
    assert world.last(MembersWanted).wanted == (
        Wanted(rank=1, attempt=1, replaces="j1-2"),
        Wanted(rank=2, attempt=2, replaces="j1-3"),
    )


def test_a_loss_during_forming_joins_the_open_generation() -> None:
    world = World(spec(3)).granted_and_running()
    world.lose("n1")
    seq = len(world.log)
    world.lose("n2")
    assert world.since(seq) == ["MemberLost", "MembersWanted"]
    wanted = world.last(MembersWanted)
    assert (wanted.generation, wanted.wanted) == (2, (Wanted(rank=2, attempt=2, replaces="j1-3"),))
    assert world.last(ClusterForming).replaces == ("j1-2",), "it was lost after this generation had formed"


def test_a_loss_during_the_first_forming_is_replaced_within_generation_1() -> None:
    world = World()
    world.grant()
    world.lose("n1")
    assert world.names() == ["ClusterForming", "MemberLost", "MembersWanted"]
    world.replace("n9", 3, 1)
    world.run()
    assert world.names()[-1] == "ClusterReady"
    assert world.generation == 1


def test_a_lost_node_may_come_back_to_its_job_once() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.revive("n1")
    world.report(world.node_cleared("n1", 2))
    world.replace("n1", 3, 1)
    world.run()
    assert world.names()[-1] == "ClusterReady"
    world.lose("n1")
    assert world.last(MembersWanted).excluded == ("n1",)


def test_a_lost_replacement_is_replaced_with_the_next_attempt() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.replace("n8", 3, 1)
    world.lose("n8")
    assert world.last(MembersWanted).wanted == (Wanted(rank=1, attempt=2, replaces="j1-3"),)
    world.replace("n9", 4, 1)
    assert world.last(MemberJoined).member.lease == "j1-4"


def test_a_grant_on_a_node_that_had_just_died_is_seen_and_replaced_at_once() -> None:
    world = World()
    world.lose("n1")
    world.grant()
    assert world.names() == ["ClusterForming", "MemberLost", "MembersWanted"]
    assert world.last(MemberLost).lease == "j1-2"


def test_a_replacement_on_a_node_that_had_just_died_is_replaced_too() -> None:
    world = World().granted_and_running()
    world.lose("n9")
    world.lose("n1")
    seq = len(world.log)
    world.replace("n9", 3, 1)
    assert world.since(seq) == ["MemberJoined", "MemberLost", "MembersWanted"]
    assert world.last(MembersWanted).wanted == (Wanted(rank=1, attempt=2, replaces="j1-3"),)


def test_a_node_that_came_back_before_the_grant_is_good() -> None:
    world = World()
    world.lose("n1")
    world.revive("n1")
    world.grant()
    assert world.names() == ["ClusterForming"]


def test_a_node_that_comes_back_after_its_loss_has_lost_its_lease_all_the_same() -> None:
    world = World().granted_and_running()
    world.write(world.lost("n1"))
    world.revive("n1")
    assert [lost.lease for lost in world.all(MemberLost)] == ["j1-2"]
    assert world.phases("n1") == [("stop", 1)]


def test_a_loss_that_is_told_twice_is_answered_once() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.lose("n1")
    world.tick(1_000)
    assert len(world.all(MemberLost)) == len(world.all(MembersWanted)) == 1


def test_a_stranger_who_uses_a_nodes_name_loses_nothing_for_it() -> None:
    world = World().granted_and_running()
    world.happen(NodeLost(account="stranger", node="n1", incarnation="x", at_ms=world.now_ms, cause="silent"))
    assert not world.all(MemberLost)


def test_a_failed_prepare_is_replaced_at_once() -> None:
    world = World()
    world.grant()
    world.report(world.failed(1, "prepare"))
    assert world.names() == ["ClusterForming", "MemberLost", "MembersWanted"]
    assert world.last(MemberLost).cause == "prepare_failed"


def test_a_failed_start_ends_the_generation_and_the_others_do_not_hang() -> None:
    world = World(spec(4))
    world.grant()
    for rank in range(4):
        world.report(world.prepared(rank))
    seq = len(world.log)
    world.report(world.failed(3, "start"))
    assert world.since(seq) == ["MemberLost", "GenerationEnded", "ClusterForming", "MembersWanted"]
    assert world.last(MemberLost).cause == "start_failed"
    assert [world.phases(f"n{rank}") for rank in range(4)] == [[("prepare", 2)]] * 3 + [[("stop", 1)]]


def test_two_starts_that_fail_together_end_the_generation_by_the_first_and_are_both_replaced() -> None:
    world = World()
    world.grant()
    for rank in range(2):
        world.report(world.prepared(rank))
    world.record(world.failed(1, "start"))
    world.record(world.failed(0, "start"))
    world.follow()
    assert world.last(GenerationEnded).lease == "j1-2"
    assert world.last(ClusterForming).members == ()
    assert [(one.rank, one.replaces) for one in world.last(MembersWanted).wanted] == [(0, "j1-1"), (1, "j1-2")]


def test_a_rank_that_no_node_can_prepare_ends_the_job_with_the_first_cause() -> None:
    world = World()
    world.grant()
    world.report(world.failed(1, "prepare"))
    for number, node in enumerate(("n7", "n8", "n9"), start=3):
        world.replace(node, number, 1)
        world.report(world.failed(1, "prepare"))
    released = world.last(ClusterReleased)
    assert released.reason == "restarts_exhausted"
    assert released.first_cause == "rank 1 on node n1: the node could not prepare: no"
    assert len(world.all(MembersWanted)) == 3


def test_lost_nodes_are_replaced_however_many() -> None:
    world = World(spec(1)).granted_and_running()
    for number in range(2, 9):
        world.lose(world.member(0).node)
        world.replace(f"m{number}", number, 0)
        world.run()
    assert world.generation == 8
    assert not world.all(ClusterReleased)


def test_a_start_that_fails_everywhere_ends_the_job_with_the_first_cause() -> None:
    world = World(spec(1))
    world.grant()
    for number in range(2, 6):
        world.report(world.prepared(0))
        world.report(world.failed(0, "start"))
        if not world.all(ClusterReleased):
            world.replace(f"m{number}", number, 0)
    released = world.last(ClusterReleased)
    assert (released.reason, world.generation) == ("restarts_exhausted", 4)
    assert released.first_cause == "rank 0 on node n0: the node could not start its processes: no"


def test_a_vacancy_that_nobody_fills_ends_the_job_at_its_deadline() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.report(world.ended(0, killed(15), generation=1))
    world.report(world.prepared(0))
    world.tick(TIMING.replace_ms_max)
    assert not world.all(ClusterReleased)
    world.tick(1)
    released = world.last(ClusterReleased)
    assert released.reason == "no_replacement"
    assert released.first_cause.startswith("rank 1 on node n1: the node was lost")


def test_a_vacancy_ages_from_its_first_loss_though_a_replacement_failed_in_between() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.report(world.ended(0, killed(15), generation=1))
    world.report(world.prepared(0))
    world.tick(TIMING.replace_ms_max - 5)
    world.replace("n9", 3, 1)
    world.tick(10)
    assert not world.all(ClusterReleased), "the rank is taken"
    world.lose("n9")
    assert world.last(ClusterReleased).reason == "no_replacement"


def test_an_answer_that_came_after_the_deadline_was_recorded_counts_for_nobody() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    late = world.replacement("n9", 3, 1)
    world.tick(TIMING.prepare_ms_max + TIMING.replace_ms_max + 1)
    assert world.all(ClusterReleased)
    world.happen(late)
    assert (provider_of("n9"), "n9") not in world.state.nodes


def test_a_grant_that_stands_before_the_release_in_the_log_is_cleared_with_it() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.write(world.replacement("n9", 3, 1))
    world.release()
    assert not world.all(MemberJoined)
    assert world.phases("n9") == [("stop", 2)]


def test_a_gang_for_another_attempt_is_ignored() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    stale = world.replacement("n8", 3, 1)
    world.replace("n8", 3, 1)
    world.lose("n8")
    world.happen(stale)
    assert len(world.all(MemberJoined)) == 1


def test_the_loss_of_a_member_that_has_exited_0_restarts_the_gang() -> None:
    world = World().granted_and_running()
    world.report(world.ended(1, code(0)))
    world.lose("n1")
    assert world.last(ClusterForming).replaces == ("j1-2",)
