"""Which lots could matter to a contest, when the book holds many more.

If all competitors together want so many nodes, others can touch fewer lots than that, and so fewer domains. Among as
many of the cheapest lots that serve a competitor in a domain there are always enough untouched ones, and among as many
of its cheapest domains there is always an untouched one: whatever is dearer can be exchanged for them at no loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from volt.contracts.jobs import Level
from volt_matcher.book import Book, Shelf
from volt_matcher.feasible import serves
from volt_matcher.fields import Competitor
from volt_matcher.ladder import Rung
from volt_matcher.lots import LotId, Request, Shape, level_of, shapes_allowed
from volt_matcher.place import walk_anywhere
from volt_matcher.topology import LEVELS

LOTS_UNREDUCED_MAX = 2_000
"""A contest over no more lots than this takes all of them."""
DOMAINS_MAX = 32
LOTS_MAX = 1_000
"""In how many domains at most, and among how many lots in each, a competitor is sought a place: beyond that the
exchange is likely and no longer certain."""


def relevant(book: Book, competitors: Sequence[Competitor]) -> list[Rung]:
    """The lots to plan with."""
    models = sorted({model for one in competitors for model in one.request.models})
    if sum(book.shelves[model].lots for model in models if model in book.shelves) <= LOTS_UNREDUCED_MAX:
        return [rung for model in models for rung in book.rungs(model)]
    wanted = sum(max(shape.nodes for shape in one.request.shapes) for one in competitors)
    enough = min(wanted, LOTS_MAX)
    found: dict[LotId, Rung] = {}
    for request, cap_microusd in _by_cap(competitors).items():
        for shape in shapes_allowed(request):
            for model in sorted(request.models):
                for rung in _in_reach(book.shelves.get(model), request, shape, cap_microusd, enough):
                    found[rung.lot.key] = rung
    return list(found.values())


def _by_cap(competitors: Sequence[Competitor]) -> dict[Request, int]:
    """What is asked for, caps apart, and the lowest cap that comes with it."""
    lowest: dict[Request, int] = {}
    for request, _ in competitors:
        cap_microusd = request.cap_microusd_per_gpu_hour
        assert cap_microusd is not None, "who competes has a cap"
        uncapped = replace(request, cap_microusd_per_gpu_hour=None)
        lowest[uncapped] = min(cap_microusd, lowest.get(uncapped, cap_microusd))
    return lowest


def _in_reach(shelf: Shelf | None, request: Request, shape: Shape, cap_microusd: int, enough: int) -> Iterator[Rung]:
    """The lots that could matter to any who ask for this; only a domain that all can afford counts."""
    if shelf is None:
        return
    for level in _levels(request, shape):
        if level == "any":
            yield from islice(_serving(walk_anywhere(shelf, request, shape), request, shape), enough)
            continue
        domains_left = min(enough, DOMAINS_MAX)
        for standing in shelf.ranking(level, shape).walk():
            walk = shelf.domains[level][standing.domain].walk(shape.gpus_per_node)
            able = list(islice(_serving(walk, request, shape), enough))
            if len(able) >= shape.nodes:
                yield from able
                domains_left -= able[shape.nodes - 1].ask_microusd <= cap_microusd
            if not domains_left:
                break


def _levels(request: Request, shape: Shape) -> set[Level]:
    """The required level, and the preferred one if there is any for so many nodes."""
    levels = {level_of(request, shape.nodes)}
    if shape.nodes > 1 and request.preferred in LEVELS:
        levels |= {level for level in LEVELS if level == request.preferred}
    return levels


def _serving(walk: Iterator[Rung], request: Request, shape: Shape) -> Iterator[Rung]:
    return (rung for rung in walk if serves(rung.lot, request, shape.gpus_per_node, rung.free))
