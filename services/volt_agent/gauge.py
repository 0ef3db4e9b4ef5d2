"""What the NVIDIA driver tells of the GPUs while the agent runs: read in a thread of its own, told on the agent's loop.

The driver may take its time, or hang, when a GPU falls off the bus: that holds up nothing but the next reading. A GPU
has vanished when the driver has not listed it, or has called it lost, twice running; when the driver itself cannot be
asked, nothing is known, and nothing is said. Nothing here can be asked where there is no driver.
"""

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pynvml
import structlog

from volt.contracts.faults import is_hardware
from volt.contracts.ids import GpuUuid
from volt.contracts.telemetry import MEMORY_STEP_BYTES, POWER_STEP_MILLIWATTS, READINGS_PER_BEAT_MAX, GpuReading
from volt.contracts.units import MS_PER_SECOND

READ_MS = 5_000
"""How far apart readings are; after an XID or a miss the next one comes as soon as may be."""
READ_MS_MIN = 500
TELL_MS = 15_000
"""How far apart readings are told in which only such numbers have moved as always do: the beats of ten thousand nodes
are kept for fifteen minutes."""
WAIT_MS = 250
"""How long the thread waits for an XID at a time, and so how late it may see that it is to end."""
MISSES_MIN = 2
BLAME_MS = 10_000
"""A workload that fails no later than this after a fault of its GPU has not failed by itself."""
XIDS_REMEMBERED_MAX = 256

_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND)
_log = structlog.get_logger("volt.gauge")

T = TypeVar("T")


class Gauge:
    """Reads these GPUs. `on_read` and `on_xid` are called on the loop that it was started on."""

    def __init__(self, gpus: Iterable[GpuUuid], now_ms: Callable[[], int]) -> None:
        self.on_read: Callable[[tuple[GpuReading, ...]], None] = _ignore
        self.on_xid: Callable[[GpuUuid, int, int], None] = _ignore
        """Gets the GPU, the code, and when it came."""
        self.readings: dict[GpuUuid, GpuReading] = {}
        """The last ones."""
        self.gpus, self._now_ms = tuple(gpus)[:READINGS_PER_BEAT_MAX], now_ms
        self._faults: deque[tuple[GpuUuid, int]] = deque(maxlen=XIDS_REMEMBERED_MAX)
        self._misses: dict[GpuUuid, int] = {}
        self._told: tuple[GpuReading, ...] = ()
        self._told_ms = 0
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begins to read, on a thread that ends with the process at the latest."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(loop,), name="gauge", daemon=True).start()

    def stop(self) -> None:
        """Reads no more."""
        self._stopping.set()

    def has_failed(self, gpus: Iterable[GpuUuid]) -> bool:
        """Whether one of them has vanished, or had a fault of the hardware just now."""
        since_ms = self._now_ms() - BLAME_MS
        failed = {gpu for gpu, at_ms in self._faults if at_ms >= since_ms} | self.vanished
        return not failed.isdisjoint(gpus)

    @property
    def vanished(self) -> set[GpuUuid]:
        return {gpu for gpu, reading in self.readings.items() if reading.vanished}

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            pynvml.nvmlInit()
            try:
                self._watch(loop)
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            _log.warning("gpus_not_read", error=str(error))
        except RuntimeError:
            return  # The loop is closed: the agent has gone.

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        events, due_ms = _Events(self.gpus), 0
        while not self._stopping.is_set():
            if self._now_ms() >= due_ms:
                readings = self._read()
                due_ms = self._now_ms() + (READ_MS if not self._is_in_doubt() else READ_MS_MIN)
                if readings:
                    loop.call_soon_threadsafe(self._tell, readings)
            xid = events.wait(self._stopping)
            if xid is not None:
                due_ms = min(due_ms, self._now_ms() + READ_MS_MIN)
                loop.call_soon_threadsafe(self._tell_xid, *xid, self._now_ms())

    def _tell(self, readings: tuple[GpuReading, ...]) -> None:
        self.readings = {one.gpu: one for one in readings}
        if _health(readings) != _health(self._told) or self._now_ms() - self._told_ms >= TELL_MS:
            self._told, self._told_ms = readings, self._now_ms()
            self.on_read(readings)

    def _tell_xid(self, gpu: GpuUuid, code: int, at_ms: int) -> None:
        _log.warning("xid", gpu=gpu, code=code)
        if is_hardware(code):
            self._faults.append((gpu, at_ms))
        self.on_xid(gpu, code, at_ms)

    def _read(self) -> tuple[GpuReading, ...]:
        """What can be told of each GPU; one that was missed for the first time is left out."""
        try:
            handles = dict(_listed())
        except pynvml.NVMLError as error:
            _log.warning("gpus_not_read", error=str(error))
            return ()
        found = {gpu: _reading(gpu, handles[gpu]) if gpu in handles else None for gpu in self.gpus}
        self._misses = {gpu: 0 if reading else self._misses.get(gpu, 0) + 1 for gpu, reading in found.items()}
        gone = {gpu: GpuReading(gpu=gpu, vanished=True) for gpu, misses in self._misses.items() if misses >= MISSES_MIN}
        return tuple(reading for gpu in self.gpus if (reading := found[gpu] or gone.get(gpu)) is not None)

    def _is_in_doubt(self) -> bool:
        return any(0 < misses < MISSES_MIN for misses in self._misses.values())


class _Events:
    """The XIDs that the driver reports from now on. Where it cannot report any, there are none."""

    def __init__(self, gpus: tuple[GpuUuid, ...]) -> None:
        self._names: dict[int | None, GpuUuid] = {}
        self._set = _asked(pynvml.nvmlEventSetCreate)
        for gpu, handle in _listed():
            if gpu in gpus and self._set is not None:
                self._names[_address(handle)] = gpu
                _asked(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._set)

    def wait(self, stopping: threading.Event) -> tuple[GpuUuid, int] | None:
        """The next one, if it comes soon."""
        try:
            if self._set is not None:
                event = pynvml.nvmlEventSetWait_v2(self._set, WAIT_MS)
                gpu = self._names.get(_address(event.device))
                return None if gpu is None else (gpu, int(event.eventData))
        except pynvml.NVMLError_Timeout:
            return None
        except pynvml.NVMLError as error:
            _log.warning("xids_not_read", error=str(error))
        stopping.wait(WAIT_MS / MS_PER_SECOND)
        return None


def _listed() -> Iterator[tuple[GpuUuid, object]]:
    """The GPUs that the driver lists and does not call lost. Raises NVMLError if it cannot be asked."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            yield str(pynvml.nvmlDeviceGetUUID(handle)), handle
        except pynvml.NVMLError as error:
            if error.value not in _LOST:
                raise


def _reading(gpu: GpuUuid, handle: object) -> GpuReading | None:
    """What the driver tells, rounded; None if it calls the GPU lost."""
    try:
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            return None
        memory_bytes = -1
    rates = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _asked(pynvml.nvmlDeviceGetPowerUsage, handle)
    remapped = _asked(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    links = list(_links(handle))
    return GpuReading(
        gpu=gpu,
        utilization_percent=None if rates is None else min(100, rates.gpu),
        memory_used_bytes=memory_bytes // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES if memory_bytes >= 0 else None,
        temperature_celsius=_asked(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_milliwatts=None if power is None else power // POWER_STEP_MILLIWATTS * POWER_STEP_MILLIWATTS,
        ecc_corrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remap_pending=bool(remapped[2]),
        remap_failed=bool(remapped[3]),
        nvlinks_up=sum(links),
        nvlinks_down=len(links) - sum(links),
    )


def _health(readings: tuple[GpuReading, ...]) -> list[tuple[object, ...]]:
    """What of the readings says whether the GPUs are well."""
    return [
        (one.gpu, one.vanished, one.ecc_uncorrected, one.remap_pending, one.remap_failed, one.nvlinks_down)
        for one in readings
    ]


def _ecc_errors(handle: object, kind: int) -> int | None:
    """None for a card without ECC, or with it off."""
    return _asked(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)


def _links(handle: object) -> Iterator[bool]:
    """Whether each NVLink is up. The first that a card does not have ends them."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _asked(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            return
        yield bool(state)


def _asked(ask: Callable[..., T], *arguments: object) -> T | None:
    """What the driver answers; None if it does not."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _address(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]


def _ignore(*_: object) -> None:
    pass
