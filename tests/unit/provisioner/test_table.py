"""Only the transitions that are drawn are possible; anything else raises, and marks that one cluster stuck."""

from collections.abc import Callable

import pytest

from tests.unit.provisioner.world import BUYER, JOB, T0_MS, World, admitted, code
from volt.contracts.clusters import (
    Checkpoint,
    CheckpointCommitted,
    CheckpointPart,
    CheckpointStored,
    ClusterEvent,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    GrowthGivenUp,
    LeaseCleared,
    Manifest,
    Member,
    MemberDropped,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberPrepared,
    MemberStarted,
    MembersWanted,
    Wanted,
)
from volt_provisioner.events import Head


def absent() -> World:
    world = World()
    world.write(admitted(wanted=world.spec))
    return world


def granted() -> World:
    world = absent()
    world.write(world.first_gang())
    return world


def forming() -> World:
    world = World()
    world.grant()
    return world


def vacant() -> World:
    world = forming()
    world.record(world.failed(1, "prepare"))
    return world


def sought() -> World:
    world = vacant()
    world.follow()
    return world


def prepared() -> World:
    world = forming()
    for rank in range(2):
        world.record(world.prepared(rank))
    return world


def starting() -> World:
    world = prepared()
    world.follow()
    return world


def running() -> World:
    return World().granted_and_running()


def stopping() -> World:
    world = running()
    world.report(world.ended(0, code(1)))
    return world


def released() -> World:
    world = running()
    world.release()
    return world


def cleared() -> World:
    world = released()
    for number, node in enumerate(("n0", "n1"), start=1):
        world.report(world.node_cleared(node, number))
    return world


STATES = (absent, granted, forming, vacant, sought, prepared, starting, running, stopping, released, cleared)

OF_A_CREW = {"MemberEnded", "MemberLost", "CheckpointStored", "CheckpointCommitted", "ClusterReleased"}
POSSIBLE = {
    "absent": set[str](),
    "granted": {"ClusterForming", "ClusterReleased"},
    "forming": {"MemberPrepared", "MemberLost", "ClusterReleased"},
    "vacant": {"MembersWanted", "LeaseCleared", "ClusterReleased"},
    "sought": {"LeaseCleared", "ClusterReleased"},
    "prepared": {"MemberPrepared", "MemberLost", "ClusterStarting", "ClusterReleased"},
    "starting": {"MemberStarted", "ClusterReady", "GenerationEnded", *OF_A_CREW},
    "running": {"GenerationEnded", *OF_A_CREW},
    "stopping": OF_A_CREW,
    "released": {"LeaseCleared"},
    "cleared": set[str](),
}
"""Of `one_of_each` in generation 1, which is about rank 1 and its first lease; `vacant` and `sought` have lost it,
and `prepared` has it at another address."""


def one_of_each(generation: int) -> list[ClusterEvent]:
    head = Head(account=BUYER, job=JOB, generation=generation, at_ms=T0_MS)
    lease, node = "j1-2", "n1"
    manifest = Manifest(job=JOB, generation=generation, master_address="", master_port=1, world_size=1, nodes=())
    wanted = Wanted(rank=1, attempt=1)
    part = CheckpointPart(rank=1, manifest="0" * 64, size_bytes=1)
    return [
        ClusterForming(**head, members=(), prepare_by_ms=T0_MS),
        MembersWanted(**head, wanted=(wanted,), excluded=(), within=""),
        MemberPrepared(**head, lease=lease, address="", port=1),
        ClusterStarting(**head, manifest=manifest, start_by_ms=T0_MS),
        MemberStarted(**head, lease=lease),
        ClusterReady(**head),
        MemberEnded(**head, lease=lease, exits=(code(0),)),
        MemberLost(**head, lease=lease, node=node, cause="node_lost"),
        GenerationEnded(**head, lease=lease),
        ClusterReleased(**head, reason="completed"),
        LeaseCleared(**head, lease=lease, node=node),
        CheckpointStored(**head, lease=lease, step=1, part=part),
        CheckpointCommitted(**head, checkpoint=Checkpoint(generation=generation, step=1, parts=(part,))),
    ]


def taken(state: Callable[[], World], generation: int) -> set[str]:
    """The events that this state takes."""
    names = set()
    for event in one_of_each(generation):
        try:
            state().write(event)
        except AssertionError:
            continue
        names.add(type(event).__name__)
    return names


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_state_takes_the_events_that_are_drawn_and_no_other(state: Callable[[], World]) -> None:
    assert taken(state, 1) == POSSIBLE[state.__name__]


@pytest.mark.parametrize("state", [granted, forming, starting, running], ids=lambda state: state.__name__)
def test_an_open_generation_takes_nothing_of_the_next(state: Callable[[], World]) -> None:
    assert taken(state, 2) == {"ClusterReleased"}, "which names whatever generation it ended in"


def test_only_an_ended_generation_gives_way_to_the_next() -> None:
    assert taken(stopping, 2) == {"ClusterForming", "ClusterReleased"}
    assert taken(stopping, 3) == {"ClusterReleased"}


def test_an_end_that_is_decided_takes_what_was_decided_before_it() -> None:
    def ending() -> World:
        world = running()
        world.write(world.release_accepted())
        return world

    assert taken(ending, 1) == POSSIBLE["running"]


def growing() -> World:
    world = running()
    world.scale(3)
    return world


def forgone() -> World:
    world = growing()
    world.scale(2)
    return world


def offered() -> World:
    world = growing()
    world.write(world.replacement("n2", 3, 2))
    return world


def joining() -> World:
    world = offered()
    world.follow()
    return world


def ready_to_join() -> World:
    world = joining()
    world.record(world.prepared(2, generation=2))
    return world


def recovering() -> World:
    """The generation has ended by a failure while somebody prepares to join."""
    world = joining()
    world.report(world.ended(0, code(1)))
    return world


def ended_to_grow() -> World:
    world = ready_to_join()
    world.write(world.due()[0])
    return world


def ended_to_shrink() -> World:
    world = running()
    world.write(world.scale_accepted(1))
    world.write(world.due()[0])
    return world


TO_GROW = {
    "starting": set[str](),
    "running": {"MembersWanted", "GenerationEnded to grow", "GenerationEnded to shrink"},
    "growing": {"GenerationEnded to grow", "GenerationEnded to shrink"},
    "forgone": {"MembersWanted", "GenerationEnded to grow", "GenerationEnded to shrink"},
    "offered": {
        "MemberJoined",
        "MemberDropped",
        "GrowthGivenUp",
        "GenerationEnded to grow",
        "GenerationEnded to shrink",
    },
    "joining": {
        "MemberPrepared",
        "MemberDropped",
        "GrowthGivenUp",
        "GenerationEnded to grow",
        "GenerationEnded to shrink",
    },
    "ready_to_join": {
        "MemberPrepared",
        "MemberDropped",
        "GrowthGivenUp",
        "GenerationEnded to grow",
        "GenerationEnded to shrink",
    },
    "stopping": set[str](),
    "recovering": {"MemberPrepared", "MemberDropped"},
    "ended_to_grow": {"MemberPrepared", "MemberDropped"},
    "ended_to_shrink": set[str](),
}
"""Of `one_of_each_to_grow`, which is about rank 2 and its lease; only a running cluster begins with any of it."""


def one_of_each_to_grow() -> dict[str, ClusterEvent]:
    this, following = (Head(account=BUYER, job=JOB, generation=generation, at_ms=T0_MS) for generation in (1, 2))
    lease, node = "j1-3", "n2"
    member = Member(lease=lease, rank=2, node=node, provider="p", gpus=(), price_microusd_per_gpu_hour=1)
    return {
        "MembersWanted": MembersWanted(**this, wanted=(Wanted(rank=2, attempt=9),), excluded=(), within=""),
        "MemberJoined": MemberJoined(**following, member=member, attempt=1, prepare_by_ms=T0_MS),
        "MemberPrepared": MemberPrepared(**following, lease=lease, address="elsewhere", port=1),
        "MemberDropped": MemberDropped(**following, lease=lease, node=node, cause="node_lost"),
        "GrowthGivenUp": GrowthGivenUp(**this, ranks=(2,), attempts=(), leases=(lease,), cause="unwanted"),
        "GenerationEnded to grow": GenerationEnded(**this, cause="growth"),
        "GenerationEnded to shrink": GenerationEnded(**this, cause="shrink", leaves=("j1-2",)),
    }


GROWING = (starting, running, growing, forgone, offered, joining, ready_to_join)
ENDED = (stopping, recovering, ended_to_grow, ended_to_shrink)


@pytest.mark.parametrize("state", [*GROWING, *ENDED], ids=lambda state: state.__name__)
def test_a_change_of_size_takes_the_events_that_are_drawn_and_no_other(state: Callable[[], World]) -> None:
    taken = set()
    for name, event in one_of_each_to_grow().items():
        try:
            state().write(event)
        except AssertionError:
            continue
        taken.add(name)
    assert taken == TO_GROW[state.__name__]


@pytest.mark.parametrize("state", [*STATES, *GROWING, *ENDED], ids=lambda state: state.__name__)
@pytest.mark.parametrize("nodes", [1, 2, 3, 9])
def test_a_wish_may_come_in_any_state(state: Callable[[], World], nodes: int) -> None:
    world = state()
    world.write(world.scale_accepted(nodes))
    world.follow()
    world.tick(1)
