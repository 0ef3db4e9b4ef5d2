"""What a node's driver tells of its GPUs, as it rides on heartbeats: bounded and rounded, so that beats stay small.

A reading tells how each GPU is, and what it does not know is left out. An XID is an event: it is told until a beat with
it is acknowledged, and its number, which counts within the incarnation, makes a repeated one known.
"""

from typing import Annotated

import msgspec

from volt.contracts.ids import GpuUuid
from volt.contracts.messages import Value

READINGS_PER_BEAT_MAX = 16
XIDS_PER_BEAT_MAX = 32
MEMORY_STEP_BYTES = 64 * 1024**2
"""Memory in use is told in steps of this size, rounded down."""
POWER_STEP_MILLIWATTS = 1_000
COUNT_MAX = 2**48
AGE_MS_MAX = 24 * 3_600_000

_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Celsius = Annotated[int, msgspec.Meta(ge=-100, le=1_000)]
_Links = Annotated[int, msgspec.Meta(ge=0, le=64)]


class Xid(Value, frozen=True, kw_only=True):
    """An error that the driver reported, `age_ms` before its beat was sent."""

    number: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    gpu: GpuUuid
    code: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    age_ms: Annotated[int, msgspec.Meta(ge=0, le=AGE_MS_MAX)]


class GpuReading(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. None is not known; ECC errors are those since the driver was loaded or the GPU was reset."""

    gpu: GpuUuid
    vanished: bool = False
    """The driver lists it no longer, or says that it is lost."""
    utilization_percent: _Percent | None = None
    memory_used_bytes: _Count | None = None
    temperature_celsius: _Celsius | None = None
    power_milliwatts: _Count | None = None
    ecc_corrected: _Count | None = None
    ecc_uncorrected: _Count | None = None
    remap_pending: bool = False
    """A row of memory is to be replaced by a spare one, at the next reset."""
    remap_failed: bool = False
    """There was no spare row left for one that has failed."""
    nvlinks_up: _Links = 0
    nvlinks_down: _Links = 0

    @property
    def is_clean(self) -> bool:
        """Whether the driver has nothing against it, as after a reset that has helped."""
        return not (self.vanished or self.ecc_uncorrected or self.remap_pending or self.remap_failed)
