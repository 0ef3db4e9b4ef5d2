"""Export of spans over OTLP; configured by the standard `OTEL_*` variables."""

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def set_up(service: str) -> None:
    """Exports this process's spans in batches, as the service `volt-<service>`."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"volt-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
