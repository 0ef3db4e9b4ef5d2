"""Whether a lot can serve a request, and by which filter it is refused if not.

    alive, excluded, model, memory, interface, bandwidth, reliability, tier, runtime, terms, free_gpus
    interconnect (it is about all nodes of a gang together; see `explain`)
    region, country, price

Grants, plans, reasons and commits all go by this file. That nodes are together is said by `topology`.
"""

from volt.contracts.units import MS_PER_SECOND
from volt_matcher.lots import Lot, Request
from volt_matcher.price import is_affordable


def serves(lot: Lot, request: Request, gpus: int, free: int) -> bool:
    """Whether the lot, with so many GPUs free now, can serve as one node with so many GPUs of the request."""
    return (
        free >= gpus
        and is_affordable(lot.ask_microusd_per_gpu_hour, request.cap_microusd_per_gpu_hour)
        and not is_excluded(lot, request)
        and suits(lot, request, gpus)
    )


def suits(lot: Lot, request: Request, gpus: int) -> bool:
    """Whether the lot is of the kind that is sought, whatever is free of it now and whatever it costs."""
    return lot.alive and not unsuited_by(lot, request, gpus) and not displaced_by(lot, request)


def is_excluded(lot: Lot, request: Request) -> bool:
    """Whether it is this very lot, node or provider that the request may not have."""
    return (
        lot.node in request.excluded
        or lot.provider in request.providers_excluded
        or (bool(request.barred) and lot.key in request.barred)
    )


def unsuited_by(lot: Lot, request: Request, gpus: int) -> str:
    """The first filter of what the lot is and its terms that refuses it; empty if none does."""
    if lot.model not in request.models:
        return "model"
    if lot.memory_mib < request.min_memory_mib:
        return "memory"
    if request.interface is not None and lot.interface != request.interface:
        return "interface"
    if lot.bandwidth_gbps < request.min_bandwidth_gbps:
        return "bandwidth"
    if lot.reliability_permille < request.min_reliability_permille:
        return "reliability"
    if request.tier == "datacenter" and lot.tier != "datacenter":
        return "tier"
    if lot.runtime != request.runtime:
        return "runtime"
    return "" if _accepts(lot, request, gpus) else "terms"


def displaced_by(lot: Lot, request: Request) -> str:
    """The first filter of where the lot is that refuses it; empty if none does. An unknown place is none of those."""
    region, country = lot.place.region, lot.place.country
    if (request.regions and region not in request.regions) or region in request.regions_denied:
        return "region"
    if (request.countries and country not in request.countries) or country in request.countries_denied:
        return "country"
    if request.home and request.home not in lot.domains.values():
        return "interconnect"
    return ""


def _accepts(lot: Lot, request: Request, gpus: int) -> bool:
    """Whether the provider's terms allow it. A job without a known end is one that never ends."""
    if gpus < lot.min_gpus:
        return False
    if lot.available_from_ms is not None and request.at_ms < lot.available_from_ms:
        return False
    duration_seconds, longest_seconds = request.duration_seconds, lot.max_duration_seconds
    if longest_seconds is not None and (duration_seconds is None or duration_seconds > longest_seconds):
        return False
    if lot.available_until_ms is None:
        return True
    if duration_seconds is None:
        return False
    return request.at_ms + duration_seconds * MS_PER_SECOND <= lot.available_until_ms
