"""Only the transitions that are drawn are possible; anything else raises, and marks that one cluster stuck."""

from collections.abc import Callable

import pytest

from tests.unit.provisioner.world import BUYER, JOB, T0_MS, World, admitted, code
from volt.contracts.clusters import (
    ClusterEvent,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    LeaseCleared,
    Manifest,
    MemberEnded,
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

POSSIBLE = {
    "absent": set[str](),
    "granted": {"ClusterForming", "ClusterReleased"},
    "forming": {"MemberPrepared", "MemberLost", "ClusterReleased"},
    "vacant": {"MembersWanted", "LeaseCleared", "ClusterReleased"},
    "sought": {"LeaseCleared", "ClusterReleased"},
    "prepared": {"MemberPrepared", "MemberLost", "ClusterStarting", "ClusterReleased"},
    "starting": {"MemberStarted", "ClusterReady", "MemberEnded", "MemberLost", "GenerationEnded", "ClusterReleased"},
    "running": {"MemberEnded", "MemberLost", "GenerationEnded", "ClusterReleased"},
    "stopping": {"MemberEnded", "MemberLost", "ClusterReleased"},
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
