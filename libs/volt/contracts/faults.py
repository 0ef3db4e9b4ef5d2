"""What becomes of a GPU's fault, by its kind: one table of NVIDIA's XIDs, and one of what a reading may show.

    ignore             nothing: the workload's own doing, or what another error brings with it
    restart_workload   it is recorded; what the driver ended of the workload is no failure of the workload
    quarantine_gpu     the leases that hold the GPU end as lost, and it is not sold until it comes back clean
    quarantine_node    so too, and no GPU of its node is sold meanwhile

Names are those of `nverror.h` in NVIDIA's open-gpu-kernel-modules, and classes follow the immediate action of NVIDIA's
"Xid Catalog" (the page "Analyzing Xid Errors with the Xid Catalog"), which gpud's table `xid.go` follows too; where a
line differs its source says why. A code that is not listed is ignored: nobody has said that a GPU is broken by it.
"""

from typing import Literal, NamedTuple

from volt.contracts.messages import Value
from volt.contracts.telemetry import GpuReading
from volt.contracts.units import MS_PER_HOUR

FaultClass = Literal["ignore", "restart_workload", "quarantine_gpu", "quarantine_node"]
FaultKind = Literal["xid", "vanished", "ecc_uncorrected", "remap_failed"]
Blame = Literal["buyer", "provider"]
"""Whose fault it is: a buyer's counts against nobody."""

ALONE_MS = 10_000
"""An XID that follows from something else has that no further from it than this, before or behind it."""
ECC_UNCORRECTED_MIN = 4
"""A GPU with as many uncorrected errors since its last reset is taken off the market, though each was contained."""


class Fault(Value, frozen=True, kw_only=True):
    """Something that is wrong with a GPU. `number` is that of the XID in its incarnation."""

    kind: FaultKind
    xid: int | None = None
    name: str = ""
    number: int = 0

    def words(self) -> str:
        """In a few words, for people."""
        return f"XID {self.xid} {self.name}" if self.xid is not None else self.name


class Repeats(NamedTuple):
    """So many of a kind on one GPU within the window take it off the market."""

    times: int
    window_ms: int


class Line(NamedTuple):
    """One line of the table. One that is an `aftermath` counts only alone: no other XID and no end of a lease near."""

    code: int
    name: str
    fault_class: FaultClass
    source: str
    blame: Blame = "provider"
    repeats: Repeats | None = None
    is_aftermath: bool = False


DAY_MS = 24 * MS_PER_HOUR
THRICE_A_DAY = Repeats(3, DAY_MS)
THRICE_AN_HOUR = Repeats(3, MS_PER_HOUR)

_APP = "Xid Catalog: RESTART_APP, and then the application is looked at"
_RESET = "Xid Catalog: RESET_GPU"
_LINK = "Xid Catalog: WORKFLOW_NVLINK_ERR; a link that fails once may train again, so repeats count"

_LINES = (
    Line(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "restart_workload", "Xid Catalog: RESTART_APP"),
    Line(13, "ROBUST_CHANNEL_GR_EXCEPTION", "ignore", _APP, "buyer"),
    Line(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "ignore", _APP, "buyer"),
    Line(32, "ROBUST_CHANNEL_PBDMA_ERROR", "ignore", _APP, "buyer"),
    Line(
        43,
        "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR",
        "restart_workload",
        "Xid Catalog: IGNORE; alone and again it is not (NVSentinel PR#1629)",
        repeats=THRICE_AN_HOUR,
        is_aftermath=True,
    ),
    Line(
        45,
        "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL",
        "restart_workload",
        "Xid Catalog: WORKFLOW_XID_45; at the end of a workload it is normal (NVSentinel PR#1629)",
        repeats=THRICE_AN_HOUR,
        is_aftermath=True,
    ),
    Line(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "quarantine_gpu", "Xid Catalog: WORKFLOW_XID_48, which resets the GPU"),
    Line(61, "PMU_BREAKPOINT", "quarantine_gpu", "gpud xid.go: reboot; the Xid Catalog has it for older GPUs"),
    Line(62, "PMU_HALT_ERROR", "quarantine_gpu", _RESET),
    Line(63, "INFOROM_DRAM_RETIREMENT_EVENT", "ignore", "Xid Catalog: IGNORE; the page is no longer used"),
    Line(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "quarantine_gpu", _RESET),
    Line(68, "ROBUST_CHANNEL_NVDEC0_ERROR", "ignore", _APP, "buyer"),
    Line(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "ignore", _APP, "buyer"),
    Line(74, "NVLINK_ERROR", "restart_workload", _LINK, repeats=THRICE_A_DAY),
    Line(
        79,
        "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "quarantine_node",
        "Xid Catalog: RESTART_BM, of the whole machine",
    ),
    Line(92, "EXCESSIVE_SBE_INTERRUPTS", "ignore", "Xid Catalog: IGNORE; they were corrected"),
    Line(
        94,
        "ROBUST_CHANNEL_CONTAINED_ERROR",
        "restart_workload",
        "Xid Catalog: RESTART_APP; repeats mean memory that fails",
        repeats=THRICE_A_DAY,
    ),
    Line(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "quarantine_gpu", _RESET),
    Line(
        109,
        "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR",
        "restart_workload",
        _RESET + ", once it persists",
        "provider",
        THRICE_A_DAY,
    ),
    Line(119, "GSP_RPC_TIMEOUT", "quarantine_gpu", _RESET),
    Line(120, "GSP_ERROR", "quarantine_gpu", _RESET),
    Line(122, "SPI_PMU_RPC_READ_FAIL", "ignore", "gpud xid.go: no action by itself"),
    Line(123, "SPI_PMU_RPC_WRITE_FAIL", "quarantine_gpu", _RESET),
    Line(136, "ALI_TRAINING_FAIL", "quarantine_gpu", _RESET),
    Line(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "quarantine_gpu", _RESET),
    Line(143, "GPU_INIT_ERROR", "quarantine_gpu", _RESET),
)
BY_CODE = {line.code: line for line in _LINES}


class Condition(NamedTuple):
    """What a reading may show to be wrong."""

    kind: FaultKind
    name: str
    fault_class: FaultClass
    source: str


CONDITIONS: dict[FaultKind, Condition] = {
    "vanished": Condition(
        "vanished",
        "the driver no longer lists it",
        "quarantine_node",
        "akash support#249; as XID 79, which may be missed",
    ),
    "remap_failed": Condition(
        "remap_failed",
        "no spare row is left for its memory",
        "quarantine_gpu",
        'NVIDIA "GPU Memory Error Management": a row remapping failure is a reason to replace the GPU',
    ),
    "ecc_uncorrected": Condition(
        "ecc_uncorrected",
        f"at least {ECC_UNCORRECTED_MIN} uncorrected memory errors since its last reset",
        "quarantine_gpu",
        "DCGM's DCGM_FR_VOLATILE_DBE_DETECTED, from the first; a contained one is XID 94 here, and only repeats count",
    ),
}


def line_of(code: int) -> Line | None:
    """The line of an XID that is not ignored."""
    line = BY_CODE.get(code)
    return None if line is None or line.fault_class == "ignore" else line


def is_aftermath(code: int) -> bool:
    """Whether the XID follows from something else, as a rule."""
    line = BY_CODE.get(code)
    return line is not None and line.is_aftermath


def is_hardware(code: int) -> bool:
    """Whether a workload that fails beside this XID has not failed by itself."""
    return line_of(code) is not None and not is_aftermath(code)


def condition_of(reading: GpuReading) -> Condition | None:
    """The worst that a reading shows."""
    if reading.vanished:
        return CONDITIONS["vanished"]
    if reading.remap_failed:
        return CONDITIONS["remap_failed"]
    if (reading.ecc_uncorrected or 0) >= ECC_UNCORRECTED_MIN:
        return CONDITIONS["ecc_uncorrected"]
    return None
