"""Who takes up an alternative: the request with what it changes, field by field, and nothing else."""

import msgspec
from msgspec import structs

from volt.contracts.jobs import JobSpec, Shape
from volt.contracts.market import Alternative

WITH_WHAT_IS_DENIED = {"regions": ("regions", "regions_denied"), "countries": ("countries", "countries_denied")}


def changed(spec: JobSpec, cap_microusd: int | None, alternative: Alternative) -> tuple[JobSpec, int | None]:
    """What is asked for then, and at which cap."""
    if alternative.nodes is not None:
        shape = Shape(nodes=alternative.nodes, gpus_per_node=alternative.gpus // alternative.nodes)
        spec = structs.replace(spec, shapes=(shape,))
    if alternative.interconnect is not None:
        spec = structs.replace(spec, interconnect=alternative.interconnect)
    if alternative.dropped == "image":
        spec = structs.replace(spec, workload=structs.replace(spec.workload, image=""))
    elif alternative.dropped is not None:
        dropped = WITH_WHAT_IS_DENIED.get(alternative.dropped, (alternative.dropped,))
        left = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in dropped}
        spec = msgspec.convert(left, JobSpec)
    cap = alternative.max_price_microusd_per_gpu_hour
    return spec, cap_microusd if cap is None else cap
