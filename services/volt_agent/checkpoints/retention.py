"""What is not needed any more is removed from the store, by who stored it.

A rank's agent removes what is of its own rank and of no later generation than its own: so one that the network has cut
off, and that knows nothing of later checkpoints, cannot take anything away from them. It keeps the parts that it is
told to look after and, since it may not have heard of their commit yet, all that it has reported beyond them. Rank 0
looks after the ranks that the cluster has no more as well.
"""

from collections.abc import Collection

import structlog

from volt.contracts.checkpoints import ObjectPlace
from volt.contracts.clusters import Checkpoint
from volt_agent.checkpoints.restoring import CheckpointUnusable, Restorer
from volt_agent.checkpoints.storing import Stored
from volt_agent.store.port import Store, StoreUnavailable

_log = structlog.get_logger("volt.checkpoints")


class Retention:
    """The removals of one rank in one generation of so many ranks."""

    def __init__(self, store: Store, place: ObjectPlace, ranks: int) -> None:
        self._store, self._place, self._ranks = store, place, ranks
        self._restorer = Restorer(store, place)
        self._needs: dict[str, frozenset[str]] = {}
        self._sees_others = place.rank == 0

    async def keep(self, kept: Collection[Checkpoint], reported: Collection[Stored]) -> frozenset[str]:
        """Removes all but what is kept and what was reported; returns what it removed, or may have.

        What cannot be read of what is kept says nothing about what else is needed: then nothing is removed.
        """
        parts = [(self._place_of(one, part.rank), part.manifest) for one in kept for part in one.parts]
        removed: set[str] = set()
        try:
            self._needs = {place.name(digest): await self._need(place, digest, reported) for place, digest in parts}
            needed = frozenset[str]().union(*self._needs.values(), *(one.names for one in reported))
            prefix = self._place.job_prefix if self._sees_others else self._place.rank_prefix
            for name in frozenset(filter(self._is_ours, await self._store.names(prefix))) - needed:
                removed.add(name)
                await self._store.delete(name)
        except (CheckpointUnusable, StoreUnavailable) as error:
            _log.warning("not_all_removed", place=self._place.prefix, error=str(error))
        else:
            self._sees_others = any(place.rank != self._place.rank for place, _ in parts)
        return frozenset(removed)

    async def _need(self, place: ObjectPlace, manifest: str, reported: Collection[Stored]) -> frozenset[str]:
        known = self._needs.get(place.name(manifest))
        if known is not None:
            return known
        own = next((one.names for one in reported if place == self._place and one.manifest == manifest), None)
        return own if own is not None else (await self._restorer.read(place, manifest))[1]

    def _place_of(self, checkpoint: Checkpoint, rank: int) -> ObjectPlace:
        return self._place._replace(generation=checkpoint.generation, rank=rank)

    def _is_ours(self, name: str) -> bool:
        parts = name.removeprefix(f"{self._place.job_prefix}/").split("/")
        if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            return False  # Whoever put it there may take it away.
        rank, generation, _ = parts
        is_of_nobody = self._place.rank == 0 and int(rank) >= self._ranks
        return int(generation) <= self._place.generation and (int(rank) == self._place.rank or is_of_nobody)
