"""The calls over a blocking connection."""

import functools
import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from volt.contracts.errors import Unavailable
from volt.sdk import calls, retries, streams
from volt.sdk.calls import Call, GatewayUnreachable, error_in, unreachable
from volt.sdk.context import is_loopback, read_context
from volt.sdk.retries import Attempts, OnBreak, StreamAttempts, nobody_is_told
from volt.sdk.streams import SILENCE_SECONDS_MAX, Reading, StreamCall, WaitCall

CALL_SECONDS_MAX = 15.0

P = ParamSpec("P")
T = TypeVar("T")


class _Transport:
    """Sends calls and reads streams, again where that may help."""

    def __init__(self, url: str, api_key: str, on_break: OnBreak) -> None:
        self._on_break = on_break
        headers = {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=CALL_SECONDS_MAX, trust_env=not is_loopback(url)
        )

    def send(self, call: Call[T]) -> T:
        attempts = Attempts(retries.CALL_ATTEMPTS_MAX)
        while True:
            try:
                return self._send_once(call)
            except Unavailable as error:
                time.sleep(attempts.pause_seconds(error))

    def stream(self, call: StreamCall[T]) -> Iterator[T]:
        reading, attempts = Reading(call), StreamAttempts(self._on_break)
        while not reading.ended:
            try:
                for item in self._read_once(reading, attempts):
                    attempts.succeeded()
                    yield item
            except Unavailable as error:
                time.sleep(attempts.pause_seconds(error))

    def wait(self, call: WaitCall[T]) -> T:
        for _ in self.stream(call.until):
            continue
        return self.send(call.then)

    def close(self) -> None:
        self._http.close()

    def _send_once(self, call: Call[T]) -> T:
        try:
            response = self._http.request(
                call.method, call.path, params=call.params, headers=call.headers, content=call.body
            )
        except httpx.TransportError as error:
            raise GatewayUnreachable(unreachable(str(self._http.base_url), error)) from error
        return call.read(response.status_code, response.content)

    def _read_once(self, reading: Reading[T], attempts: StreamAttempts) -> Iterator[T]:
        path, params = reading.call.path, reading.call.params
        try:
            with self._http.stream(
                "GET", path, params=params, headers=reading.begin(), timeout=SILENCE_SECONDS_MAX
            ) as response:
                if response.status_code != 200:
                    raise error_in(response.status_code, response.read())
                attempts.began()
                for data in response.iter_bytes():
                    yield from reading.feed(data)
        except httpx.TransportError as error:
            raise GatewayUnreachable(unreachable(str(self._http.base_url), error)) from error
        if not reading.ended:
            raise GatewayUnreachable(f"GET {path}: the stream broke off")


class _Group:
    """Calls that share a transport."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport


def _sent(build: Callable[P, Call[T]]) -> Callable[Concatenate[_Group, P], T]:
    @functools.wraps(build)
    def send(self: _Group, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.send(build(*args, **kwargs))

    return send


def _streamed(build: Callable[P, StreamCall[T]]) -> Callable[Concatenate[_Group, P], Iterator[T]]:
    @functools.wraps(build)
    def stream(self: _Group, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._transport.stream(build(*args, **kwargs))

    return stream


def _waited(build: Callable[P, WaitCall[T]]) -> Callable[Concatenate[_Group, P], T]:
    @functools.wraps(build)
    def wait(self: _Group, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.wait(build(*args, **kwargs))

    return wait


class Jobs(_Group):
    """The account's jobs."""

    create = _sent(calls.create_job)
    quote = _sent(calls.ask_quote)
    scale = _sent(calls.scale_job)
    get = _sent(calls.get_job)
    list = _sent(calls.list_jobs)
    release = _sent(calls.release_job)
    bill = _sent(calls.job_bill)
    checkpoints = _sent(calls.job_checkpoints)
    logs = _streamed(streams.job_logs)
    events = _streamed(streams.job_events)
    wait = _waited(streams.wait_for_job)


class Bids(_Group):
    """What the account's own nodes offer."""

    list = _sent(calls.list_bids)
    change = _sent(calls.change_bid)
    withdraw = _sent(calls.withdraw_bid)


class Nodes(_Group):
    """The account's own nodes."""

    list = _sent(calls.list_nodes)
    drain = _sent(calls.drain_node)
    resume = _sent(calls.resume_node)


class Client(_Group):
    """A market, for one account; blocking.

        >>> client = Client("http://127.0.0.1:8420", api_key)
        >>> job = client.jobs.create(
        ...     gpu="h100", count=16, nodes=2, command=["python", "train.py"], max_price_usd_per_gpu_hour="2.50"
        ... )
        >>> job.state
        'admitted'
        >>> for happening in client.jobs.events(job.id):
        ...     print(happening.message)
        admitted: 16 x h100 on 2 nodes
        funded: $40.0000 on hold; the cap is $2.5000 per GPU-hour
        granted 16 GPUs on node-a, node-b at $1.9000 per GPU-hour
        ...
        >>> client.jobs.release(job.id).state
        'released'
        >>> client.jobs.bill(job.id).due_usd
        '3.166666'
        >>> client.close()

    A context manager closes it, too. It may be shared by threads. `on_break` hears, once, of each break of a stream
    that lasts longer than about a second; the stream is taken up again for some minutes.
    """

    def __init__(self, url: str, api_key: str, *, on_break: OnBreak = nobody_is_told) -> None:
        super().__init__(_Transport(url, api_key, on_break))
        self.jobs = Jobs(self._transport)
        self.bids = Bids(self._transport)
        self.nodes = Nodes(self._transport)

    @classmethod
    def from_context(cls, context_path: str | os.PathLike[str] | None = None) -> Self:
        """A client of the control plane that wrote this file. Raises NotFound, MalformedMessage."""
        context = read_context(context_path)
        return cls(context.gateway_url, context.api_key)

    offers = _sent(calls.list_offers)
    market = _sent(calls.get_market)
    reliability = _sent(calls.provider_reliability)
    balance = _sent(calls.get_balance)
    statement = _sent(calls.get_statement)
    health = _sent(calls.get_health)

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
