"""The node's GPUs as OpenTelemetry gauges, by node and index: as many series as it has GPUs, whatever runs on them.

They are asked for only where an exporter is set up; elsewhere nobody reads them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from volt.contracts.telemetry import GpuReading
from volt_agent.gauge import Gauge


class _Meter(NamedTuple):
    name: str
    unit: str
    value: Callable[[GpuReading], float | None]


_METERS = (
    _Meter("volt.gpu.utilization", "%", lambda one: one.utilization_percent),
    _Meter("volt.gpu.memory.used", "By", lambda one: one.memory_used_bytes),
    _Meter("volt.gpu.temperature", "Cel", lambda one: one.temperature_celsius),
    _Meter("volt.gpu.power", "mW", lambda one: one.power_milliwatts),
    _Meter("volt.gpu.ecc.corrected", "{error}", lambda one: one.ecc_corrected),
    _Meter("volt.gpu.ecc.uncorrected", "{error}", lambda one: one.ecc_uncorrected),
    _Meter("volt.gpu.nvlinks.down", "{link}", lambda one: one.nvlinks_down),
    _Meter("volt.gpu.vanished", "{gpu}", lambda one: int(one.vanished)),
)


def measure(gauge: Gauge, node: str, provider: metrics.MeterProvider | None = None) -> None:
    """Shows what the gauge reads, from now on; to the process's exporter, unless another provider is given."""
    meter = metrics.get_meter("volt.agent", meter_provider=provider)
    for one in _METERS:
        meter.create_observable_gauge(one.name, [_observe(gauge, node, one)], unit=one.unit)


def _observe(gauge: Gauge, node: str, meter: _Meter) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for index, gpu in enumerate(gauge.gpus):
            reading = gauge.readings.get(gpu)
            value = meter.value(reading) if reading is not None else None
            if value is not None:
                yield Observation(value, {"node": node, "gpu": index})

    return observe
