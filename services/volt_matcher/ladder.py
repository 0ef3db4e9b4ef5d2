"""The lots of one model by ask: a ladder for each fabric, and branches of the tree that hold ladders.

Both can be walked from the cheapest lot up. On equal asks the fullest node comes first, so that whole nodes stay
whole, then the more reliable one, then ids.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from volt.contracts.ids import NodeId
from volt_matcher.lots import Lot
from volt_matcher.topology import Domains


class Rung(NamedTuple):
    """A lot at its place on a ladder, `free` being what a pass has left of it."""

    ask_microusd: int
    free: int
    unreliability: int
    node: NodeId
    lot: Lot


class Ladder:
    """Lots of one model on one fabric; or some of those whose fabric is unknown, which are together in nothing."""

    __slots__ = ("domains", "free_gpus", "is_domain", "name", "region", "rungs")

    def __init__(self, name: str, domains: Domains, region: str) -> None:
        self.name = name
        self.domains = domains
        self.region = region
        self.is_domain = bool(domains["fabric"])
        self.rungs: list[Rung] = []
        self.free_gpus = 0

    def add(self, rung: Rung) -> None:
        insort(self.rungs, rung)
        self.free_gpus += rung.free

    def remove(self, rung: Rung) -> None:
        del self.rungs[bisect_left(self.rungs, rung)]
        self.free_gpus -= rung.free

    def walk(self, gpus: int) -> Iterator[Rung]:
        """Lots with so many GPUs free, cheapest first. Of those at one ask the ones with too few are jumped over."""
        rungs, at = self.rungs, 0
        while at < len(rungs):
            rung = rungs[at]
            if rung[1] >= gpus:
                yield rung
                at += 1
            else:
                at = bisect_left(rungs, (rung[0], gpus), at + 1)

    def head(self, gpus: int) -> Rung | None:
        """The first of the walk."""
        return next(self.walk(gpus), None)


class Branch:
    """A site, a region, or everything, of one model. It knows the head of each of its ladders."""

    __slots__ = ("_heads", "_known", "_stale", "free_gpus", "ladders", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ladders: dict[str, Ladder] = {}
        self.free_gpus = 0
        self._heads: dict[int, list[tuple[Rung, str]]] = {}
        self._known: dict[int, dict[str, Rung]] = {}
        self._stale: dict[int, set[str]] = {}

    def include(self, ladder: Ladder) -> None:
        """The ladder is of this branch."""
        self.ladders[ladder.name] = ladder
        self.touch(ladder, ladder.free_gpus)

    def touch(self, ladder: Ladder, gpus_more: int) -> None:
        """Something on the ladder changed."""
        self.free_gpus += gpus_more
        for stale in self._stale.values():
            stale.add(ladder.name)

    def walk(self, gpus: int) -> Iterator[Rung]:
        """Lots with so many GPUs free, cheapest first: a merge that opens a ladder when its head is due."""
        opened: list[tuple[Rung, str, Iterator[Rung]]] = []
        for head, name in self._sorted_heads(gpus):
            while opened and opened[0][0] < head:
                yield _advance(opened)
            walk = self.ladders[name].walk(gpus)
            heappush(opened, (next(walk), name, walk))
        while opened:
            yield _advance(opened)

    def _sorted_heads(self, gpus: int) -> list[tuple[Rung, str]]:
        """The heads of all ladders, cheapest first; only those that changed are looked at."""
        if gpus not in self._heads:
            self._heads[gpus], self._known[gpus], self._stale[gpus] = [], {}, set(self.ladders)
        heads, known, stale = self._heads[gpus], self._known[gpus], self._stale[gpus]
        for name in stale:
            before = known.pop(name, None)
            if before is not None:
                del heads[bisect_left(heads, (before, name))]
        for name in stale:  # Not before the old ones are gone: a lot that moved must not be there twice.
            head = self.ladders[name].head(gpus)
            if head is not None:
                insort(heads, (head, name))
                known[name] = head
        stale.clear()
        return heads


Domain = Ladder | Branch


def _advance(opened: list[tuple[Rung, str, Iterator[Rung]]]) -> Rung:
    rung, name, walk = opened[0]
    following = next(walk, None)
    if following is None:
        heappop(opened)
    else:
        heapreplace(opened, (following, name, walk))
    return rung
