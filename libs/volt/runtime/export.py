"""Export of spans and measurements over OTLP; configured by the standard `OTEL_*` variables."""

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def set_up(service: str) -> None:
    """Exports this process's spans in batches, as the service `volt-<service>`."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"volt-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def set_up_meters(service: str) -> None:
    """Exports what this process measures, now and then, as the service `volt-<service>`."""
    resource = Resource.create({"service.name": f"volt-{service}"})
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource))
