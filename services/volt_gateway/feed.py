"""Tells those who wait for a view that it may have changed. They look for themselves."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Feed:
    """Whoever watches a view, a document or a ranking by its name, is woken when it has changed, or may have."""

    def __init__(self) -> None:
        self._watching: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def watch(self, *names: str) -> Iterator[asyncio.Event]:
        """An event that is set at each change of one of these views; who waits on it clears it."""
        moved = asyncio.Event()
        for name in names:
            self._watching.setdefault(name, set()).add(moved)
        try:
            yield moved
        finally:
            for name in names:
                self._watching[name].discard(moved)
                if not self._watching[name]:
                    del self._watching[name]

    def changed(self, names: Collection[str]) -> None:
        """These views have changed."""
        for name in names:
            for moved in self._watching.get(name, ()):
                moved.set()

    def all_changed(self) -> None:
        """Any view may have changed."""
        self.changed(list(self._watching))
