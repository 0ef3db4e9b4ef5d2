"""What a grant has to keep: the rules of what the node is, and those of the whole gang."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from volt.audit.demand import Demand, First
from volt.audit.report import MarketCode
from volt.audit.supply import Supply, common, domain, gpus_of, narrowest
from volt.contracts.bids import BidAccepted, Gpu, Place, Terms
from volt.contracts.gpus import BY_SLUG
from volt.contracts.ids import NodeId
from volt.contracts.jobs import JobSpec
from volt.contracts.market import Gang, Grant
from volt.contracts.units import MS_PER_SECOND, format_usd

Breach = tuple[MarketCode, str, str]
"""The rule that is broken, what it is about, and how."""


class Sold(NamedTuple):
    """A grant, and the bid that it was made of."""

    grant: Grant
    bid: BidAccepted
    gpus: tuple[Gpu, ...]
    """Those of the bid that are granted."""


def sold_of(supply: Supply, gang: Gang) -> list[Sold]:
    """The grants of a gang whose nodes have a bid."""
    found = []
    for grant in gang.grants:
        bid = supply.bids.get(grant.node)
        if bid is not None:
            offered = gpus_of(bid)
            found.append(Sold(grant, bid, tuple(offered[uuid] for uuid in grant.gpus if uuid in offered)))
    return found


def breaches_of_node(supply: Supply, spec: JobSpec, grant: Grant, at_ms: int) -> Iterator[Breach]:
    """Whether the node could sell these GPUs, to this job."""
    bid, lease = supply.bids.get(grant.node), grant.lease
    if bid is None or bid.account != grant.provider:
        yield "node_not_offered", lease, f"{grant.node} was not offered by {grant.provider}"
        return
    reliability = supply.reliability_permille.get((bid.account, grant.node))
    if reliability is None:
        yield "node_not_offered", lease, f"{grant.node} was not known to be alive"
    elif reliability < spec.min_reliability_permille:
        least = spec.min_reliability_permille
        yield "reliability_low", lease, f"{grant.node} is reliable to {reliability} per mille, {least} were asked for"
    if (bid.account, grant.node) in supply.drained:
        yield "node_drained", lease, f"{grant.node} was drained, and sells nothing"
    if missing := supply.missing(grant.node):
        yield "node_incomplete", lease, f"{grant.node} no longer offers {min(missing)}, which is leased"
    off = supply.quarantined.get((bid.account, grant.node), {})
    if quarantined := sorted(off.keys() & set(grant.gpus)) or sorted(supply.closing(grant.node)):
        yield "gpu_quarantined", lease, f"{quarantined[0]} of {grant.node} had failed"
    yield from _of_gpus(supply, bid, grant)
    yield from _of_kind(bid, spec, grant)
    yield from _of_place(bid.place, spec, grant)
    offered = gpus_of(bid)
    for model in sorted({offered[uuid].model for uuid in grant.gpus if uuid in offered}):
        for broken in _broken_terms(bid.terms_of(model), spec, len(grant.gpus), at_ms):
            yield "terms_broken", lease, f"{grant.node} {broken}"


def breaches_of_gang(demand: Demand, gang: Gang, sold: Sequence[Sold], cap_microusd: int | None) -> Iterator[Breach]:
    """Whether its nodes make the gang that was asked for, at the price that follows from their asks."""
    if len(sold) < len(gang.grants):
        return  # A node that offered nothing has neither model nor ask nor place, and was told already.
    models = {gpu.model for one in sold for gpu in one.gpus}
    allowed = {demand.first.model} if demand.first is not None else set(demand.spec.models)
    if models != {gang.model} or not models <= allowed:
        yield "model_wrong", gang.job, f"got {', '.join(sorted(models))}, asked for {', '.join(sorted(allowed))}"
    price_microusd = gang.price_microusd_per_gpu_hour
    asks_microusd = [one.bid.terms_of(gang.model).ask_microusd_per_gpu_hour for one in sold]
    if price_microusd != max(asks_microusd, default=None):
        highest = format_usd(max(asks_microusd, default=0))
        yield (
            "price_wrong",
            gang.job,
            f"costs ${format_usd(price_microusd)}; the highest ask of its nodes is ${highest}",
        )
    if cap_microusd is not None and price_microusd > cap_microusd:
        message = f"costs ${format_usd(price_microusd)}, above its cap of ${format_usd(cap_microusd)}"
        yield "price_above_cap", gang.job, message
    places = [one.bid.place for one in sold]
    if gang.domain != narrowest(places):
        yield "domain_wrong", gang.job, f"said to be in {gang.domain!r}, and is in {narrowest(places)!r}"
    yield from _apart(demand, gang, places)


def first_of(demand: Demand, gang: Gang, sold: Sequence[Sold]) -> First:
    """What later gangs have to be like."""
    home = common([one.bid.place for one in sold], demand.spec.interconnect)
    return First(gang.model, len(gang.grants[0].gpus), home)


def is_alone(demand: Demand, gang: Gang) -> bool:
    """Whether the gang's one node is the whole cluster, which is together wherever it is."""
    return demand.size <= 1 and len(gang.grants) == 1 and (gang.grants[0].rank == 0 or demand.relieves(gang))


def _of_gpus(supply: Supply, bid: BidAccepted, grant: Grant) -> Iterator[Breach]:
    offered, lease = gpus_of(bid), grant.lease
    for uuid in grant.gpus:
        holder, seller = supply.holder(uuid), supply.seller(uuid)
        if holder is not None:
            yield "gpu_leased_twice", lease, f"{uuid} is in {holder}, which is not cleared"
        if uuid not in offered:
            yield "gpu_not_offered", lease, f"{uuid} is not in the bid of {grant.node}"
        elif seller != grant.node:
            yield "gpu_of_another_node", lease, f"{uuid} is {seller}'s, which offered it before {grant.node}"
    if len(set(grant.gpus)) < len(grant.gpus):
        yield "gpu_leased_twice", lease, "a GPU is in it twice"


def _of_kind(bid: BidAccepted, spec: JobSpec, grant: Grant) -> Iterator[Breach]:
    offered, lease = gpus_of(bid), grant.lease
    for gpu in (offered[uuid] for uuid in grant.gpus if uuid in offered):
        if gpu.memory_mib < spec.min_memory_mib:
            message = f"{gpu.uuid} has {gpu.memory_mib} MiB, {spec.min_memory_mib} were asked for"
            yield "memory_short", lease, message
        interface = BY_SLUG[gpu.model].interface if gpu.model in BY_SLUG else None
        if spec.interface is not None and interface != spec.interface:
            yield "interface_wrong", lease, f"{gpu.uuid} is {interface}, {spec.interface} was asked for"
    if bid.place.bandwidth_gbps < spec.min_bandwidth_gbps:
        message = f"{grant.node} has {bid.place.bandwidth_gbps} Gb/s, {spec.min_bandwidth_gbps} were asked for"
        yield "bandwidth_short", lease, message
    if spec.tier == "datacenter" and bid.tier != "datacenter":
        yield "tier_wrong", lease, f"{grant.node} is of tier {bid.tier}"
    if bid.runtime != spec.workload.runtime:
        yield "runtime_wrong", lease, f"{grant.node} runs workloads by {bid.runtime}, not {spec.workload.runtime}"
    if bid.account in spec.providers_excluded:
        yield "node_excluded", lease, f"{grant.node} is {bid.account}'s, whom the job excludes"


def _of_place(place: Place, spec: JobSpec, grant: Grant) -> Iterator[Breach]:
    for what, is_in, allowed, denied in (
        ("region", place.region, spec.regions, spec.regions_denied),
        ("country", place.country, spec.countries, spec.countries_denied),
    ):
        if (allowed and is_in not in allowed) or is_in in denied:
            yield "place_wrong", grant.lease, f"{grant.node} is in {what} {is_in!r}, which the job rules out"


def _broken_terms(terms: Terms, spec: JobSpec, gpus: int, at_ms: int) -> Iterator[str]:
    """What of the terms is broken by a lease of so many GPUs that begins now. Without a known end it never ends."""
    seconds, longest, until_ms = spec.max_duration_seconds, terms.max_duration_seconds, terms.available_until_ms
    if terms.paused:
        yield "was paused"
    if gpus < terms.gpus_min:
        yield f"leases {terms.gpus_min} GPUs at least, not {gpus}"
    if longest is not None and (seconds is None or seconds > longest):
        yield f"leases for {longest} s at most"
    if terms.available_from_ms is not None and at_ms < terms.available_from_ms:
        yield f"was not to be had before {terms.available_from_ms}"
    if until_ms is not None and (seconds is None or at_ms + seconds * MS_PER_SECOND > until_ms):
        yield f"is not to be had after {until_ms}"


def _apart(demand: Demand, gang: Gang, places: Sequence[Place]) -> Iterator[Breach]:
    level = demand.spec.interconnect
    if level == "any" or is_alone(demand, gang):
        return
    if level == "nvlink":
        yield "apart", gang.job, f"has {len(gang.grants)} nodes, and NVLink reaches no further than one"
    elif demand.first is None and not common(list(places), level):
        yield "apart", gang.job, f"its nodes are not known to be in one {level}"
    elif demand.first is not None and {domain(place, level) for place in places} != {demand.first.home or None}:
        yield "apart", gang.job, f"is not known to be in the {level} of the rest, {demand.first.home or 'unknown'}"


def nodes_repeated(supply: Supply, gang: Gang) -> set[NodeId]:
    """Nodes that the job gets a second time, or has already."""
    names = [grant.node for grant in gang.grants]
    return {name for name in names if names.count(name) > 1 or gang.job in supply.jobs_on(name)}
