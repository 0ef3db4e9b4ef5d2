"""The book: every lot that can be sold now, kept in order as bids, beats, grants and clearings change it.

For each model it has a ladder per fabric, branches above them, and rankings: for a level, a number of nodes and of GPUs
on each, the domains of that level by what their cheapest such set costs. A ranking is brought up to date when it is
asked for, and only where something changed. A pass takes what it plans to grant, and gives it back at its end.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from volt.contracts.jobs import Level
from volt_matcher.ladder import Branch, Domain, Ladder, Rung
from volt_matcher.lots import Lot, LotId, Shape
from volt_matcher.topology import EVERYWHERE, LEVELS

CHANGES_REMEMBERED_MAX = 4096
"""A ranking that has not been asked for during more changes is made afresh."""
LOOSE_LOTS_PER_LADDER_MAX = 256
"""Lots of unknown fabric that share a ladder; long ladders are slow to change."""
RANKINGS_PER_MODEL_MAX = 128
"""Rankings that are kept; the one asked for longest ago is dropped."""


UNHELD_GPUS = 2**63
"""Stands for the free GPUs of a domain that does not hold the whole set: looser than any that does."""


class Standing(NamedTuple):
    """What a domain's cheapest set of some shape costs at least, and how full the domain is: the order of rankings."""

    cost_microusd: int
    top_ask_microusd: int
    free_on_node: int
    free_in_domain: int
    unreliability: int
    domain: str


class Changes:
    """The domains of one level in which something changed, in order, as far as they are remembered."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self.count = 0
        """Of all changes ever."""

    def note(self, name: str) -> None:
        if len(self._names) >= CHANGES_REMEMBERED_MAX:
            self._names.clear()
        self._names.append(name)
        self.count += 1

    def since(self, count: int) -> set[str] | None:
        """Those after the first `count` changes; None if they are forgotten."""
        new = self.count - count
        if new > len(self._names):
            return None
        return set(self._names[len(self._names) - new :])


class Ranking:
    """The domains of one level by their standing for one shape."""

    def __init__(self, shape: Shape, domains: Mapping[str, Domain], changes: Changes) -> None:
        self._shape = shape
        self._domains = domains
        self._changes = changes
        self._seen = -1
        self._order: list[Standing] = []
        self._known: dict[str, Standing] = {}

    def walk(self) -> Iterator[Standing]:
        """Cheapest first."""
        changed = self._changes.since(self._seen) if self._seen >= 0 else None
        self._seen = self._changes.count
        for name in self._domains if changed is None else changed:
            if name not in self._domains:
                continue  # A ladder of an unknown fabric, which this ranking leaves out.
            known = self._known.pop(name, None)
            if known is not None:
                del self._order[bisect_left(self._order, known)]
            standing = self._standing(name)
            if standing is not None:
                insort(self._order, standing)
                self._known[name] = standing
        return iter(self._order)

    def _standing(self, name: str) -> Standing | None:
        nodes, gpus = self._shape
        domain = self._domains[name]
        rungs = list(islice(domain.walk(gpus), nodes))
        if len(rungs) < nodes:
            return None
        return Standing(
            cost_microusd=sum([rung[0] for rung in rungs]),
            top_ask_microusd=rungs[-1][0],
            free_on_node=rungs[0][1] if nodes == 1 else 0,
            free_in_domain=free_in(domain),
            unreliability=sum([rung[2] for rung in rungs]),
            domain=name,
        )


def free_in(domain: Domain) -> int:
    """How full the domain is, when a set is in it. Unknown fabrics hold nothing together."""
    return UNHELD_GPUS if isinstance(domain, Ladder) and not domain.is_domain else domain.free_gpus


class Shelf:
    """Everything of one model."""

    def __init__(self) -> None:
        self.domains: dict[Level, dict[str, Domain]] = {"fabric": {}, "site": {}, "region": {}, "any": {}}
        """The known domains of each level. A fabric is a ladder, or a branch if it is at several sites."""
        self.ladders: dict[str, Ladder] = {}
        """Those of unknown fabrics too."""
        self.lots = 0
        self._rankings: dict[tuple[Level, Shape], Ranking] = {}
        self._changed_ladders = Changes()
        self._changed: dict[Level, Changes] = {level: Changes() for level in self.domains}
        self._above: dict[str, list[tuple[Level, Branch]]] = {}

    def ladder(self, name: str, lot: Lot) -> Ladder:
        """The ladder of this name, made if need be."""
        if name not in self.ladders:
            ladder = self.ladders[name] = Ladder(name, lot.domains, lot.place.region)
            self._above[name] = [
                (level, self._branch(level, above)) for level in LEVELS[1:] if (above := lot.domains[level])
            ]
            for _, branch in self._above[name]:
                branch.include(ladder)
            if ladder.is_domain:
                self._add_to_fabric(ladder)
        return self.ladders[name]

    def domain(self, name: str) -> Domain | None:
        """A domain by its name."""
        return next((domains[name] for domains in self.domains.values() if name in domains), None)

    def touch(self, ladder: Ladder, gpus_more: int) -> None:
        """Says upwards that something on the ladder changed."""
        self._changed_ladders.note(ladder.name)
        if ladder.is_domain:
            self._changed["fabric"].note(ladder.domains["fabric"])
        for level, branch in self._above[ladder.name]:
            branch.touch(ladder, gpus_more)
            self._changed[level].note(branch.name)

    def ranking(self, level: Level, shape: Shape) -> Ranking:
        """The domains of the level by what the shape costs there. One node is ranked by ladders, known or not."""
        key = (level, shape)
        ranking = self._rankings.pop(key, None)
        if ranking is None:
            if len(self._rankings) >= RANKINGS_PER_MODEL_MAX:
                del self._rankings[next(iter(self._rankings))]
            if level == "fabric" and shape.nodes == 1:
                ranking = Ranking(shape, self.ladders, self._changed_ladders)
            else:
                ranking = Ranking(shape, self.domains[level], self._changed[level])
        self._rankings[key] = ranking
        return ranking

    def _branch(self, level: Level, name: str) -> Branch:
        branch = self.domains[level].get(name)
        if branch is None:
            branch = self.domains[level][name] = Branch(name)
        assert isinstance(branch, Branch), f"{name} is no branch"
        return branch

    def _add_to_fabric(self, ladder: Ladder) -> None:
        """A fabric is its only ladder, until it turns out to be at several sites."""
        name = ladder.domains["fabric"]
        known = self.domains["fabric"].get(name)
        if known is None:
            self.domains["fabric"][name] = ladder
            return
        branch = known if isinstance(known, Branch) else Branch(name)
        self.domains["fabric"][name] = branch
        for one in (known, ladder):
            if isinstance(one, Ladder):
                branch.include(one)
                self._above[one.name].append(("fabric", branch))


class Book:
    """Free GPUs by model, place and ask."""

    def __init__(self) -> None:
        self.shelves: dict[str, Shelf] = {}
        self._at: dict[LotId, tuple[Rung, Ladder]] = {}
        self._loose: dict[tuple[LotId, str], str] = {}
        self._taken: list[tuple[Lot, int]] = []

    def put(self, lot: Lot) -> None:
        """The lot as it is from now on. One that cannot be sold now is not in the book."""
        free = len(lot.free) if lot.alive else 0
        self._set(lot, free)

    def drop(self, key: LotId) -> None:
        """The lot is gone."""
        if key in self._at:
            self._set(self._at[key][0].lot, 0)

    def free(self, key: LotId) -> int:
        """How many GPUs of the lot can be sold now."""
        return self._at[key][0].free if key in self._at else 0

    def rungs(self, model: str) -> Iterator[Rung]:
        """All lots of a model."""
        shelf = self.shelves.get(model)
        for ladder in shelf.ladders.values() if shelf else ():
            yield from ladder.rungs

    def take(self, lot: Lot, gpus: int) -> None:
        """So many GPUs of the lot fewer, or more if negative, until they are given back."""
        self._taken.append((lot, gpus))
        self._set(lot, self.free(lot.key) - gpus)

    def give_back(self) -> None:
        """Everything that was taken is free again: a pass leaves no trace."""
        for lot, gpus in reversed(self._taken):
            self._set(lot, self.free(lot.key) + gpus)
        self._taken.clear()

    def _set(self, lot: Lot, free: int) -> None:
        key = lot.key
        shelf = self.shelves.get(lot.model)
        if shelf is None:
            shelf = self.shelves[lot.model] = Shelf()
        before = self._at.pop(key, None)
        if before is not None:
            rung, ladder = before
            ladder.remove(rung)
            shelf.lots -= 1
            if not free or (ladder.domains is not lot.domains and ladder.domains != lot.domains):
                shelf.touch(ladder, -rung.free)
                before = None
        if not free:
            return
        ladder = before[1] if before else shelf.ladder(self._name(lot), lot)
        rung = Rung(lot.ask_microusd_per_gpu_hour, free, -lot.reliability_permille, lot.node, lot)
        ladder.add(rung)
        shelf.lots += 1
        self._at[key] = (rung, ladder)
        shelf.touch(ladder, free - (before[0].free if before else 0))

    def _name(self, lot: Lot) -> str:
        """By fabric and site; or any ladder for those whose fabric is unknown: which one matters to nobody."""
        if lot.domains["fabric"]:
            return f"{lot.domains['fabric']} {lot.domains['site']}"
        above = lot.domains["site"] or lot.domains["region"] or EVERYWHERE
        known = self._loose.get((lot.key, above))
        if known is None:
            known = self._loose[lot.key, above] = f"{above}#{len(self._loose) // LOOSE_LOTS_PER_LADDER_MAX}"
        return known

    def __eq__(self, other: object) -> bool:
        """Whether both sell the same."""
        return isinstance(other, Book) and self._contents() == other._contents()

    def _contents(self) -> dict[LotId, Rung]:
        return {key: rung for key, (rung, _) in self._at.items()}
