"""The calls over an asynchronous connection."""

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from volt.contracts.errors import Unavailable
from volt.sdk import calls, retries, streams
from volt.sdk.blocking import CALL_SECONDS_MAX
from volt.sdk.calls import Call, GatewayUnreachable, error_in, unreachable
from volt.sdk.context import is_loopback, read_context
from volt.sdk.retries import Attempts, OnBreak, StreamAttempts, nobody_is_told
from volt.sdk.streams import SILENCE_SECONDS_MAX, Reading, StreamCall, WaitCall

P = ParamSpec("P")
T = TypeVar("T")


class _Transport:
    """Sends calls and reads streams, again where that may help."""

    def __init__(self, url: str, api_key: str, on_break: OnBreak) -> None:
        self._on_break = on_break
        headers = {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=CALL_SECONDS_MAX, trust_env=not is_loopback(url)
        )

    async def send(self, call: Call[T]) -> T:
        attempts = Attempts(retries.CALL_ATTEMPTS_MAX)
        while True:
            try:
                return await self._send_once(call)
            except Unavailable as error:
                await asyncio.sleep(attempts.pause_seconds(error))

    async def stream(self, call: StreamCall[T]) -> AsyncGenerator[T, None]:
        reading, attempts = Reading(call), StreamAttempts(self._on_break)
        while not reading.ended:
            try:
                async for item in self._read_once(reading, attempts):
                    attempts.succeeded()
                    yield item
            except Unavailable as error:
                await asyncio.sleep(attempts.pause_seconds(error))

    async def wait(self, call: WaitCall[T]) -> T:
        async for _ in self.stream(call.until):
            continue
        return await self.send(call.then)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send_once(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(
                call.method, call.path, params=call.params, headers=call.headers, content=call.body
            )
        except httpx.TransportError as error:
            raise GatewayUnreachable(unreachable(str(self._http.base_url), error)) from error
        return call.read(response.status_code, response.content)

    async def _read_once(self, reading: Reading[T], attempts: StreamAttempts) -> AsyncGenerator[T, None]:
        path, params = reading.call.path, reading.call.params
        try:
            async with self._http.stream(
                "GET", path, params=params, headers=reading.begin(), timeout=SILENCE_SECONDS_MAX
            ) as response:
                if response.status_code != 200:
                    raise error_in(response.status_code, await response.aread())
                attempts.began()
                async for data in response.aiter_bytes():
                    for item in reading.feed(data):
                        yield item
        except httpx.TransportError as error:
            raise GatewayUnreachable(unreachable(str(self._http.base_url), error)) from error
        if not reading.ended:
            raise GatewayUnreachable(f"GET {path}: the stream broke off")


class _Group:
    """Calls that share a transport."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport


def _sent(build: Callable[P, Call[T]]) -> Callable[Concatenate[_Group, P], Coroutine[None, None, T]]:
    @functools.wraps(build)
    async def send(self: _Group, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transport.send(build(*args, **kwargs))

    return send


def _streamed(build: Callable[P, StreamCall[T]]) -> Callable[Concatenate[_Group, P], AsyncGenerator[T, None]]:
    @functools.wraps(build)
    def stream(self: _Group, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        return self._transport.stream(build(*args, **kwargs))

    return stream


def _waited(build: Callable[P, WaitCall[T]]) -> Callable[Concatenate[_Group, P], Coroutine[None, None, T]]:
    @functools.wraps(build)
    async def wait(self: _Group, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transport.wait(build(*args, **kwargs))

    return wait


class AsyncJobs(_Group):
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


class AsyncBids(_Group):
    """What the account's own nodes offer."""

    list = _sent(calls.list_bids)
    change = _sent(calls.change_bid)
    withdraw = _sent(calls.withdraw_bid)


class AsyncNodes(_Group):
    """The account's own nodes."""

    list = _sent(calls.list_nodes)
    drain = _sent(calls.drain_node)
    resume = _sent(calls.resume_node)


class AsyncClient(_Group):
    """A market, for one account; asynchronous. The calls are those of `Client`, awaited.

    >>> async with AsyncClient("http://127.0.0.1:8420", api_key) as client:
    ...     job = await client.jobs.create(gpu="h100", count=8, command=["python", "train.py"])
    ...     async for output in client.jobs.logs(job.id):
    ...         for line in output.lines:
    ...             print(output.node, line.text)
    """

    def __init__(self, url: str, api_key: str, *, on_break: OnBreak = nobody_is_told) -> None:
        super().__init__(_Transport(url, api_key, on_break))
        self.jobs = AsyncJobs(self._transport)
        self.bids = AsyncBids(self._transport)
        self.nodes = AsyncNodes(self._transport)

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

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
