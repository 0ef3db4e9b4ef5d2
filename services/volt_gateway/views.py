"""The views in Redis. Every update checks where in the log they are, every read that they are whole.

    volt:view:meta               schema, seq and at_ms of the last event in them, and whether they are live
    volt:view:<document>         one JSON document of `entities`
    volt:view:<ranking>          a sorted set
    volt:view:balances           micro-dollars by ledger account

An update is one transaction that is void if the views are not where its writer believes them to be. So an event is
projected once, whatever crashes, repeats itself or runs beside it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError, WatchError

from volt.contracts.errors import Unavailable, VoltError
from volt.contracts.log import Entry
from volt.contracts.messages import encode
from volt.runtime.views import REDIS_SECONDS_MAX, VIEWS_META, VIEWS_PREFIX, drop_views
from volt_gateway.domain import Views, evolve, touched
from volt_gateway.entities import Stored, kept_max

SCHEMA = "5"
"""Changed with every change of what a view holds: views of another schema are dropped."""

_FIELDS = ["schema", "seq", "at_ms", "live"]
_BALANCES = VIEWS_PREFIX + "balances"

_decoder: msgspec.json.Decoder[Stored] = msgspec.json.Decoder(Stored)
_log = structlog.get_logger("volt.views")


class ViewsAway(Unavailable):
    """Redis does not answer."""

    code = "views_unavailable"


class ViewsRebuilding(Unavailable):
    """The views are not there, or not at the end of the log yet."""

    code = "views_rebuilding"


class Position(NamedTuple):
    """Where views are: the last event in them. `live` once they have reached the end of the log."""

    seq: int
    at_ms: int
    live: bool


class Displaced(VoltError):
    """The views are not where they were believed to be: somebody else moved them, or they are gone."""

    code = "views_displaced"

    def __init__(self, found: Position | None) -> None:
        super().__init__(f"the views are at {found and found.seq}")
        self.found = found


class ViewStore:
    """Writes and reads views. `open` says whether reads may be served; without it they raise ViewsRebuilding."""

    def __init__(self, redis: Redis) -> None:
        self.open = False
        self._redis = redis

    async def position(self) -> Position | None:
        """Where the views are; None if there are none of this schema. Raises ViewsAway."""
        async with _answering():
            return _position(await self._redis.hmget(VIEWS_META, _FIELDS))

    async def drop(self, *, only_foreign: bool = False) -> None:
        """Deletes the views; with `only_foreign` those of another schema only. Raises ViewsAway."""
        async with _answering():
            await drop_views(self._redis, SCHEMA if only_foreign else "")

    async def advance(self, expected: Position | None, entries: Sequence[Entry], to: Position) -> set[str]:
        """Applies events in one transaction, from `expected` to `to`; returns which documents and rankings changed.

        Raises Displaced, and then nothing was applied; ViewsAway, and then it may have been.
        """
        try:
            async with _answering(), self._redis.pipeline(transaction=True) as pipe:
                return await self._advance(pipe, expected, entries, to)
        except _MovedMeanwhile as error:
            raise Displaced(await self.position()) from error

    async def documents(self, names: Sequence[str]) -> dict[str, Stored]:
        """Those of the named documents that there are. Raises ViewsAway, ViewsRebuilding."""
        if not names:
            return {}
        reply = await self._read("MGET", *(VIEWS_PREFIX + name for name in names))
        return _decoded(names, reply)

    async def newest(self, ranking: str, count: int, before: int | None = None) -> list[bytes]:
        """Members by falling score, below `before`. Raises ViewsAway, ViewsRebuilding."""
        top = "+inf" if before is None else f"({before}"
        return await self._read("ZREVRANGEBYSCORE", VIEWS_PREFIX + ranking, top, "-inf", "LIMIT", 0, count)

    async def after(self, ranking: str, score: int, count: int) -> list[bytes]:
        """Members by rising score, above `score`. Raises ViewsAway, ViewsRebuilding."""
        return await self._read("ZRANGEBYSCORE", VIEWS_PREFIX + ranking, f"({score}", "+inf", "LIMIT", 0, count)

    async def lowest(self, ranking: str, start: int, count: int) -> list[bytes]:
        """Members by rising score, from place `start`. Raises ViewsAway, ViewsRebuilding."""
        return await self._read("ZRANGE", VIEWS_PREFIX + ranking, start, start + count - 1)

    async def count(self, ranking: str) -> int:
        """How many members there are. Raises ViewsAway, ViewsRebuilding."""
        return await self._read_one("ZCARD", VIEWS_PREFIX + ranking) or 0

    async def place(self, ranking: str, member: str) -> int | None:
        """A member's place by rising score, from 0; None if it is not there. Raises ViewsAway, ViewsRebuilding."""
        return await self._read_one("ZRANK", VIEWS_PREFIX + ranking, member)

    async def balances_microusd(self, names: Sequence[str]) -> list[int]:
        """The balances of ledger accounts; zero where there was no movement. Raises ViewsAway, ViewsRebuilding."""
        return [int(amount or 0) for amount in await self._read("HMGET", _BALANCES, *names)]

    async def _read(self, *command: str | int) -> list[bytes]:
        """One reading command that answers with a list."""
        reply = await self._ask(*command)
        assert isinstance(reply, list)
        return reply

    async def _read_one(self, *command: str | int) -> int | None:
        """One reading command that answers with a number, or nothing."""
        reply = await self._ask(*command)
        assert reply is None or isinstance(reply, int)
        return reply

    async def _ask(self, *command: str | int) -> object:
        """One reading command, beside a look whether the views are whole, in one transaction."""
        async with _answering(), self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(VIEWS_META, _FIELDS)
            pipe.execute_command(*command)
            meta, reply = await pipe.execute()
        position = _position(meta)
        if position is None or not position.live or not self.open:
            raise ViewsRebuilding("the views are being rebuilt from the log; try again in a moment")
        return reply

    async def _advance(
        self, pipe: Pipeline, expected: Position | None, entries: Sequence[Entry], to: Position
    ) -> set[str]:
        await pipe.watch(VIEWS_META)
        found = _position(await pipe.hmget(VIEWS_META, _FIELDS))
        if found != expected:
            raise Displaced(found)
        views = Views(await _load(pipe, sorted({name for entry in entries for name in touched(entry.event)})))
        before = dict(views.documents)
        _fold(views, entries)
        changed = {name for name, document in views.documents.items() if before.get(name) is not document}
        pipe.multi()  # type: ignore[no-untyped-call]  # redis-py left it without annotations
        for name in changed:
            pipe.set(VIEWS_PREFIX + name, encode(views.documents[name]))
        _queue(pipe, views)
        pipe.hset(VIEWS_META, items=["schema", SCHEMA, "seq", to.seq, "at_ms", to.at_ms, "live", int(to.live)])
        try:
            await pipe.execute()
        except WatchError as error:
            raise _MovedMeanwhile from error
        return changed | views.ranked.keys()


class _MovedMeanwhile(Exception):
    """The views were moved between the look where they are and the transaction."""


@contextlib.asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Redis answers in time, or it is away. The bound is ours: redis-py's own may lose a cancellation."""
    try:
        async with asyncio.timeout(REDIS_SECONDS_MAX):
            yield
    except (RedisError, TimeoutError) as error:
        raise ViewsAway(f"redis: {error!r}") from error


async def _load(pipe: Pipeline, names: Sequence[str]) -> dict[str, Stored]:
    if not names:
        return {}
    return _decoded(names, await pipe.mget([VIEWS_PREFIX + name for name in names]))


def _fold(views: Views, entries: Iterable[Entry]) -> None:
    for entry in entries:
        try:
            evolve(views, entry)
        except AssertionError as error:
            _log.error("event_not_shown", seq=entry.seq, subject=entry.event.subject(), error=str(error))


def _queue(pipe: Pipeline, views: Views) -> None:
    """The changes of rankings and balances, as commands of a transaction."""
    for ranking, changes in views.ranked.items():
        key = VIEWS_PREFIX + ranking
        placed = {member: score for member, score in changes.items() if score is not None}
        gone = [member for member, score in changes.items() if score is None]
        if placed:
            pipe.zadd(key, placed)
        if gone:
            pipe.zrem(key, *gone)
        places_max = kept_max(ranking)
        if places_max is not None:
            pipe.zremrangebyrank(key, 0, -places_max - 1)
    for name, amount_microusd in views.moved_microusd.items():
        pipe.hincrby(_BALANCES, name, amount_microusd)


def _decoded(names: Sequence[str], replies: Sequence[bytes | str | None]) -> dict[str, Stored]:
    pairs = zip(names, replies, strict=True)
    return {name: _decoder.decode(reply) for name, reply in pairs if reply is not None}


def _position(meta: Sequence[bytes | str | None]) -> Position | None:
    schema, seq, at_ms, live = (value.decode() if isinstance(value, bytes) else value for value in meta)
    if schema != SCHEMA or seq is None or at_ms is None:
        return None
    return Position(int(seq), int(at_ms), live == "1")
