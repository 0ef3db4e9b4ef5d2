"""The GPUs of this machine, as the NVIDIA driver tells."""

from collections.abc import Iterator

import pynvml
import structlog

from volt.contracts.bids import Gpu
from volt.contracts.errors import Reason, Refused

BYTES_PER_MIB = 1024 * 1024

_log = structlog.get_logger("volt.agent")


def find_gpus() -> tuple[Gpu, ...]:
    """Every healthy GPU that the driver shows, with UUID, name and memory in MiB.

    One of which the driver cannot tell, since it has fallen off the bus or must be reset, is left out: the others are
    offered. Raises Refused with code `no_driver` or `no_gpus`, which say what to do instead.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        message = f"no NVIDIA driver here ({error}); declare the GPUs with --gpus, like --gpus 8xh100-80gb"
        raise Refused(Reason(code="no_driver", message=message, field="gpus")) from error
    try:
        found = tuple(_healthy(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()
    if not found:
        raise Refused(Reason(code="no_gpus", message="the NVIDIA driver shows no healthy GPU here", field="gpus"))
    return found


def _healthy(count: int) -> Iterator[Gpu]:
    for index in range(count):
        try:
            yield _gpu(index)
        except pynvml.NVMLError as error:
            _log.warning("gpu_left_out", index=index, error=str(error))


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = str(pynvml.nvmlDeviceGetName(handle))
    memory_mib = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // BYTES_PER_MIB
    return Gpu(uuid=str(pynvml.nvmlDeviceGetUUID(handle)), model=name, memory_mib=memory_mib, raw_model=name)
