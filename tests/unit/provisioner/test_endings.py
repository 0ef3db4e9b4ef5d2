"""How clusters end: by themselves, by a failure with its first cause, or because somebody wants it."""

import pytest

from tests.unit.provisioner.world import BUYER, JOB, T0_MS, TIMING, World, admitted, code, killed, provider_of, spec
from volt.contracts.clusters import (
    ClusterEvent,
    ClusterForming,
    ClusterReleased,
    Exit,
    GenerationEnded,
    LeaseCleared,
    MembersWanted,
)
from volt.contracts.market import Expired, MarketCleared
from volt_provisioner.causes import RESTARTS_MAX
from volt_provisioner.states import Cleared

UNSEEN = Exit(local_rank=0)


def test_the_cluster_is_completed_when_every_rank_has_exited_0() -> None:
    world = World().granted_and_running()
    world.report(world.ended(0, code(0), code(0, 1)))
    assert world.names()[-1] == "MemberEnded", "a member that exited 0 stays while others run"
    assert world.phases("n0") == [("start", 1)]
    world.report(world.ended(1, code(0), code(0, 1)))
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code, released.first_cause) == ("completed", 0, "")
    assert not world.all(GenerationEnded)


def test_a_finished_job_stays_finished() -> None:
    world = World(spec(1)).granted_and_running()
    world.report(world.ended(0, code(0)))
    world.report(world.ended(0, code(1)))
    world.report(world.prepared(0))
    world.lose("n0")
    world.release()
    world.tick(10 * TIMING.replace_ms_max)
    assert world.names()[-1] == "ClusterReleased"
    assert world.last(ClusterReleased).reason == "completed"


def test_a_failing_exit_stops_the_others_at_once_and_is_decided_when_they_have_ended() -> None:
    world = World(spec(3)).granted_and_running()
    world.now_ms += 5
    world.report(world.ended(2, code(3)))
    ended = world.last(GenerationEnded)
    assert (ended.lease, ended.at_ms) == ("j1-3", T0_MS + 5)
    assert [world.phases(f"n{rank}") for rank in range(3)] == [[("halt", 1)]] * 3
    world.report(world.ended(0, killed(9)))
    assert not world.all(ClusterReleased)
    world.report(world.ended(1, code(1)))
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code) == ("workload_failed", 3)
    assert released.first_cause == "rank 2 on node n2: process 0 exited with 3"


def test_a_failing_exit_before_the_others_have_started_is_the_cause() -> None:
    world = World()
    world.grant()
    for rank in range(2):
        world.report(world.prepared(rank))
    world.report(world.ended(0, code(1)))
    assert world.phases("n1") == [("halt", 1)]
    world.report(world.ended(1))
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code) == ("workload_failed", 1), "rank 1 had nothing that could vanish"


@pytest.mark.parametrize(
    ("exits", "exit_code", "how"),
    [
        ((code(1),), 1, "process 0 exited with 1"),
        ((killed(11),), 139, "process 0 was killed by signal 11"),
        ((killed(9),), 137, "process 0 was killed by signal 9"),
        ((code(0), killed(15, 1)), 143, "process 1 was killed by signal 15"),
        ((killed(15), code(7, 1), killed(9, 2)), 7, "process 1 exited with 7"),
        ((killed(15), killed(6, 1)), 134, "process 1 was killed by signal 6"),
        (
            (code(1), Exit(local_rank=1, signal=9, out_of_memory=True)),
            137,
            "process 1 was killed by signal 9, out of memory",
        ),
    ],
)
def test_the_exit_code_is_the_culprits_as_a_shell_says_it(exits: tuple[Exit, ...], exit_code: int, how: str) -> None:
    world = World().granted_and_running()
    world.report(world.ended(1, *exits))
    world.report(world.ended(0, killed(9)))
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code) == ("workload_failed", exit_code)
    assert released.first_cause == f"rank 1 on node n1: {how}"


@pytest.mark.parametrize("exits", [(), (UNSEEN,), (code(0), Exit(local_rank=1))])
def test_a_workload_that_is_gone_without_an_exit_starts_again_with_the_same_members(exits: tuple[Exit, ...]) -> None:
    world = World().granted_and_running()
    world.report(world.ended(1, *exits))
    assert world.phases("n0") == [("halt", 1)]
    world.report(world.ended(0, code(1)))
    forming = world.last(ClusterForming)
    assert (forming.generation, forming.replaces) == (2, ())
    assert [member.lease for member in forming.members] == ["j1-1", "j1-2"]
    assert not world.all(MembersWanted)
    assert world.phases("n0") == world.phases("n1") == [("prepare", 2)]
    world.run()
    assert world.names()[-1] == "ClusterReady"


def test_a_workload_gone_without_an_exit_is_the_cause_though_another_failed_first() -> None:
    world = World().granted_and_running()
    world.report(world.ended(0, code(1)))
    world.report(world.ended(1))
    assert world.generation == 2


def test_restarts_without_progress_are_bounded_and_tell_the_first_cause() -> None:
    world = World().granted_and_running()
    for rank in (1, 0, 0, 0):
        assert not world.all(ClusterReleased)
        world.report(world.ended(rank))
        world.report(world.ended(1 - rank, killed(15)))
        if not world.all(ClusterReleased):
            world.run()
    assert world.generation == 1 + RESTARTS_MAX
    released = world.last(ClusterReleased)
    assert (released.reason, released.exit_code) == ("restarts_exhausted", None)
    assert released.first_cause == "rank 1 on node n1: its processes were gone and nobody saw them end"


def test_release_works_before_there_is_a_gang_and_says_nothing() -> None:
    world = World()
    world.write(admitted(wanted=world.spec))
    world.release()
    world.happen(world.first_gang())
    assert world.names() == [], "billing closes the job by the accepted release itself; a later gang is void"


def test_release_between_grant_and_forming_forms_nothing_and_leaves_nothing() -> None:
    world = World()
    world.write(admitted(wanted=world.spec))
    world.write(world.first_gang())
    world.release()
    assert world.names() == ["ClusterReleased"]
    assert world.phases("n0") == world.phases("n1") == [("stop", 1)]


def test_a_forming_that_the_log_shows_behind_the_release_is_released_all_the_same() -> None:
    world = World()
    world.write(admitted(wanted=world.spec))
    world.write(world.first_gang())
    (forming,) = world.due()
    world.write(world.release_accepted())
    world.write(forming)
    world.follow()
    assert world.names() == ["ClusterForming", "ClusterReleased"]


def test_release_while_preparing_undoes_what_comes_late() -> None:
    world = World()
    world.grant()
    world.report(world.prepared(0))
    world.release()
    assert world.last(ClusterReleased).reason == "released"
    world.report(world.prepared(1))
    assert world.names()[-1] == "ClusterReleased"
    assert world.phases("n1") == [("stop", 1)]
    for number, node in enumerate(("n0", "n1"), start=1):
        world.report(world.node_cleared(node, number))
    assert [cleared.lease for cleared in world.all(LeaseCleared)] == ["j1-1", "j1-2"]
    assert world.phases("n0") == world.phases("n1") == []


def test_release_works_while_starting_running_stopping_and_waiting() -> None:
    starting, running, stopping, waiting = World(), World(), World(), World()
    starting.grant()
    for rank in range(2):
        starting.report(starting.prepared(rank))
    for world in (running, stopping, waiting):
        world.granted_and_running()
    stopping.report(stopping.ended(0, code(1)))
    waiting.lose("n1")
    for world in (starting, running, stopping, waiting):
        world.release()
        assert world.last(ClusterReleased).reason == "released"
        assert world.phases("n0")[0][0] == world.phases("n1")[0][0] == "stop"


def test_a_second_release_changes_nothing() -> None:
    world = World().granted_and_running()
    world.release()
    world.release()
    assert len(world.all(ClusterReleased)) == 1


def test_completion_before_release_is_completion_and_the_other_way_round() -> None:
    for first, reason in (("ended", "completed"), ("release", "released")):
        world = World(spec(1)).granted_and_running()
        ended = world.ended(0, code(0))
        if first == "ended":
            world.record(ended)
            world.write(world.release_accepted())
        else:
            world.write(world.release_accepted())
            world.record(ended)
        world.follow()
        assert world.last(ClusterReleased).reason == reason


def test_the_first_verdict_stands_though_the_log_shows_a_later_one() -> None:
    """The last exit is recorded by a provisioner that does not know of the release yet."""
    world = World(spec(1)).granted_and_running()
    late = world.decided(world.ended(0, code(0)))
    world.write(world.release_accepted())
    for event in late:
        world.write(event)
    world.follow()
    assert world.names()[-2:] == ["MemberEnded", "ClusterReleased"]
    assert world.last(ClusterReleased).reason == "released"


def on_its_last_restart() -> World:
    """Rank 0 is vacant, and rank 1 has its last try at preparing."""
    world = World(spec(2))
    world.grant()
    world.lose("n0")
    for number in range(RESTARTS_MAX):
        world.report(world.failed(1, "prepare"))
        world.replace(f"m{number}", 3 + number, 1)
    return world


def test_a_gang_between_the_decided_end_and_its_record_is_released_with_the_others() -> None:
    """Nothing in the log said that the job was over, so the gang counts for everybody else too."""
    world = on_its_last_restart()
    answer = world.replacement("n9", 10, 0)
    world.record(world.failed(1, "prepare"))
    world.happen(answer)
    assert world.last(ClusterReleased).reason == "restarts_exhausted"
    assert world.phases("n9") == [("stop", 1)]


def test_a_gang_behind_a_release_is_void_though_the_end_was_decided_before() -> None:
    world = on_its_last_restart()
    answer = world.replacement("n9", 10, 0)
    world.record(world.failed(1, "prepare"))
    world.write(world.release_accepted())
    world.happen(answer)
    assert world.last(ClusterReleased).reason == "restarts_exhausted", "it was decided first"
    assert (provider_of("n9"), "n9") not in world.state.nodes


def test_exhausted_funds_release_the_cluster() -> None:
    world = World().granted_and_running()
    world.happen(world.funds_exhausted())
    assert world.last(ClusterReleased).reason == "exhausted"


def test_a_gang_behind_exhaustion_is_void() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    late = world.replacement("n9", 3, 1)
    world.write(world.funds_exhausted())
    world.happen(late)
    assert (provider_of("n9"), "n9") not in world.state.nodes
    assert world.last(ClusterReleased).reason == "exhausted"


def test_a_job_ends_when_it_has_had_its_duration_counted_from_its_first_being_ready() -> None:
    world = World(spec(max_duration_seconds=60))
    world.grant()
    world.now_ms += 30_000
    world.run()
    ready_ms = world.now_ms
    world.report(world.ended(0))
    world.report(world.ended(1))
    world.now_ms += 20_000
    world.run()
    world.tick(ready_ms + 60_000 - world.now_ms)
    assert not world.all(ClusterReleased)
    world.tick(1)
    assert world.last(ClusterReleased).reason == "duration_reached"


def test_the_duration_holds_while_the_cluster_recovers() -> None:
    world = World(spec(max_duration_seconds=60)).granted_and_running()
    world.lose("n1")
    world.tick(60_001)
    assert world.last(ClusterReleased).reason == "duration_reached"


def test_a_cluster_whose_leases_are_all_cleared_is_forgotten_but_for_its_end() -> None:
    world = World().granted_and_running()
    world.release()
    for number, node in enumerate(("n0", "n1"), start=1):
        world.report(world.node_cleared(node, number))
    assert world.state.clusters["j1"] == Cleared()
    assert world.state.leases == {}
    assert world.state.agenda == []
    world.release()
    world.happen(world.first_gang())
    assert world.names()[-1] == "LeaseCleared"


def test_a_job_that_waited_out_has_no_cluster_whatever_comes_later() -> None:
    world = World()
    world.write(admitted())
    world.write(MarketCleared(through_seq=1, at_ms=world.now_ms, expired=(Expired(job=JOB, account=BUYER),)))
    world.happen(world.first_gang())
    assert world.all(ClusterEvent) == []
