"""What an exporter is shown of the GPUs: one series for each, whatever their UUIDs."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from volt.contracts.telemetry import GpuReading
from volt_agent.gauge import Gauge
from volt_agent.meters import measure


def shown(reader: InMemoryMetricReader) -> dict[str, dict[int, float]]:
    """By name and index."""
    data = reader.get_metrics_data()
    found: dict[str, dict[int, float]] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert point.attributes is not None
                    assert set(point.attributes) == {"node", "gpu"}
                    index, value = point.attributes["gpu"], getattr(point, "value")  # noqa: B009 -- gauges have one
                    assert isinstance(index, int)
                    found.setdefault(metric.name, {})[index] = value
    return found


def test_each_gpu_is_a_series_and_what_is_not_known_is_none() -> None:
    reader, gauge = InMemoryMetricReader(), Gauge(["GPU-b", "GPU-a"], lambda: 0)
    measure(gauge, "n1", MeterProvider([reader]))
    assert shown(reader) == {}
    gauge.readings = {
        "GPU-a": GpuReading(gpu="GPU-a", vanished=True),
        "GPU-b": GpuReading(gpu="GPU-b", utilization_percent=97, power_milliwatts=412_000),
    }
    found = shown(reader)
    assert found["volt.gpu.utilization"] == {0: 97}
    assert found["volt.gpu.power"] == {0: 412_000}
    assert found["volt.gpu.vanished"] == {0: 0, 1: 1}
    assert "volt.gpu.temperature" not in found
