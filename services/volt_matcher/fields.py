"""Fields: which lots each competitor could use at all, whatever the others do, by terms, model and cap.

Lots that are equal in all that `suits` looks at are judged once.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from volt_matcher.feasible import is_excluded, suits
from volt_matcher.lots import Lot, Request, Shape, shapes_allowed

PERMILLE = 1000


class Competitor(NamedTuple):
    """A request and how much its gains count, per mille. Competitors are given in the order of age."""

    request: Request
    weight_permille: int = PERMILLE


class Fields:
    """The fields of a contest. Lots are given in the order of their asks."""

    def __init__(self, lots: Sequence[Lot], competitors: Sequence[Competitor]) -> None:
        self.of: dict[tuple[int, Shape, str], int] = {}
        """The field of a competitor with a shape of a model."""
        self._lots = lots
        asks_microusd = [lot.ask_microusd_per_gpu_hour for lot in lots]
        kinds: dict[tuple[object, ...], int] = {}
        self._kinds: list[list[int]] = []
        for number, lot in enumerate(lots):
            kind = kinds.setdefault(_kind(lot), len(self._kinds))
            if kind == len(self._kinds):
                self._kinds.append([])
            self._kinds[kind].append(number)
        terms: dict[tuple[object, ...], int] = {}
        fields: dict[tuple[int, int], int] = {}
        self._terms: list[tuple[list[int], list[int]]] = []
        for number, (request, _) in enumerate(competitors):
            for shape in shapes_allowed(request):
                for model in sorted(request.models):
                    key = (*_asked(request), model, shape.gpus_per_node)
                    if key not in terms:
                        terms[key] = len(self._terms)
                        self._terms.append(self._suiting(request, model, shape.gpus_per_node))
                    cap_microusd = request.cap_microusd_per_gpu_hour
                    assert cap_microusd is not None, "who competes has a cap"
                    affordable = bisect_right(asks_microusd, cap_microusd)
                    field = fields.setdefault((terms[key], affordable), len(fields))
                    self.of[number, shape, model] = field
        self._keys = list(fields)

    def bits(self, bit: list[int]) -> list[int]:
        """Each field as bits, when each lot has this one."""
        kinds = gather(self._kinds, bit)
        suiting = [
            sum([kinds[kind] for kind in suited]) & ~sum([bit[lot] for lot in excluded])
            for suited, excluded in self._terms
        ]
        affordable, bits, at = dict[int, int](), 0, 0
        for count in sorted({count for _, count in self._keys}):
            bits |= sum(bit[at:count])
            affordable[count], at = bits, count
        return [suiting[terms] & affordable[count] for terms, count in self._keys]

    def _suiting(self, request: Request, model: str, gpus: int) -> tuple[list[int], list[int]]:
        """The kinds of lots that suit a request, and the lots of those kinds that it may not have all the same."""
        kinds = [
            kind
            for kind, lots in enumerate(self._kinds)
            if self._lots[lots[0]].model == model and suits(self._lots[lots[0]], request, gpus)
        ]
        if not (request.excluded or request.providers_excluded or request.barred):
            return kinds, []
        return kinds, [lot for kind in kinds for lot in self._kinds[kind] if is_excluded(self._lots[lot], request)]


def gather(groups: Iterable[list[int]], bit: list[int]) -> list[int]:
    """The bits of each group together."""
    return [sum([bit[lot] for lot in lots]) for lots in groups]


def _kind(lot: Lot) -> tuple[object, ...]:
    """All that `suits` looks at: lots that are equal in this suit the same requests."""
    return (
        lot.model,
        lot.place.region,
        lot.place.country,
        lot.memory_mib,
        lot.interface,
        lot.bandwidth_gbps,
        lot.tier,
        lot.runtime,
        lot.reliability_permille,
        lot.min_gpus,
        lot.max_duration_seconds,
        lot.available_from_ms,
        lot.available_until_ms,
    )


def _asked(request: Request) -> tuple[object, ...]:
    """All of a request that `suits` and `is_excluded` look at."""
    assert not request.home, "what must be beside something is placed for itself"
    return (
        request.min_memory_mib,
        request.interface,
        request.min_bandwidth_gbps,
        request.min_reliability_permille,
        request.tier,
        request.runtime,
        request.regions,
        request.regions_denied,
        request.countries,
        request.countries_denied,
        request.excluded,
        request.providers_excluded,
        request.barred,
        request.at_ms,
        request.duration_seconds,
    )
