"""Whole markets in which many nodes are cut off at once: nobody is lost for it, and whoever comes back goes on."""

from dataclasses import replace

import pytest
import structlog

from volt.contracts.fleet import LossesHeld, LossesReleased
from volt.contracts.nodes import NodeLost
from volt_simulator.loop import SimulatedLoop
from volt_simulator.plan import Fault, draw
from volt_simulator.world import TIMING, World

CUT_AT_MS = 300_000
CUT_MS = 2 * TIMING.lost_after_ms


@pytest.mark.parametrize(("cut", "is_held"), [(2, False), (9, True)])
def test_a_cut_of_many_nodes_loses_nobody_and_a_cut_of_few_does(cut: int, *, is_held: bool) -> None:
    """akash support#245: a blip of the control plane closed every lease."""
    plan = draw(5, 12, 12, 0.5)
    faults = tuple(Fault(CUT_AT_MS, "node_cut", node.node, CUT_MS) for node in plan.nodes[:cut])
    loop = SimulatedLoop()
    with structlog.testing.capture_logs():
        try:
            world = World(replace(plan, faults=faults, ack_loss_permyriad=0, death_permyriad=0), loop)
            result = loop.run_until_complete(world.run())
        finally:
            loop.close()

    events = [entry.event for entry in world.bus.entries]
    assert result.broken == ""
    fleet = [type(event).__name__ for event in events if isinstance(event, LossesHeld | LossesReleased)]
    assert fleet == (["LossesHeld", "LossesReleased"] if is_held else [])
    lost = {event.node for event in events if isinstance(event, NodeLost)}
    assert lost == (set() if is_held else {node.node for node in plan.nodes[:cut]})
