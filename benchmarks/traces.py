"""A collector of spans: OTLP over HTTP on loopback, kept in memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span; instants are nanoseconds since 1970."""

    trace: bytes
    service: str
    name: str
    event: str
    began_ns: int
    ended_ns: int


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """Yields the endpoint to export to, and the list that fills with what arrives."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            spans.extend(_read(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the standard library calls it so
            """Nothing: the figures are the output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _read(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {one.key: one.value.string_value for one in span.attributes}
                service, event = attributes.get("volt.service", ""), attributes.get("volt.event", "")
                yield Span(span.trace_id, service, span.name, event, span.start_time_unix_nano, span.end_time_unix_nano)
