"""What jobs can gain and must pay, by trying every set of nodes: answers that share no code with the matcher."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from volt.contracts.bids import BidAccepted, Place, Terms
from volt.contracts.jobs import JobSpec, Level
from volt.contracts.market import Gang
from volt.contracts.units import MS_PER_SECOND


class Offered(NamedTuple):
    """Bids whose nodes are alive and have leased nothing, at an instant."""

    bids: Sequence[BidAccepted]
    at_ms: int


class Set(NamedTuple):
    """One way to serve a job: so many GPUs of a model on each of these nodes."""

    bids: tuple[BidAccepted, ...]
    model: str
    gpus_per_node: int


Sold = Counter[tuple[str, str]]
"""GPUs of a model that are sold on a node."""


def cheapest_price_microusd(offered: Offered, spec: JobSpec, cap_microusd: int) -> int | None:
    """The price of the cheapest way; None if there is none. Equal ones go to the lower price."""
    found = [
        (_cost(spec, one), max(bid.terms_of(one.model).ask_microusd_per_gpu_hour for bid in one.bids))
        for one in sets_of(offered, spec, cap_microusd, Counter())
    ]
    return min(found)[1] if found else None


def most_gains(offered: Offered, queue: Sequence[tuple[JobSpec, int]]) -> int:
    """The most that all jobs together can gain, each placed whole or not at all."""

    def most(number: int, sold: Sold) -> int:
        if number == len(queue):
            return 0
        spec, cap_microusd = queue[number]
        best = most(number + 1, sold)
        for one in sets_of(offered, spec, cap_microusd, sold):
            taken = Counter({(bid.node, one.model): one.gpus_per_node for bid in one.bids})
            best = max(best, _gains(spec, cap_microusd, one) + most(number + 1, sold + taken))
        return best

    return most(0, Counter())


def gains(offered: Offered, spec: JobSpec, cap_microusd: int, gang: Gang) -> int:
    """What a job gains by its gang."""
    by_node = {bid.node: bid for bid in offered.bids}
    bids = tuple(by_node[grant.node] for grant in gang.grants)
    return _gains(spec, cap_microusd, Set(bids, gang.model, len(gang.grants[0].gpus)))


def sets_of(offered: Offered, spec: JobSpec, cap_microusd: int, sold: Sold) -> Iterator[Set]:
    """Every way to serve the job beside what is sold."""
    for shape, model in ((shape, model) for shape in spec.shapes for model in spec.models):
        gpus = shape.gpus_per_node
        able = [
            bid
            for bid in offered.bids
            if _serves(bid, spec, model, gpus, offered.at_ms)
            and bid.terms_of(model).ask_microusd_per_gpu_hour <= cap_microusd
            and sum(gpu.model == model for gpu in bid.gpus) - sold[bid.node, model] >= gpus
        ]
        for chosen in combinations(able, shape.nodes):
            if shape.nodes == 1 or are_together([bid.place for bid in chosen], spec.interconnect):
                yield Set(chosen, model, gpus)


def _gains(spec: JobSpec, cap_microusd: int, one: Set) -> int:
    """The cap less the asks, over all GPUs, in hundredths of micro-dollars per hour."""
    return 100 * cap_microusd * len(one.bids) * one.gpus_per_node - _cost(spec, one)


def _cost(spec: JobSpec, one: Set) -> int:
    """The sum of the asks, less what the preferred level is worth."""
    asked_microusd = sum(bid.terms_of(one.model).ask_microusd_per_gpu_hour for bid in one.bids) * one.gpus_per_node
    return (100 - (spec.preference_percent if _is_preferred(spec, one.bids) else 0)) * asked_microusd


def are_together(places: Sequence[Place], level: Level) -> bool:
    """Whether they are known to be in one domain of the level."""
    named = {
        "fabric": {(place.region, place.fabric) for place in places},
        "site": {(place.region, place.site) for place in places},
        "region": {(place.region, "-") for place in places},
        "any": {("-", "-")},
    }[level]
    return len(named) == 1 and all(all(names) for names in named)


def _serves(bid: BidAccepted, spec: JobSpec, model: str, gpus: int, at_ms: int) -> bool:
    own, terms = [gpu for gpu in bid.gpus if gpu.model == model], bid.terms_of(model)
    return (
        bool(own)
        and min(gpu.memory_mib for gpu in own) >= spec.min_memory_mib
        and (not spec.regions or bid.place.region in spec.regions)
        and bid.place.region not in spec.regions_denied
        and not terms.paused
        and all(_allowed(terms, spec, gpus, at_ms))
    )


def _allowed(terms: Terms, spec: JobSpec, gpus: int, at_ms: int) -> Iterator[bool]:
    endless_ms = 1 << 62
    lasts_ms = endless_ms if spec.max_duration_seconds is None else spec.max_duration_seconds * MS_PER_SECOND
    yield terms.gpus_min <= gpus
    yield terms.available_from_ms is None or terms.available_from_ms <= at_ms
    yield terms.max_duration_seconds is None or lasts_ms <= terms.max_duration_seconds * MS_PER_SECOND
    yield terms.available_until_ms is None or at_ms + lasts_ms <= terms.available_until_ms


def _is_preferred(spec: JobSpec, chosen: Sequence[BidAccepted]) -> bool:
    level = spec.preferred_interconnect
    return level is not None and (len(chosen) == 1 or are_together([bid.place for bid in chosen], level))
