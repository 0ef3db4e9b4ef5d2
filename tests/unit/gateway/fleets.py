"""Events of the whole fleet: its pace, and losses that are held and released."""

from tests.unit.gateway.story import T0_MS
from volt.contracts import fleet
from volt.contracts.messages import Event


def fleet_events() -> list[Event]:
    return [
        fleet.PaceSet(level=1, nodes=3_000, at_ms=T0_MS),
        fleet.LossesHeld(silent=400, watched=1_000, silent_max=300, at_ms=T0_MS),
        fleet.LossesReleased(silent=3, watched=1_000, steady_ms=60_000, at_ms=T0_MS),
    ]
