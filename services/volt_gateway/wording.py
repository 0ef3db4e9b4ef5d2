"""What an alternative is in words. Clients that act on one read its fields."""

from volt.contracts.jobs import Level
from volt.contracts.market import Alternative, Droppable
from volt.contracts.units import format_usd

_WITHOUT: dict[Droppable, str] = {
    "image": "no image",
    "min_memory_mib": "GPUs of any memory",
    "interface": "GPUs of any interface",
    "min_bandwidth_gbps": "nodes of any bandwidth",
    "min_reliability_permille": "nodes of any reliability",
    "tier": "nodes of any tier",
    "regions": "another region",
    "countries": "another country",
    "providers_excluded": "any provider",
}


def in_words(alternative: Alternative) -> str:
    """One phrase for a person: what is to be asked for instead."""
    parts = []
    if alternative.nodes is not None:
        parts.append(_shape(alternative.nodes, alternative.gpus // alternative.nodes, alternative.interconnect))
    elif alternative.interconnect is not None:
        parts.append(f"nodes {_where(alternative.interconnect)}")
    if alternative.dropped is not None:
        where = f": {', '.join(place or 'an unknown one' for place in alternative.places)}"
        parts.append(_WITHOUT[alternative.dropped] + (where if alternative.places else ""))
    if alternative.max_price_microusd_per_gpu_hour is not None:
        parts.append(f"a cap of ${format_usd(alternative.max_price_microusd_per_gpu_hour)} per GPU-hour")
    return " and ".join(parts) or f"{alternative.gpus} GPUs"


def _shape(nodes: int, each: int, interconnect: Level | None) -> str:
    gpus = "1 GPU" if each == 1 else f"{each} GPUs"
    if nodes == 1:
        return f"1 node with {gpus}"
    return f"{nodes} nodes with {gpus} each" + (f" {_where(interconnect)}" if interconnect else "")


def _where(level: Level) -> str:
    return "anywhere" if level == "any" else f"in one {level}"
