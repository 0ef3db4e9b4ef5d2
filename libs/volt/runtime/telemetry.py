"""Traces that cross the bus, by subject template, and JSON logs that carry their ids.

Spans are exported over OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` is set, and cost next to nothing when it is not.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind
from structlog.typing import EventDict, Processor, WrappedLogger

from volt.contracts.subjects import template

_tracer = trace.get_tracer("volt")


def set_up(service: str) -> None:
    """Makes this process log on stderr, and export its spans if an endpoint is set."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace_ids,
            *_renderers(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level()),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        # Imported only here: the exporter costs each process 0.2 s, and most have nobody to export to.
        export = importlib.import_module("volt.runtime.export")
        export.set_up(service)


def flush() -> None:
    """Hands over what has not been exported yet."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        shutdown()


def trace_headers() -> dict[str, str]:
    """The headers that let a reader of a message continue the current trace."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


@contextmanager
def consuming(service: str, subject: str, headers: Mapping[str, str]) -> Iterator[Span]:
    """A span over the handling of one message, a child of the span that sent it."""
    name = f"process {template(subject)}"
    attributes = {
        "messaging.system": "nats",
        "messaging.destination.template": template(subject),
        "volt.service": service,
    }
    parent = propagate.extract(headers)
    with _tracer.start_as_current_span(name, context=parent, kind=SpanKind.CONSUMER, attributes=attributes) as span:
        yield span


@contextmanager
def producing(service: str, subject: str) -> Iterator[Span]:
    """A span over the publishing of one message, until it is acknowledged."""
    name = f"publish {template(subject)}"
    attributes = {
        "messaging.system": "nats",
        "messaging.destination.template": template(subject),
        "volt.service": service,
    }
    with _tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
        yield span


def _renderers() -> tuple[Processor, ...]:
    """JSON for whoever collects the logs; plain text for a person at a terminal."""
    if sys.stderr.isatty():
        return (structlog.dev.ConsoleRenderer(),)
    return (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())


def _level() -> int:
    return logging.getLevelNamesMapping().get(os.environ.get("VOLT_LOG_LEVEL", "INFO").upper(), logging.INFO)


def _add_trace_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event
