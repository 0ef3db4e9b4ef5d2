"""A quarantined GPU ends the leases that hold it, as a loss, and no others."""

from tests.unit.provisioner.rules import check
from tests.unit.provisioner.world import TIMING, World, code, killed, spec
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    MemberDropped,
    MemberLost,
    MembersWanted,
)


def test_a_member_with_a_faulty_gpu_is_lost_and_replaced_and_the_fault_is_told() -> None:
    world = World().granted_and_running()
    seq = len(world.log)
    world.happen(world.quarantined("n1", "n1-1"))
    assert world.since(seq) == ["MemberLost", "GenerationEnded", "ClusterForming", "MembersWanted"]
    lost = world.last(MemberLost)
    assert (lost.lease, lost.cause) == ("j1-2", "gpu_fault")
    assert lost.detail == "n1-1: XID 48 ROBUST_CHANNEL_GPU_ECC_DBE"
    assert world.last(ClusterForming).replaces == ("j1-2",)
    assert world.last(MembersWanted).excluded == (), "the node's other GPUs are as good as any"
    assert world.phases("n1") == [("stop", 1)]


def test_a_fault_of_a_gpu_that_the_lease_does_not_hold_leaves_it_alone() -> None:
    world = World().granted_and_running()
    seq = len(world.log)
    world.happen(world.quarantined("n1", "n1-7"))
    assert world.since(seq) == []


def test_a_grant_of_a_quarantined_gpu_is_seen_and_replaced_at_once() -> None:
    world = World()
    world.happen(world.quarantined("n1", "n1-0"))
    world.grant()
    assert world.last(MemberLost).cause == "gpu_fault"
    world = World()
    world.happen(world.quarantined("n1", "n1-0"))
    world.happen(world.recovered("n1", "n1-0"))
    world.grant()
    assert not world.all(MemberLost)


def test_nothing_starts_while_the_faulty_member_may_still_run() -> None:
    """Its node lives, other than a lost one, whose fence has ended what it ran."""
    world = World().granted_and_running()
    world.happen(world.quarantined("n1", "n1-0"))
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n9", 3, 1)
    world.report(world.prepared(0))
    world.report(world.prepared(1))
    assert len(world.all(ClusterStarting)) == 1
    world.report(world.node_cleared("n1", 2))
    assert len(world.all(ClusterStarting)) == 2
    check(world.log, TIMING)


def test_one_that_never_ends_is_waited_for_no_longer_than_a_halt_may_take() -> None:
    world = World().granted_and_running()
    world.happen(world.quarantined("n1", "n1-0"))
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n9", 3, 1)
    world.report(world.prepared(0))
    world.report(world.prepared(1))
    world.tick(2 * (TIMING.stop_grace_ms + TIMING.start_ms_max))
    assert len(world.all(ClusterStarting)) == 2
    check(world.log, TIMING)


def test_one_that_had_ended_or_whose_node_is_lost_is_not_waited_for() -> None:
    for loses_node in (True, False):
        world = World().granted_and_running()
        if not loses_node:
            world.record(world.ended(1, code(1)))
        world.happen(world.quarantined("n1", "n1-0"))
        if loses_node:
            world.lose("n1")
        world.report(world.ended(0, killed(15), generation=1))
        world.replace("n9", 3, 1)
        world.report(world.prepared(0))
        world.report(world.prepared(1))
        assert len(world.all(ClusterStarting)) == 2


def test_another_loss_does_not_make_it_wait_again_for_who_has_ended() -> None:
    world = World(spec(3)).granted_and_running()
    world.write(world.quarantined("n1", "n1-0"))
    for _ in range(2):
        world.write(world.due()[0])
    assert [type(event).__name__ for event in world.all(GenerationEnded)] == ["GenerationEnded"]
    world.record(world.ended_of("n1", 2, killed(15)))
    world.happen(world.quarantined("n2", "n2-0"))
    world.report(world.ended_of("n2", 3, killed(15)))
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n8", 4, 1)
    world.replace("n9", 5, 2)
    for rank in range(3):
        world.report(world.prepared(rank))
    assert len(world.all(ClusterStarting)) == 2
    check(world.log, TIMING)


def test_faults_of_gpus_use_up_no_restarts() -> None:
    world = World().granted_and_running()
    for number in range(6):
        node = world.member(1).node
        world.happen(world.quarantined(node, f"{node}-0"))
        world.report(world.ended(0, killed(15), generation=world.generation - 1))
        world.report(world.node_cleared(node, number + 2))
        world.replace(f"m{number}", number + 3, 1)
        world.run()
    assert not world.all(ClusterReleased)
    assert world.names()[-1] == "ClusterReady"


def test_who_is_to_join_a_cluster_that_grows_is_dropped() -> None:
    world = World().granted_and_running()
    world.scale(3)
    world.replace("n5", 3, 2)
    world.happen(world.quarantined("n5", "n5-0"))
    dropped = world.last(MemberDropped)
    assert (dropped.lease, dropped.cause) == ("j1-3", "gpu_fault")
    assert not world.all(GenerationEnded)


def test_a_survivor_whose_gpu_fails_while_it_ends_the_old_generation_is_waited_for() -> None:
    world = World(spec(3)).granted_and_running()
    world.lose("n2")
    world.happen(world.quarantined("n1", "n1-0"))
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n8", 4, 1)
    world.replace("n9", 5, 2)
    for rank in range(3):
        world.report(world.prepared(rank))
    assert len(world.all(ClusterStarting)) == 1, "n1 still runs generation 1"
    world.report(world.ended_of("n1", 2, killed(15)))
    assert len(world.all(ClusterStarting)) == 2
    check(world.log, TIMING)


def test_a_second_fault_of_its_node_does_not_mean_that_it_has_ended() -> None:
    world = World().granted_and_running()
    world.happen(world.quarantined("n1", "n1-0"))
    world.happen(world.quarantined("n1", "n1-1"))
    world.report(world.ended(0, killed(15), generation=1))
    world.replace("n9", 3, 1)
    world.report(world.prepared(0))
    world.report(world.prepared(1))
    assert len(world.all(ClusterStarting)) == 1
    check(world.log, TIMING)


def test_a_node_that_is_lost_before_its_fault_is_recorded_is_a_lost_node() -> None:
    world = World().granted_and_running()
    world.write(world.quarantined("n1", "n1-0"))
    world.lose("n1")
    assert [event.cause for event in world.all(MemberLost)] == ["node_lost"]
