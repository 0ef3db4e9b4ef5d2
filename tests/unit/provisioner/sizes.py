"""Clusters on their way to another size, and what their nodes do next."""

from tests.unit.provisioner.world import World, killed
from volt.contracts.clusters import ClusterForming, GenerationEnded


def growing(nodes: int = 4) -> World:
    """Two nodes run, and the market was asked for the others."""
    world = World().granted_and_running()
    world.scale(nodes)
    return world


def joining() -> World:
    """Two nodes run, n2 and n3 are to join and prepare."""
    world = growing()
    world.replace("n2", 3, 2)
    world.replace("n3", 4, 3)
    return world


def half_prepared() -> World:
    """n2 is prepared for the next generation, n3 is not yet."""
    world = joining()
    world.report(world.prepared(2, generation=2))
    return world


def grown() -> World:
    """Four nodes run, in generation 2."""
    world = half_prepared()
    world.report(world.prepared(3, generation=2))
    end_and_prepare(world, 0, 1)
    start(world, 0, 1, 2, 3)
    assert world.names()[-1] == "ClusterReady"
    return world


def end_and_prepare(world: World, *ranks: int) -> None:
    """Members end the generation before, as they are told, and prepare in the new one."""
    end(world, *ranks)
    for rank in ranks:
        world.report(world.prepared(rank))


def end(world: World, *ranks: int) -> None:
    """Members end the generation that has ended, as they are told."""
    ended = world.last(GenerationEnded).generation
    for rank in ranks:
        world.report(world.ended(rank, killed(15), generation=ended))


def start(world: World, *ranks: int) -> None:
    for rank in ranks:
        world.report(world.started(rank))


def ranks(forming: ClusterForming) -> list[tuple[int, str]]:
    return [(member.rank, member.node) for member in forming.members]


def clear_leavers(world: World) -> None:
    """Nodes that are told to stop do so and are clear."""
    for _, node in list(world.state.nodes):
        for lease in world.desired(node).leases:
            if lease.phase == "stop":
                number = int(lease.lease.rpartition("-")[2])
                world.report(world.node_cleared(node, number))
