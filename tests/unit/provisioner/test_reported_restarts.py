"""What has finished is not begun again (dstack#3130)."""

from tests.unit.provisioner.world import World, code, spec
from volt.contracts.clusters import ClusterForming, ClusterReleased


def test_a_member_that_has_finished_is_not_restarted_when_its_agent_forgets_it() -> None:
    """An agent that starts anew has nothing of the lease, and says that its processes are gone."""
    world = World().granted_and_running()
    world.report(world.ended(0, code(0), code(0, 1)))
    for _ in range(6):
        assert world.record(world.ended(0)) == ()
    world.report(world.ended(1, code(0), code(0, 1)))
    assert world.last(ClusterReleased).reason == "completed"
    assert len(world.all(ClusterForming)) == 1


def test_a_finished_job_is_not_restarted_by_whatever_its_agents_say_afterwards() -> None:
    world = World(spec(1)).granted_and_running()
    world.report(world.ended(0, code(0)))
    for _ in range(6):
        for report in (world.ended(0), world.failed(0, "start"), world.prepared(0), world.started(0)):
            assert world.record(report) == ()
    assert world.phases("n0") == [("stop", 1)]
    assert len(world.all(ClusterForming)) == 1
