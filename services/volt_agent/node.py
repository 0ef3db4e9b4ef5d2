"""What all that an agent does has in common: the node, and its ways to the bus, the processes and the store."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from volt.contracts.ids import GpuUuid
from volt.runtime.ports import Bus
from volt_agent.checkpoints.lease import SharedStore
from volt_agent.gauge import Gauge
from volt_agent.heart import Heart
from volt_agent.process import ProcessRuntime
from volt_agent.settings import Settings


@dataclass(frozen=True)
class Node:
    """What the keepers of a node share."""

    id: str
    settings: Settings
    gpus: frozenset[GpuUuid]
    """Those that it has."""
    bus: Bus
    runtime: ProcessRuntime
    heart: Heart
    changed: Callable[[], None]
    """To be called when a lease's local state has changed: it is beaten at once."""
    checkpoints: SharedStore
    gauge: Gauge | None = None
    """What the driver tells of its GPUs, where there is one."""

    def has_failed(self, gpus: Iterable[GpuUuid]) -> bool:
        """Whether the hardware of one of them has failed just now."""
        return self.gauge is not None and self.gauge.has_failed(gpus)
