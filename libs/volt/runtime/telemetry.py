"""Traces that cross the bus, by subject template, and JSON logs that carry their ids.

Spans are exported over OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` is set, and cost next to nothing when it is not.
"""

import importlib
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind
from structlog.typing import EventDict, Processor, WrappedLogger

from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.subjects import template

TRACE_HEADER = "traceparent"
TRACES_REMEMBERED_MAX = 4_096

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
    with _span("process", SpanKind.CONSUMER, service, subject, propagate.extract(headers)) as span:
        yield span


@contextmanager
def producing(service: str, subject: str, parent: Context | None = None) -> Iterator[Span]:
    """A span over the publishing of one message, until it is acknowledged; a child of the current one if of none."""
    with _span("publish", SpanKind.PRODUCER, service, subject, parent) as span:
        yield span


class Traces:
    """The trace that each job and node is in, so that what follows from its events later stays in that trace.

    What a service does follows from its state and not from one message; so the trace goes from event to event.
    """

    def __init__(self) -> None:
        self._headers: OrderedDict[str, Mapping[str, str]] = OrderedDict()

    def remember(self, event: Event, headers: Mapping[str, str]) -> None:
        """An event was read with these headers: its job's trace goes on from there."""
        if TRACE_HEADER not in headers:
            return
        for key in _trace_keys(event):
            self._headers[key] = headers
            self._headers.move_to_end(key)
        while len(self._headers) > TRACES_REMEMBERED_MAX:
            self._headers.popitem(last=False)

    @contextmanager
    def producing(self, service: str, event: Event) -> Iterator[Span]:
        """A span over the appending of an event, in the trace of its job or node, else in the current one."""
        known = next((self._headers[key] for key in _trace_keys(event) if key in self._headers), None)
        parent = propagate.extract(known) if known is not None else None
        with producing(service, event.subject(), parent) as span:
            span.set_attribute("volt.event", type(event).__name__)
            yield span


@contextmanager
def _span(verb: str, kind: SpanKind, service: str, subject: str, parent: Context | None) -> Iterator[Span]:
    place = template(subject)
    attributes = {
        "messaging.system": "nats",
        "messaging.operation.name": verb,
        "messaging.destination.template": place,
        "volt.service": service,
    }
    with _tracer.start_as_current_span(f"{verb} {place}", context=parent, kind=kind, attributes=attributes) as span:
        yield span


def _trace_keys(event: Event) -> tuple[str, ...]:
    if isinstance(event, MarketCleared):
        return tuple(gang.job for gang in event.gangs)
    key: str = getattr(event, "job", "") or getattr(event, "node", "")
    return (key,) if key else ()


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
