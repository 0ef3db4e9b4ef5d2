"""A checkpoint is committed when every rank of the generation has stored it; the next generation begins from it."""

from msgspec.structs import replace

from tests.unit.provisioner.sizes import end, end_and_prepare, joining
from tests.unit.provisioner.test_reports import changes_nothing
from tests.unit.provisioner.world import JOB, World, code, manifest_digest, spec
from volt.contracts.clusters import CheckpointCommitted, CheckpointStored, ClusterReleased
from volt.contracts.nodes import DesiredLease
from volt_provisioner.causes import RESTARTS_MAX
from volt_provisioner.progress import STEPS_PENDING_MAX


def lease_of(world: World, node: str) -> DesiredLease:
    return world.desired(node).leases[0]


def resumed(world: World, node: str) -> int | None:
    resume = lease_of(world, node).resume
    return None if resume is None else resume.step


def kept(world: World, node: str) -> list[tuple[int, list[int]]]:
    """The steps that a node has to look after, and of which ranks."""
    return [(one.step, [part.rank for part in one.parts]) for one in lease_of(world, node).kept]


def vanish(world: World) -> None:
    """The workload is gone and nobody saw why: a restart."""
    for rank in range(2):
        world.report(world.ended(rank))


def restart(world: World) -> None:
    vanish(world)
    world.run()


def test_a_step_is_committed_when_every_rank_has_stored_it() -> None:
    world = World(spec(3)).granted_and_running()
    for rank in (2, 0):
        world.report(world.stored(rank, 10))
    assert not world.all(CheckpointCommitted)
    world.report(world.stored(1, 10))
    checkpoint = world.last(CheckpointCommitted).checkpoint
    assert (checkpoint.generation, checkpoint.step) == (1, 10)
    assert [(part.rank, part.manifest) for part in checkpoint.parts] == [
        (rank, manifest_digest(rank, 10, 1)) for rank in range(3)
    ]


def test_a_part_that_is_reported_again_changes_nothing_and_the_first_stands() -> None:
    world = World().granted_and_running()
    world.report(world.stored(0, 10))
    assert changes_nothing(world, world.stored(0, 10))
    assert changes_nothing(world, replace(world.stored(0, 10), manifest="f" * 64))
    world.report(world.stored(1, 10))
    assert world.last(CheckpointCommitted).checkpoint.parts[0].manifest == manifest_digest(0, 10, 1)


def test_a_step_that_is_not_newer_than_the_committed_one_changes_nothing() -> None:
    world = World().granted_and_running()
    world.commit(10)
    for step in (0, 9, 10):
        assert changes_nothing(world, world.stored(0, step))
    world.commit(11)
    assert world.last(CheckpointCommitted).checkpoint.step == 11


def test_of_several_steps_that_all_have_the_highest_is_committed() -> None:
    world = World().granted_and_running()
    for step in (1, 2, 3):
        world.report(world.stored(0, step))
    for step in (1, 2):
        world.record(world.stored(1, step))
    world.follow()
    assert [event.checkpoint.step for event in world.all(CheckpointCommitted)] == [2]
    world.report(world.stored(1, 3))
    assert world.last(CheckpointCommitted).checkpoint.step == 3


def test_what_an_old_generation_reports_never_commits() -> None:
    world = World().granted_and_running()
    world.report(world.stored(0, 10))
    vanish(world)
    late = [world.stored(rank, 10, generation=1) for rank in range(2)]
    assert all(changes_nothing(world, report) for report in late), "while the next one forms"
    world.run()
    assert all(changes_nothing(world, report) for report in late), "and while it runs"
    world.report(world.stored(1, 10))
    assert not world.all(CheckpointCommitted), "for rank 0 stored it in the generation before"


def test_a_part_counts_though_its_member_is_lost_since() -> None:
    world = World().granted_and_running()
    world.report(world.stored(1, 10))
    world.report(world.ended(1, code(1)))
    world.report(world.stored(0, 10))
    assert world.names()[-1] == "CheckpointCommitted", "while the cause of the failure is undecided"
    world.lose("n1")
    assert resumed(world, "n0") == 10


def test_the_last_checkpoint_counts_though_its_members_have_exited() -> None:
    world = World().granted_and_running()
    for rank in range(2):
        world.record(world.stored(rank, 99))
        world.record(world.ended(rank, code(0)))
    world.follow()
    assert world.names()[-2:] == ["CheckpointCommitted", "ClusterReleased"]


def test_the_next_generation_is_told_to_begin_from_the_committed_checkpoint_whoever_is_in_it() -> None:
    world = World().granted_and_running()
    assert resumed(world, "n0") is None
    world.commit(10)
    world.report(world.stored(0, 20))
    world.lose("n1")
    world.replace("n5", 3, 1)
    assert lease_of(world, "n0").phase == lease_of(world, "n5").phase == "prepare"
    assert resumed(world, "n0") == resumed(world, "n5") == 10
    end_and_prepare(world, 0)
    world.report(world.prepared(1))
    assert lease_of(world, "n5").phase == "start"
    assert resumed(world, "n5") == 10, "until it runs"
    resume = lease_of(world, "n5").resume
    assert resume is not None
    assert [part.rank for part in resume.parts] == [0, 1], "every rank gets the parts of all"


def test_a_generation_begins_from_one_place_though_it_commits_before_all_have_started() -> None:
    world = World().granted_and_running()
    world.commit(10)
    vanish(world)
    for rank in range(2):
        world.report(world.prepared(rank))
    world.commit(20)
    assert lease_of(world, "n0").phase == "start"
    assert resumed(world, "n0") == 10


def test_nodes_look_after_the_last_two_checkpoints_of_their_own_rank() -> None:
    world = World().granted_and_running()
    for step in (10, 20, 30):
        seq = world.desired("n1").log_seq
        world.commit(step)
        assert world.desired("n1").log_seq > seq, "each commit is told"
    assert kept(world, "n0") == [(20, [0]), (30, [0])]
    assert kept(world, "n1") == [(20, [1]), (30, [1])]


def test_rank_0_looks_after_the_parts_of_ranks_that_are_no_more() -> None:
    world = World(spec(3)).granted_and_running()
    world.commit(10)
    world.scale(2)
    end(world, 2)
    end_and_prepare(world, 0, 1)
    for rank in range(2):
        world.report(world.started(rank))
    world.report(world.node_cleared("n2", 3))
    assert kept(world, "n0") == [(10, [0, 2])]
    assert kept(world, "n1") == [(10, [1])]
    for rank in range(2):
        world.report(world.stored(rank, 20))
    assert world.last(CheckpointCommitted).checkpoint.step == 20, "two ranks are all that there are now"


def test_who_is_to_join_is_told_where_to_begin_when_its_generation_forms() -> None:
    world = joining()
    for rank in range(2):
        world.report(world.stored(rank, 10))
    assert lease_of(world, "n2").resume is None, "since the others go on"
    for rank in (2, 3):
        world.report(world.prepared(rank, generation=2))
    end(world, 0, 1)
    assert resumed(world, "n2") == resumed(world, "n0") == 10


def test_a_newer_checkpoint_resets_the_count_of_restarts() -> None:
    world = World().granted_and_running()
    for number in range(1, RESTARTS_MAX + 1):
        restart(world)
        world.commit(number)
    for _ in range(RESTARTS_MAX):
        restart(world)
    vanish(world)
    assert world.last(ClusterReleased).reason == "restarts_exhausted"
    assert world.generation == 1 + 2 * RESTARTS_MAX


def test_a_checkpoint_that_is_not_newer_is_no_progress() -> None:
    world = World().granted_and_running()
    world.commit(10)
    for _ in range(RESTARTS_MAX):
        restart(world)
        world.commit(10)
    vanish(world)
    assert world.last(ClusterReleased).reason == "restarts_exhausted"


def test_a_rank_that_stores_far_ahead_of_the_others_is_bounded() -> None:
    world = World().granted_and_running()
    for step in range(3 * STEPS_PENDING_MAX):
        world.report(world.stored(0, step))
    assert len(world.all(CheckpointStored)) == 3 * STEPS_PENDING_MAX
    world.report(world.stored(1, STEPS_PENDING_MAX))
    assert not world.all(CheckpointCommitted), "that one is forgotten"
    world.report(world.stored(1, 3 * STEPS_PENDING_MAX - 1))
    assert world.last(CheckpointCommitted).checkpoint.step == 3 * STEPS_PENDING_MAX - 1


def test_nothing_of_a_job_that_is_over_is_committed_but_what_all_had_stored() -> None:
    world = World().granted_and_running()
    world.report(world.stored(0, 10))
    world.release()
    assert changes_nothing(world, world.stored(1, 10))
    assert world.names()[-1] == "ClusterReleased"
    assert JOB in world.state.clusters
