"""What a request must be, and its canonical form. Pure: a value in, a value or a reason out."""

from collections.abc import Callable

from volt.contracts.bids import (
    BANDWIDTH_GBPS_MAX,
)
from volt.contracts.declared import check_country, check_region
from volt.contracts.errors import Reason, Refused, refused_for, shown
from volt.contracts.gpus import GPU_MEMORY_MIB_MAX, resolve
from volt.contracts.images import is_image_reference
from volt.contracts.jobs import (
    COMMAND_ARGS_MAX,
    COMMAND_BYTES_MAX,
    COUNTRIES_MAX,
    ENV_BYTES_MAX,
    ENV_VARS_MAX,
    GANG_KINDS,
    GPUS_PER_NODE_MAX,
    GPUS_PER_NODE_UNASKED_MAX,
    IMAGE_CHARS_MAX,
    MODELS_MAX,
    NODES_MAX,
    PREFERENCE_PERCENT_MAX,
    PROCESSES_PER_NODE_MAX,
    PROVIDERS_EXCLUDED_MAX,
    REGIONS_MAX,
    RELIABILITY_PERMILLE_MAX,
    RESERVED_ENV_NAMES,
    RESERVED_ENV_PREFIX,
    RETRIES_MAX,
    SHAPES_MAX,
    SPEC_BYTES_MAX,
    WAIT_SECONDS_MAX,
    Constraints,
    JobSpec,
    Level,
    Recovery,
    RequestJob,
    Shape,
    Workload,
)
from volt.contracts.messages import encode
from volt.contracts.units import DURATION_SECONDS_MAX
from volt_bid_intake.checks import (
    check_at_most,
    check_between,
    check_price,
)

GPUS_PER_JOB_MAX = NODES_MAX * GPUS_PER_NODE_MAX


def nodes_for(count: int, gpus_per_node: int, interconnect: Level) -> int | Reason:
    """How many nodes of such a size have so many GPUs in all, or why a cluster cannot have them."""
    try:
        check_between("count", "count_out_of_range", count, 1, GPUS_PER_JOB_MAX)
        nodes, rest = divmod(count, gpus_per_node)
        if rest:
            nearest = f"{nodes * gpus_per_node} or {(nodes + 1) * gpus_per_node}" if nodes else f"{gpus_per_node}"
            message = f"each node of the job has {gpus_per_node} GPUs, so {count} is no whole number; ask for {nearest}"
            raise refused_for("count_not_whole_nodes", "count", str(count), message)
        if nodes > NODES_MAX:
            message = f"{count} GPUs are {nodes} nodes of {gpus_per_node}; ask for {NODES_MAX * gpus_per_node} at most"
            raise refused_for("too_many_nodes", "count", str(count), message)
        if nodes > 1 and interconnect == "nvlink":
            message = f"nvlink is within one node, which has {gpus_per_node} GPUs here; release it and ask for a fabric"
            raise refused_for("beyond_nvlink", "count", str(count), message)
    except Refused as refused:
        return refused.reason
    return nodes


def specify(command: RequestJob) -> JobSpec | Reason:
    """The canonical form of a request, or what is wrong with it."""
    try:
        wanted = command.constraints
        shapes = _shapes(command.count, command.nodes, wanted.interconnect)
        _check_workload(command.workload)
        _check_constraints(wanted)
        _check_limits(command)
        _check_recovery(command.recovery, shapes)
        spec = JobSpec(
            models=_models(command.gpu),
            shapes=shapes,
            workload=command.workload,
            recovery=command.recovery,
            interconnect=wanted.interconnect or _usual_interconnect(command.workload),
            preferred_interconnect=wanted.preferred_interconnect,
            preference_percent=wanted.preference_percent,
            min_bandwidth_gbps=wanted.min_bandwidth_gbps,
            interface=wanted.interface,
            regions=wanted.regions,
            regions_denied=wanted.regions_denied,
            countries=wanted.countries,
            countries_denied=wanted.countries_denied,
            min_memory_mib=wanted.min_memory_mib,
            min_reliability_permille=wanted.min_reliability_permille,
            tier=wanted.tier,
            providers_excluded=wanted.providers_excluded,
            max_price_microusd_per_gpu_hour=command.max_price_microusd_per_gpu_hour,
            max_duration_seconds=command.max_duration_seconds,
            max_wait_seconds=command.max_wait_seconds,
        )
        check_at_most("request", "request_too_large", len(encode(spec)), SPEC_BYTES_MAX, "bytes of JSON")
    except Refused as refused:
        return refused.reason
    return spec


def _shapes(count: int, nodes: int | None, interconnect: Level | None) -> tuple[Shape, ...]:
    """The shapes that a job may take, the one on the fewest nodes first; the one asked for, if there is one."""
    check_between("count", "count_out_of_range", count, 1, GPUS_PER_JOB_MAX)
    if nodes is not None:
        _check_nodes(count, nodes)
    if interconnect == "nvlink":
        _check_one_node(count, nodes)
        return (Shape(nodes=1, gpus_per_node=count),)
    if nodes is not None:
        return (Shape(nodes=nodes, gpus_per_node=count // nodes),)
    fewest = -(-count // GPUS_PER_NODE_UNASKED_MAX)
    numbers = [number for number in range(fewest, min(count, NODES_MAX) + 1) if count % number == 0]
    if not numbers:
        message = f"{count} GPUs cannot be shared evenly by at most {NODES_MAX} nodes; ask for another number"
        raise refused_for("uneven_nodes", "count", str(count), message)
    return tuple(Shape(nodes=number, gpus_per_node=count // number) for number in numbers[:SHAPES_MAX])


def _check_nodes(count: int, nodes: int) -> None:
    check_between("nodes", "nodes_out_of_range", nodes, 1, NODES_MAX)
    if count % nodes != 0:
        message = f"{count} GPUs cannot be shared evenly by {nodes} nodes; make count a multiple of nodes"
        raise refused_for("uneven_nodes", "nodes", str(nodes), message)
    if count // nodes > GPUS_PER_NODE_MAX:
        message = f"{count // nodes} GPUs per node; no node has more than {GPUS_PER_NODE_MAX}: ask for more nodes"
        raise refused_for("too_many_gpus_per_node", "nodes", str(nodes), message)


def _check_one_node(count: int, nodes: int | None) -> None:
    if count > GPUS_PER_NODE_MAX or nodes not in (None, 1):
        message = (
            f"nvlink is within one node, which has at most {GPUS_PER_NODE_MAX} GPUs; ask for one node, or a fabric"
        )
        raise refused_for("beyond_nvlink", "constraints.interconnect", "nvlink", message)


def _usual_interconnect(workload: Workload) -> Level:
    """Gangs that span nodes exchange gradients at every step; the others do not depend on each other's speed.

    A gang of one node is together wherever it is, and may grow to span several.
    """
    return "fabric" if workload.kind in GANG_KINDS else "any"


def _models(gpu: str | tuple[str, ...]) -> tuple[str, ...]:
    names = (gpu,) if isinstance(gpu, str) else gpu
    check_between("gpu", "model_count_out_of_range", len(names), 1, MODELS_MAX)
    return tuple(dict.fromkeys(resolve(name).slug for name in names))


def _check_workload(workload: Workload) -> None:
    _check_command(workload.command)
    _check_env(workload.env)
    image = workload.image
    check_at_most("workload.image", "image_too_long", len(image), IMAGE_CHARS_MAX, "characters")
    if image and not is_image_reference(image):
        message = f"{shown(image)!r} is no image reference; write it like registry.local:5000/team/app:1.2"
        raise refused_for("invalid_image", "workload.image", image, message)
    if workload.processes_per_node is not None:
        field = "workload.processes_per_node"
        check_between(field, "processes_out_of_range", workload.processes_per_node, 1, PROCESSES_PER_NODE_MAX)


def _check_command(command: tuple[str, ...]) -> None:
    field = "workload.command"
    if not command or not command[0]:
        raise refused_for("no_command", field, "", "there is no program to run; give one after --")
    check_at_most(field, "too_many_arguments", len(command), COMMAND_ARGS_MAX, "arguments")
    check_at_most(field, "command_too_large", sum(map(_bytes, command)), COMMAND_BYTES_MAX, "bytes")
    if any("\0" in argument for argument in command):
        raise refused_for("invalid_argument", field, "", "an argument contains a NUL, which no program can be given")


def _check_env(env: dict[str, str]) -> None:
    """Values are never repeated: they may be secrets."""
    field = "workload.env"
    check_at_most(field, "too_many_env_vars", len(env), ENV_VARS_MAX, "variables")
    size_bytes = sum(_bytes(name) + _bytes(value) for name, value in env.items())
    check_at_most(field, "env_too_large", size_bytes, ENV_BYTES_MAX, "bytes")
    for name, value in env.items():
        if not (name.isascii() and name.isidentifier()):
            message = f"{shown(name)!r} is no name of a variable; use letters, digits and _, not a digit first"
            raise refused_for("invalid_env_name", field, name, message)
        if name in RESERVED_ENV_NAMES or name.startswith(RESERVED_ENV_PREFIX):
            raise refused_for("reserved_env_name", field, name, f"{shown(name)} is set by VOLT; use another name")
        if "\0" in value:
            message = f"the value of {shown(name)} contains a NUL, which no program can be given"
            raise refused_for("invalid_env_value", field, name, message)


def _check_constraints(constraints: Constraints) -> None:
    _check_allowed("regions", constraints.regions, constraints.regions_denied, REGIONS_MAX, check_region)
    _check_allowed("countries", constraints.countries, constraints.countries_denied, COUNTRIES_MAX, check_country)
    field, excluded = "constraints.providers_excluded", constraints.providers_excluded
    check_at_most(field, "too_many_providers", len(excluded), PROVIDERS_EXCLUDED_MAX, "providers")
    for name, value, value_max, code in (
        ("min_memory_mib", constraints.min_memory_mib, GPU_MEMORY_MIB_MAX, "memory_out_of_range"),
        ("min_bandwidth_gbps", constraints.min_bandwidth_gbps, BANDWIDTH_GBPS_MAX, "bandwidth_out_of_range"),
        ("preference_percent", constraints.preference_percent, PREFERENCE_PERCENT_MAX, "preference_out_of_range"),
        (
            "min_reliability_permille",
            constraints.min_reliability_permille,
            RELIABILITY_PERMILLE_MAX,
            "reliability_out_of_range",
        ),
    ):
        check_between(f"constraints.{name}", code, value, 0, value_max)


def _check_allowed(
    name: str, asked: tuple[str, ...], denied: tuple[str, ...], most: int, check: Callable[[str, str], None]
) -> None:
    """What is asked for and what is denied: few enough, well written, and no place in both."""
    for field, places in ((f"constraints.{name}", asked), (f"constraints.{name}_denied", denied)):
        check_at_most(field, f"too_many_{name}", len(places), most, name)
        for place in places:
            check(field, place)
    if both := sorted({*asked} & {*denied}):
        message = f"{both[0]} is both asked for and denied; leave it out of one"
        raise refused_for(f"contradictory_{name}", f"constraints.{name}_denied", both[0], message)


def _check_limits(command: RequestJob) -> None:
    cap_microusd, duration_seconds = command.max_price_microusd_per_gpu_hour, command.max_duration_seconds
    if cap_microusd is not None:
        check_price("max_price_microusd_per_gpu_hour", cap_microusd, "leave it out for no cap")
    if duration_seconds is not None:
        check_between("max_duration_seconds", "duration_out_of_range", duration_seconds, 1, DURATION_SECONDS_MAX)
    if command.max_wait_seconds is not None:
        check_between("max_wait_seconds", "wait_out_of_range", command.max_wait_seconds, 0, WAIT_SECONDS_MAX)


def _check_recovery(recovery: Recovery, shapes: tuple[Shape, ...]) -> None:
    """The fewest nodes to go on with are no more than the job may begin with."""
    check_between("recovery.retries", "retries_out_of_range", recovery.retries, 0, RETRIES_MAX)
    field, fewest = "recovery.min_nodes", min(shape.nodes for shape in shapes)
    if recovery.on_loss != "shrink" and recovery.min_nodes != 1:
        message = f"min_nodes is for jobs that shrink, and this one would {recovery.on_loss}; leave it out, or shrink"
        raise refused_for("contradictory_recovery", field, str(recovery.min_nodes), message)
    check_between(field, "min_nodes_out_of_range", recovery.min_nodes, 1, fewest)


def _bytes(text: str) -> int:
    return len(text.encode())
