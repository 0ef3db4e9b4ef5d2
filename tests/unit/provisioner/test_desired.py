"""What each node is told: all of its leases that are not cleared, with the log's place where that last changed."""

from tests.unit.provisioner.world import BUYER, JOB, TIMING, World, admitted, code, gang, grant, killed, spec
from volt.contracts.bids import GPUS_PER_BID_MAX
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    LeaseCleared,
    Manifest,
    ManifestNode,
    MemberJoined,
    MemberStarted,
)
from volt.contracts.ids import ID_CHARS_MAX
from volt.contracts.jobs import NODES_MAX, SPEC_BYTES_MAX, Workload
from volt.contracts.messages import Event, encode
from volt.contracts.nodes import Desired, DesiredLease
from volt.contracts.streams import DESIRED_BYTES_MAX
from volt_provisioner.effects import publications

ADDRESS_CHARS = 253
UUID_CHARS = 96


def seq_of(world: World, kind: type[Event]) -> int:
    return next(entry.seq for entry in reversed(world.log) if isinstance(entry.event, kind))


def told(world: World) -> list[str]:
    """The nodes that are told something, as the runtime takes it."""
    return [publication.subject.rpartition(".")[2] for publication in publications(world.state)]


def test_a_member_is_told_what_to_prepare() -> None:
    world = World()
    world.grant()
    assert world.desired("n1") == Desired(
        account="owner-of-n1",
        node="n1",
        log_seq=seq_of(world, ClusterForming),
        leases=(
            DesiredLease(
                lease="j1-2",
                job=JOB,
                account=BUYER,
                generation=1,
                phase="prepare",
                node_rank=1,
                gpus=("n1-0", "n1-1"),
                processes=2,
                workload=world.spec.workload,
                manifest=None,
                grace_ms=TIMING.stop_grace_ms,
            ),
        ),
    )


def test_what_a_node_may_be_told_at_most_fits_into_one_message() -> None:
    name = "n" * ID_CHARS_MAX
    told = ManifestNode(node=name, node_rank=255, address="a" * ADDRESS_CHARS, processes=256, first_rank=65_280)
    manifest = Manifest(
        job=name,
        generation=10**9,
        master_address=told.address,
        master_port=65_535,
        world_size=65_536,
        nodes=NODES_MAX * (told,),
    )
    lease = DesiredLease(
        lease=name,
        job=name,
        account=name,
        generation=10**9,
        phase="start",
        node_rank=255,
        gpus=("u" * UUID_CHARS,),
        processes=256,
        workload=Workload(command=("x" * SPEC_BYTES_MAX,)),
        manifest=manifest,
        grace_ms=10**6,
    )
    desired = Desired(account=name, node=name, log_seq=10**15, leases=GPUS_PER_BID_MAX * (lease,))
    assert len(encode(desired)) < DESIRED_BYTES_MAX


def test_a_node_is_told_nothing_before_the_cluster_forms() -> None:
    world = World()
    world.write(admitted(wanted=world.spec))
    world.write(world.first_gang())
    assert world.desired("n0").leases == ()
    assert told(world) == []


def test_the_manifest_comes_with_the_start() -> None:
    world = World().granted_and_running()
    (lease,) = world.desired("n0").leases
    assert lease.manifest == world.last(ClusterStarting).manifest
    assert lease.workload == world.spec.workload


def test_what_is_to_end_gets_nothing_to_run() -> None:
    world = World().granted_and_running()
    world.report(world.ended(0, code(1)))
    (lease,) = world.desired("n1").leases
    assert (lease.phase, lease.manifest, lease.workload.command, lease.workload.env) == ("halt", None, (), {})
    world.release()
    (lease,) = world.desired("n1").leases
    assert (lease.phase, lease.manifest, lease.workload.command) == ("stop", None, ())


def test_the_sequence_is_that_of_the_event_that_changed_what_the_node_should_do() -> None:
    world = World()
    world.grant()
    world.report(world.prepared(0))
    assert world.desired("n0").log_seq == seq_of(world, ClusterForming)
    world.report(world.prepared(1))
    starting_seq = seq_of(world, ClusterStarting)
    assert world.desired("n0").log_seq == starting_seq
    world.report(world.started(0))
    world.report(world.started(1))
    assert world.desired("n0").log_seq == starting_seq < seq_of(world, MemberStarted) < seq_of(world, ClusterReady)
    world.report(world.ended(0, code(1)))
    assert world.desired("n1").log_seq == seq_of(world, GenerationEnded)
    world.report(world.ended(1, killed(15)))
    assert world.desired("n1").log_seq == seq_of(world, ClusterReleased)
    world.report(world.node_cleared("n1", 2))
    assert world.desired("n1").log_seq == seq_of(world, LeaseCleared)
    assert world.desired("n0").log_seq == seq_of(world, ClusterReleased)


def test_a_replacement_is_told_when_it_has_joined() -> None:
    world = World().granted_and_running()
    world.lose("n1")
    world.write(world.replacement("n9", 3, 1))
    assert world.desired("n9").leases == ()
    world.follow()
    assert world.phases("n9") == [("prepare", 2)]
    assert world.desired("n9").log_seq == seq_of(world, MemberJoined)


def test_a_node_with_leases_of_two_jobs_is_told_of_both_until_each_is_cleared() -> None:
    world = World(spec(1))
    for job in ("j1", "j2"):
        world.write(admitted(job, world.spec))
    world.happen(world.cleared(gang(grant(1, 0, "n0"))))
    world.happen(world.cleared(gang(grant(1, 0, "n0", "j2"), job="j2")))
    assert world.phases("n0") == [("prepare", 1), ("prepare", 1)]
    world.release()
    assert world.phases("n0") == [("stop", 1), ("prepare", 1)]
    world.report(world.node_cleared("n0", 1))
    assert [(lease.lease, lease.phase) for lease in world.desired("n0").leases] == [("j2-1", "prepare")]


def test_only_nodes_whose_orders_changed_are_told() -> None:
    world = World()
    world.grant()
    assert sorted(told(world)) == ["n0", "n1"]
    assert told(world) == []
    world.report(world.prepared(0))
    assert told(world) == []
    world.lose("n1")
    assert told(world) == ["n1"]
