"""From a gang to a running cluster."""

import pytest
from msgspec.structs import replace

from tests.unit.provisioner.world import BUYER, JOB, PORT, T0_MS, TIMING, World, admitted, code, gang, grant, spec
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    Manifest,
    ManifestNode,
    MemberLost,
)
from volt.contracts.jobs import WorkloadKind


def test_a_gang_becomes_a_forming_cluster_with_a_deadline() -> None:
    world = World()
    world.grant()
    forming = world.last(ClusterForming)
    assert (forming.account, forming.job, forming.generation) == (BUYER, JOB, 1)
    assert [(member.rank, member.node, member.lease) for member in forming.members] == [
        (0, "n0", "j1-1"),
        (1, "n1", "j1-2"),
    ]
    assert [member.price_microusd_per_gpu_hour for member in forming.members] == [1_000_000, 1_000_000]
    assert forming.prepare_by_ms == T0_MS + TIMING.prepare_ms_max
    assert forming.replaces == ()


def test_a_cluster_goes_from_forming_to_running_in_steps() -> None:
    world = World().granted_and_running()
    assert world.names() == [
        "ClusterForming",
        "MemberPrepared",
        "MemberPrepared",
        "ClusterStarting",
        "MemberStarted",
        "MemberStarted",
        "ClusterReady",
    ]


def test_nothing_is_half_started() -> None:
    world = World()
    world.grant()
    world.report(world.prepared(1))
    assert world.names()[-1] == "MemberPrepared"
    assert world.phases("n0") == world.phases("n1") == [("prepare", 1)]
    world.report(world.prepared(0))
    assert world.phases("n0") == world.phases("n1") == [("start", 1)]


def test_the_head_is_rank_0_at_the_address_and_port_that_it_reserved() -> None:
    world = World(spec(2, gpus_per_node=2))
    world.grant()
    world.report(world.prepared(1))
    world.report(world.prepared(0))
    assert world.last(ClusterStarting).manifest == Manifest(
        job=JOB,
        generation=1,
        master_address="10.0.0.0",
        master_port=PORT + 100,
        world_size=4,
        nodes=(
            ManifestNode(node="n0", node_rank=0, address="10.0.0.0", processes=2, first_rank=0),
            ManifestNode(node="n1", node_rank=1, address="10.0.0.1", processes=2, first_rank=2),
        ),
    )


@pytest.mark.parametrize(("kind", "world_size"), [("ddp", 6), ("fsdp", 6), ("ray", 3), ("batch", 3)])
def test_gang_kinds_have_a_process_per_gpu_and_others_one_per_node(kind: WorkloadKind, world_size: int) -> None:
    world = World(spec(3, kind=kind, gpus_per_node=2)).granted_and_running()
    manifest = world.last(ClusterStarting).manifest
    assert manifest.world_size == world_size
    assert [node.first_rank for node in manifest.nodes] == [0, world_size // 3, 2 * world_size // 3]


def test_members_are_ordered_by_rank_whatever_the_order_of_grants() -> None:
    world = World(spec(3))
    world.write(admitted(wanted=world.spec))
    world.happen(world.cleared(gang(grant(1, 2, "n2"), grant(2, 0, "n0"), grant(3, 1, "n1"))))
    world.run()
    assert [node.node for node in world.last(ClusterStarting).manifest.nodes] == ["n0", "n1", "n2"]


def test_ready_is_said_only_when_the_last_member_has_started() -> None:
    world = World(spec(3))
    world.grant()
    for rank in range(3):
        world.report(world.prepared(rank))
    world.report(world.started(2))
    world.report(world.started(0))
    assert not world.all(ClusterReady)
    world.now_ms += 7
    world.report(world.started(1))
    assert world.last(ClusterReady).at_ms == T0_MS + 7


def test_a_member_that_has_exited_0_counts_as_started() -> None:
    world = World()
    world.grant()
    for rank in range(2):
        world.report(world.prepared(rank))
    world.report(world.ended(0, code(0)))
    world.report(world.started(1))
    assert world.names()[-1] == "ClusterReady"


def test_a_prepare_that_is_overdue_is_a_loss_at_its_deadline_and_not_before() -> None:
    world = World()
    world.grant()
    world.report(world.prepared(0))
    world.tick(TIMING.prepare_ms_max)
    assert not world.all(MemberLost)
    world.tick(1)
    lost = world.last(MemberLost)
    assert (lost.lease, lost.node, lost.cause) == ("j1-2", "n1", "prepare_overdue")
    assert world.names()[-1] == "MembersWanted"
    assert world.phases("n1") == [("stop", 1)]
    assert world.phases("n0") == [("prepare", 1)]


def test_an_agent_that_never_says_a_word_does_not_hold_the_gang_for_ever() -> None:
    world = World()
    world.grant()
    world.tick(TIMING.prepare_ms_max + 1)
    assert {lost.lease for lost in world.all(MemberLost)} == {"j1-1", "j1-2"}
    world.tick(TIMING.replace_ms_max + 1)
    released = world.last(ClusterReleased)
    assert released.reason == "no_replacement"
    assert released.first_cause == (
        "rank 0 on node n0: the node was not prepared in time, and no other node took its place in time"
    )


def test_a_start_that_is_overdue_ends_the_generation() -> None:
    world = World()
    world.grant()
    for rank in range(2):
        world.report(world.prepared(rank))
    world.report(world.started(0))
    seq = len(world.log)
    world.tick(TIMING.start_ms_max + 1)
    assert world.since(seq) == ["MemberLost", "GenerationEnded", "ClusterForming", "MembersWanted"]
    assert world.last(MemberLost).cause == "start_overdue"
    assert world.last(MemberLost).lease == "j1-2"


def test_the_last_word_of_a_member_about_its_port_stands_until_the_start() -> None:
    world = World()
    world.grant()
    world.report(world.prepared(0))
    moved = replace(world.prepared(0), address="10.9.9.9", port=1)
    world.report(moved)
    assert world.record(moved) == (), "said before"
    world.report(world.prepared(1))
    starting = world.last(ClusterStarting)
    assert (starting.manifest.master_address, starting.manifest.master_port) == ("10.9.9.9", 1)
    assert world.record(replace(moved, port=2)) == (), "the others know the port by now"


def test_a_gang_for_a_job_that_nobody_admitted_is_ignored() -> None:
    world = World()
    world.happen(world.cleared(gang(grant(1, 0, "n0"), job="j9")))
    assert world.names() == []


def test_clusters_of_one_market_pass_form_side_by_side() -> None:
    world = World()
    for job in ("j1", "j2"):
        world.write(admitted(job))
    gangs = [gang(grant(1, 0, f"{job}n0", job), grant(2, 1, f"{job}n1", job), job=job) for job in ("j1", "j2")]
    world.happen(world.cleared(*gangs))
    assert [event.job for event in world.all(ClusterForming)] == ["j1", "j2"]
