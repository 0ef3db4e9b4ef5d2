"""How far each node can be relied on, kept as the log goes on; the formula is `volt.contracts.reliability`.

A node is told of with its events. Time moves it too: at intervals it is looked at, and told when it has moved enough.
"""

from dataclasses import dataclass, field

from volt.contracts.nodes import GpuFaulted, GpuQuarantined, NodeAlive, NodeEvent, NodeQuarantined, NodeRated
from volt.contracts.reliability import Record, change_of, changed, node_permille
from volt.contracts.units import MS_PER_HOUR
from volt_health_monitor.nodes import NodeKey

LOOK_MS = MS_PER_HOUR
STEP_PERMILLE = 10
"""How much it has to move to be told by itself."""


@dataclass
class Records:
    """The history of each node and provider, and what was told of it last."""

    nodes: dict[NodeKey, Record] = field(default_factory=dict)
    providers: dict[str, Record] = field(default_factory=dict)
    told: dict[NodeKey, int] = field(default_factory=dict)
    looked_ms: dict[NodeKey, int] = field(default_factory=dict)
    """When each was told of, or looked at, last."""

    def learn(self, key: NodeKey, event: NodeEvent) -> None:
        """The history with one more event."""
        before, provider = self.nodes.get(key, Record()), self.providers.get(key.account, Record())
        change = change_of(before, event)
        self.nodes[key] = changed(before, change, event.at_ms)
        self.providers[key.account] = changed(provider, change, event.at_ms)
        match event:
            case NodeAlive() | NodeRated() | GpuFaulted() | GpuQuarantined() | NodeQuarantined():
                self.told[key], self.looked_ms[key] = event.reliability_permille, event.at_ms
            case _:
                pass

    def permille(self, key: NodeKey, at_ms: int) -> int:
        """As the history is now."""
        provider = self.providers.get(key.account, Record())
        return node_permille(self.nodes.get(key, Record()), provider, at_ms)

    def permille_after(self, key: NodeKey, event: NodeEvent) -> int:
        """As it will be with this event."""
        before = self.nodes.get(key, Record())
        change = change_of(before, event)
        provider = changed(self.providers.get(key.account, Record()), change, event.at_ms)
        return node_permille(changed(before, change, event.at_ms), provider, event.at_ms)

    def has_moved(self, key: NodeKey, at_ms: int) -> bool:
        """Whether it should be told anew. It is reckoned anew only at intervals."""
        if key not in self.told or at_ms - self.looked_ms[key] < LOOK_MS:
            return False
        if abs(self.permille(key, at_ms) - self.told[key]) >= STEP_PERMILLE:
            return True
        self.looked_ms[key] = at_ms
        return False
