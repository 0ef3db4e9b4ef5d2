"""A report counts once, from its own node, for its own generation; any other changes nothing."""

from msgspec.structs import replace

from tests.unit.provisioner.world import World, code, killed, spec
from volt.contracts.clusters import ClusterEvent, LeaseCleared, MemberEnded, MemberLost
from volt.contracts.nodes import Report, ReportCleared


def changes_nothing(world: World, report: Report) -> bool:
    return world.record(report) == ()


def test_a_repeated_report_changes_nothing() -> None:
    world = World()
    world.grant()
    reports: list[Report] = [world.prepared(0), world.prepared(1)]
    reports += [world.started(0), world.started(1), world.ended(0, code(0))]
    for report in reports:
        world.report(report)
        assert changes_nothing(world, report)
    assert len(world.all(ClusterEvent)) == 8


def test_reports_about_a_lease_that_nobody_knows_change_nothing() -> None:
    world = World().granted_and_running()
    for report in (world.prepared(0), world.started(0), world.ended(0, code(0)), world.node_cleared("n0", 1)):
        assert changes_nothing(world, replace(report, lease="j1-77"))


def test_reports_about_another_nodes_lease_change_nothing() -> None:
    world = World()
    world.grant()
    for report in (world.prepared(0), world.failed(0, "prepare")):
        assert changes_nothing(world, replace(report, node="n1"))
        assert changes_nothing(world, replace(report, account="stranger"))
    world.run()
    assert changes_nothing(world, replace(world.ended(0, code(1)), node="n1"))
    world.release()
    assert changes_nothing(world, replace(world.node_cleared("n0", 1), account="stranger"))


def test_reports_of_another_generation_change_nothing() -> None:
    world = World().granted_and_running()
    assert changes_nothing(world, world.ended(0, code(1), generation=2))
    world.report(world.ended(0))
    world.report(world.ended(1))
    old: list[Report] = [world.prepared(0, 1), world.failed(0, "prepare", 1), world.ended(0, code(1), generation=1)]
    assert all(changes_nothing(world, report) for report in old)
    world.run()
    old += [world.started(0, 1), world.failed(0, "start", 1)]
    assert all(changes_nothing(world, report) for report in old)


def test_a_late_end_of_the_old_generation_is_recorded_as_that() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    report = world.ended(0, killed(15), generation=1)
    world.report(report)
    assert (world.last(MemberEnded).generation, world.last(MemberEnded).exits) == (1, (killed(15),))
    assert changes_nothing(world, report)
    assert world.generation == 2


def test_a_survivor_that_had_failed_to_start_the_old_generation_has_ended_it() -> None:
    world = World(spec(3))
    world.grant()
    for rank in range(3):
        world.report(world.prepared(rank))
    world.report(world.failed(1, "start"))
    world.report(world.failed(0, "start", generation=1))
    assert (world.last(MemberEnded).lease, world.last(MemberEnded).generation) == ("j1-1", 1)
    assert len(world.all(MemberLost)) == 1


def test_a_failed_start_while_the_cause_is_undecided_is_a_loss() -> None:
    world = World()
    world.grant()
    for rank in range(2):
        world.report(world.prepared(rank))
    world.report(world.ended(0, code(1)))
    world.report(world.failed(1, "start"))
    assert world.last(MemberLost).cause == "start_failed"
    assert world.generation == 2


def test_reports_about_a_lost_lease_change_nothing_but_that_it_is_cleared() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    reports = (world.ended(1, code(0), generation=1), world.started(1, 1), world.prepared(1, 2))
    assert all(changes_nothing(world, report) for report in reports)
    cleared = replace(world.node_cleared("n1", 2), generation=1)
    world.report(cleared)
    assert (world.last(LeaseCleared).lease, world.last(LeaseCleared).node) == ("j1-2", "n1")
    assert changes_nothing(world, cleared)


def test_reports_about_a_released_lease_change_nothing_but_that_it_is_cleared() -> None:
    world = World().granted_and_running()
    world.release()
    assert changes_nothing(world, world.ended(0, killed(15)))
    cleared = world.node_cleared("n0", 1)
    world.report(cleared)
    assert world.names()[-1] == "LeaseCleared"
    assert changes_nothing(world, cleared)


def test_a_lease_that_is_still_needed_cannot_be_cleared() -> None:
    world = World()
    world.grant()
    assert changes_nothing(world, world.node_cleared("n0", 1))
    world.run()
    assert changes_nothing(world, world.node_cleared("n0", 1))


def test_nobody_is_cleared_before_the_release_is_in_the_log() -> None:
    world = World().granted_and_running()
    world.write(world.release_accepted())
    assert changes_nothing(world, world.node_cleared("n0", 1))
    assert world.phases("n0") == [("start", 1)], "its node is not told to stop yet either"
    world.follow()
    assert not changes_nothing(world, world.node_cleared("n0", 1))


def test_a_lost_nodes_reports_change_nothing_though_its_loss_is_yet_to_be_recorded() -> None:
    world = World()
    world.grant()
    world.write(world.lost("n1"))
    assert changes_nothing(world, world.prepared(1))


def test_a_lease_that_was_lost_is_cleared_whatever_generation_its_node_remembers() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    old = ReportCleared(account="owner-of-n1", node="n1", lease="j1-2", generation=1)
    world.report(old)
    assert world.phases("n1") == []
