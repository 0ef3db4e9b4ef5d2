"""A real HTTP server that answers by a script, one step for each request, and both clients behind one call."""

import asyncio
import operator
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import msgspec

from volt.contracts.http import EVENT_STREAM, ErrorBody
from volt.sdk import AsyncClient, Client
from volt.sdk.retries import OnBreak, nobody_is_told

Kind = Literal["blocking", "awaited"]


@dataclass(frozen=True)
class Step:
    """One answer. `drop` closes the connection instead; `short` does so before the body is whole."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    drop: bool = False
    short: bool = False


@dataclass
class Seen:
    """One request as it arrived. Names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Scripted:
    """The server's address, and what it was asked."""

    url: str
    seen: list[Seen] = field(default_factory=list)


def answer(value: msgspec.Struct, status: int = 200) -> Step:
    return Step(status, msgspec.json.encode(value))


def failure(status: int, code: str, message: str = "no") -> Step:
    return answer(ErrorBody(code=code, message=message), status)


def events(*frames: bytes, short: bool = False) -> Step:
    return Step(200, b"".join(frames), EVENT_STREAM, short=short)


DROP = Step(drop=True)


@contextmanager
def scripted(*steps: Step) -> Iterator[Scripted]:
    """Serves the steps in order; a request too many is answered 500."""
    left = list(steps)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.seen.append(Seen(self.command, self.path, headers, body))
            step = left.pop(0) if left else failure(500, "script_ended")
            if step.drop:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(step.status)
            self.send_header("Content-Type", step.content_type)
            self.send_header("Content-Length", str(len(step.body) + (1 if step.short else 0)))
            self.end_headers()
            self.wfile.write(step.body)
            self.close_connection = step.short

        do_GET = do_POST = do_DELETE = answer  # noqa: N815  # the names are the library's

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # so is this
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    script = Scripted(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def call(kind: Kind, url: str, name: str, *args: object, **kwargs: object) -> object:
    """One call, such as `jobs.get`, over a client of either kind."""
    if kind == "blocking":
        with Client(url, "the key") as client:
            return await asyncio.to_thread(operator.attrgetter(name)(client), *args, **kwargs)
    async with AsyncClient(url, "the key") as awaited:
        result: object = await operator.attrgetter(name)(awaited)(*args, **kwargs)
        return result


async def read(
    kind: Kind, url: str, name: str, *args: object, on_break: OnBreak = nobody_is_told, **kwargs: object
) -> Sequence[object]:
    """A whole stream, such as `jobs.logs`, over a client of either kind."""
    if kind == "blocking":
        with Client(url, "the key", on_break=on_break) as client:
            return await asyncio.to_thread(lambda: list(operator.attrgetter(name)(client)(*args, **kwargs)))
    async with AsyncClient(url, "the key", on_break=on_break) as awaited:
        return [item async for item in operator.attrgetter(name)(awaited)(*args, **kwargs)]
