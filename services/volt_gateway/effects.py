"""What keeps the views true: `LOG` read in order and projected, from where the views are, for ever.

views at N ──▶ read LOG from N, which must be the very event that the views know ──▶ project what follows
     ▲                        │ it is not: the views are of another log
     │                        ▼
     └──── begin at 0 ◀── drop them        gone, or behind what was projected: look again where they are
"""

import asyncio
from collections.abc import Iterable, Iterator

import structlog

from volt.contracts.log import Entry
from volt.runtime.log import Log, Page, Unreadable
from volt.runtime.ports import Bus, Clock
from volt_gateway.domain import READS
from volt_gateway.feed import Feed
from volt_gateway.streams import closing
from volt_gateway.views import Displaced, Position, ViewsAway, ViewStore

CHECK_SECONDS = 0.25
RETRY_SECONDS = 0.5
ADOPTIONS_MAX = 16

_log = structlog.get_logger("volt.projector")


class Projector:
    """Projects the log into the views, and tells the feed what changed."""

    def __init__(self, bus: Bus, clock: Clock, views: ViewStore, feed: Feed) -> None:
        self._log, self._clock, self._views, self._feed = Log(bus), clock, views, feed
        self._position: Position | None = None
        self._turn = asyncio.Lock()
        self._live = asyncio.Event()

    async def run(self) -> None:
        """Projects until cancelled. Redis away, or views gone, is waited out and built again."""
        while True:
            try:
                await self._follow()
            except Displaced as error:
                _log.warning("views_displaced", error=str(error))
            except ViewsAway as error:
                _log.warning("views_away", error=str(error))
                await self._clock.sleep(RETRY_SECONDS)

    async def caught_up(self) -> None:
        """Returns once the views have reached the end of the log."""
        await self._live.wait()

    async def _follow(self) -> None:
        """Projects from where the views are. Ends, by raising, when they are found elsewhere."""
        await self._views.drop(only_foreign=True)
        self._position = await self._views.position()
        tasks = [asyncio.ensure_future(self._project()), asyncio.ensure_future(self._check())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _project(self) -> None:
        known = self._position
        after_seq = max(known.seq - 1, 0) if known else 0
        async with closing(self._log.read(READS, after_seq=after_seq)) as pages:
            async for page in pages:
                if known is not None and known.seq:
                    await self._verify(known, page)
                known = None
                async with self._turn:
                    await self._apply(page)

    async def _verify(self, known: Position, page: Page) -> None:
        """The first event read again must be the last one in the views."""
        first = _place(page.entries[0]) if page.entries else None
        if first != (known.seq, known.at_ms):
            _log.warning("views_of_another_log", views=known.seq, log=first)
            await self._views.drop()
            raise Displaced(None)

    async def _apply(self, page: Page) -> None:
        for _ in range(ADOPTIONS_MAX):
            try:
                await self._apply_from(self._position, page)
            except Displaced as displaced:
                self._adopt(displaced)
            else:
                break
        else:
            raise Displaced(self._position)
        if page.pending == 0:
            self._views.open = True
            self._live.set()

    async def _apply_from(self, here: Position | None, page: Page) -> None:
        """Projects what the views do not hold of the page."""
        fresh = [entry for entry in page.entries if here is None or _place(entry)[0] > here.seq]
        seq, at_ms = _place(fresh[-1]) if fresh else (here.seq, here.at_ms) if here else (0, 0)
        to = Position(seq, at_ms, live=page.pending == 0 or (here is not None and here.live))
        if to != here:
            changed = await self._views.advance(here, list(_readable(fresh)), to)
            self._position = to
            self._feed.changed(changed)

    def _adopt(self, displaced: Displaced) -> None:
        """Another projector was faster: go on behind it. Anything else begins anew."""
        found, here = displaced.found, self._position
        if found is None or (here is not None and found.seq < here.seq):
            raise displaced
        self._position = found
        self._feed.all_changed()

    async def _check(self) -> None:
        """Notices, also while the log is silent, that the views are gone or were moved by another projector."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            async with self._turn:
                found = await self._views.position()
                if found != self._position:
                    self._adopt(Displaced(found))


def _place(entry: Entry | Unreadable) -> tuple[int, int]:
    record = entry.record if isinstance(entry, Unreadable) else entry
    return record.seq, record.at_ms


def _readable(entries: Iterable[Entry | Unreadable]) -> Iterator[Entry]:
    for entry in entries:
        if isinstance(entry, Entry):
            yield entry
        else:
            _log.error("event_unreadable", seq=entry.record.seq, subject=entry.record.subject, error=str(entry.error))
