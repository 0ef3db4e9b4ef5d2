"""What a request and a bid must be, and their canonical form. Pure: a value in, a value or a reason out."""

from volt.contracts.bids import GPUS_PER_BID_MAX, PLACE_CHARS_MAX, Gpu, Place, PlaceBid
from volt.contracts.errors import Reason, Refused
from volt.contracts.gpus import GPU_MEMORY_MIB_MAX, GPU_NAME_CHARS_MAX, resolve
from volt.contracts.ids import is_id
from volt.contracts.images import is_image_reference
from volt.contracts.jobs import (
    COMMAND_ARGS_MAX,
    COMMAND_BYTES_MAX,
    ENV_BYTES_MAX,
    ENV_VARS_MAX,
    GANG_KINDS,
    GPUS_PER_NODE_MAX,
    GPUS_PER_NODE_UNASKED_MAX,
    IMAGE_CHARS_MAX,
    MODELS_MAX,
    NODES_MAX,
    PROCESSES_PER_NODE_MAX,
    REGIONS_MAX,
    RESERVED_ENV_NAMES,
    RESERVED_ENV_PREFIX,
    SPEC_BYTES_MAX,
    Constraints,
    JobSpec,
    Level,
    RequestJob,
    Workload,
)
from volt.contracts.messages import encode
from volt.contracts.units import DURATION_SECONDS_MAX, PRICE_MICROUSD_PER_GPU_HOUR_MAX

SEEN_CHARS_MAX = 80
GPUS_PER_JOB_MAX = NODES_MAX * GPUS_PER_NODE_MAX

_UUID_SIGNS = frozenset("-_.:/")


def specify(command: RequestJob) -> JobSpec | Reason:
    """The canonical form of a request, or what is wrong with it."""
    try:
        nodes = _nodes(command.count, command.nodes)
        _check_workload(command.workload)
        _check_constraints(command.constraints)
        _check_limits(command)
        spec = JobSpec(
            models=_models(command.gpu),
            nodes=nodes,
            gpus_per_node=command.count // nodes,
            workload=command.workload,
            interconnect=command.constraints.interconnect or _usual_interconnect(command.workload, nodes),
            regions=command.constraints.regions,
            regions_denied=command.constraints.regions_denied,
            min_memory_mib=command.constraints.min_memory_mib,
            max_price_microusd_per_gpu_hour=command.max_price_microusd_per_gpu_hour,
            max_duration_seconds=command.max_duration_seconds,
        )
        _at_most("request", "request_too_large", len(encode(spec)), SPEC_BYTES_MAX, "bytes of JSON")
    except Refused as refused:
        return refused.reason
    return spec


def bid_problem(command: PlaceBid) -> Reason | None:
    """What is wrong with a bid, if anything."""
    try:
        _between("gpus", "gpu_count_out_of_range", len(command.gpus), 1, GPUS_PER_BID_MAX)
        for gpu in command.gpus:
            _check_gpu(gpu)
        _check_uuids([gpu.uuid for gpu in command.gpus])
        _check_price("ask_microusd_per_gpu_hour", command.ask_microusd_per_gpu_hour, "withdraw the bid")
        _check_place(command.place)
    except Refused as refused:
        return refused.reason
    return None


def canonical_gpus(command: PlaceBid) -> tuple[Gpu, ...]:
    """The GPUs of a bid without problem, by canonical model and nominal memory; the driver's name is kept."""
    models = [resolve(gpu.model, gpu.memory_mib) for gpu in command.gpus]
    return tuple(
        Gpu(uuid=gpu.uuid, model=model.slug, memory_mib=model.memory_mib, raw_model=gpu.raw_model or gpu.model)
        for gpu, model in zip(command.gpus, models, strict=True)
    )


def _nodes(count: int, nodes: int | None) -> int:
    """On how many nodes; unless that is asked for, the fewest that share the GPUs evenly."""
    _between("count", "count_out_of_range", count, 1, GPUS_PER_JOB_MAX)
    if nodes is None:
        fewest = -(-count // GPUS_PER_NODE_UNASKED_MAX)
        nodes = next(number for number in range(fewest, count + 1) if count % number == 0)
        if nodes > NODES_MAX:
            message = f"{count} GPUs cannot be shared evenly by at most {NODES_MAX} nodes; ask for another number"
            raise _refused("uneven_nodes", "count", str(count), message)
    _between("nodes", "nodes_out_of_range", nodes, 1, NODES_MAX)
    if count % nodes != 0:
        message = f"{count} GPUs cannot be shared evenly by {nodes} nodes; make count a multiple of nodes"
        raise _refused("uneven_nodes", "nodes", str(nodes), message)
    if count // nodes > GPUS_PER_NODE_MAX:
        message = f"{count // nodes} GPUs per node; no node has more than {GPUS_PER_NODE_MAX}: ask for more nodes"
        raise _refused("too_many_gpus_per_node", "nodes", str(nodes), message)
    return nodes


def _usual_interconnect(workload: Workload, nodes: int) -> Level:
    """Gangs that span nodes exchange gradients at every step; the others do not depend on each other's speed."""
    return "fabric" if workload.kind in GANG_KINDS and nodes > 1 else "any"


def _models(gpu: str | tuple[str, ...]) -> tuple[str, ...]:
    names = (gpu,) if isinstance(gpu, str) else gpu
    _between("gpu", "model_count_out_of_range", len(names), 1, MODELS_MAX)
    return tuple(dict.fromkeys(resolve(name).slug for name in names))


def _check_workload(workload: Workload) -> None:
    _check_command(workload.command)
    _check_env(workload.env)
    image = workload.image
    _at_most("workload.image", "image_too_long", len(image), IMAGE_CHARS_MAX, "characters")
    if image and not is_image_reference(image):
        message = f"{_shown(image)!r} is no image reference; write it like registry.local:5000/team/app:1.2"
        raise _refused("invalid_image", "workload.image", image, message)
    if workload.processes_per_node is not None:
        field = "workload.processes_per_node"
        _between(field, "processes_out_of_range", workload.processes_per_node, 1, PROCESSES_PER_NODE_MAX)


def _check_command(command: tuple[str, ...]) -> None:
    field = "workload.command"
    if not command or not command[0]:
        raise _refused("no_command", field, "", "there is no program to run; give one after --")
    _at_most(field, "too_many_arguments", len(command), COMMAND_ARGS_MAX, "arguments")
    _at_most(field, "command_too_large", sum(map(_bytes, command)), COMMAND_BYTES_MAX, "bytes")
    if any("\0" in argument for argument in command):
        raise _refused("invalid_argument", field, "", "an argument contains a NUL, which no program can be given")


def _check_env(env: dict[str, str]) -> None:
    """Values are never repeated: they may be secrets."""
    field = "workload.env"
    _at_most(field, "too_many_env_vars", len(env), ENV_VARS_MAX, "variables")
    size_bytes = sum(_bytes(name) + _bytes(value) for name, value in env.items())
    _at_most(field, "env_too_large", size_bytes, ENV_BYTES_MAX, "bytes")
    for name, value in env.items():
        if not (name.isascii() and name.isidentifier()):
            message = f"{_shown(name)!r} is no name of a variable; use letters, digits and _, not a digit first"
            raise _refused("invalid_env_name", field, name, message)
        if name in RESERVED_ENV_NAMES or name.startswith(RESERVED_ENV_PREFIX):
            raise _refused("reserved_env_name", field, name, f"{_shown(name)} is set by VOLT; use another name")
        if "\0" in value:
            message = f"the value of {_shown(name)} contains a NUL, which no program can be given"
            raise _refused("invalid_env_value", field, name, message)


def _check_constraints(constraints: Constraints) -> None:
    asked, denied = constraints.regions, constraints.regions_denied
    for field, regions in (("constraints.regions", asked), ("constraints.regions_denied", denied)):
        _at_most(field, "too_many_regions", len(regions), REGIONS_MAX, "regions")
        for region in regions:
            _check_region(field, region)
    if both := sorted({*asked} & {*denied}):
        message = f"region {both[0]} is both asked for and denied; leave it out of one"
        raise _refused("contradictory_regions", "constraints.regions_denied", both[0], message)
    memory_mib = constraints.min_memory_mib
    _between("constraints.min_memory_mib", "memory_out_of_range", memory_mib, 0, GPU_MEMORY_MIB_MAX)


def _check_limits(command: RequestJob) -> None:
    cap_microusd, duration_seconds = command.max_price_microusd_per_gpu_hour, command.max_duration_seconds
    if cap_microusd is not None:
        _check_price("max_price_microusd_per_gpu_hour", cap_microusd, "leave it out for no cap")
    if duration_seconds is not None:
        _between("max_duration_seconds", "duration_out_of_range", duration_seconds, 1, DURATION_SECONDS_MAX)


def _check_gpu(gpu: Gpu) -> None:
    if not gpu.uuid.isascii() or not all(sign.isalnum() or sign in _UUID_SIGNS for sign in gpu.uuid):
        message = f"{_shown(gpu.uuid)!r} is no GPU UUID; use the one that the driver reports"
        raise _refused("invalid_gpu_uuid", "gpus.uuid", gpu.uuid, message)
    _between("gpus.memory_mib", "memory_out_of_range", gpu.memory_mib, 0, GPU_MEMORY_MIB_MAX)
    _at_most("gpus.raw_model", "name_too_long", len(gpu.raw_model), GPU_NAME_CHARS_MAX, "characters")
    resolve(gpu.model, gpu.memory_mib)


def _check_uuids(uuids: list[str]) -> None:
    twice = next((uuid for uuid in uuids if uuids.count(uuid) > 1), None)
    if twice is not None:
        raise _refused("duplicate_gpu", "gpus.uuid", twice, f"GPU {_shown(twice)} is listed twice; list each once")


def _check_place(place: Place) -> None:
    named = {"region": place.region, "country": place.country, "site": place.site, "fabric": place.fabric}
    for name, text in named.items():
        field = f"place.{name}"
        _at_most(field, "place_too_long", len(text), PLACE_CHARS_MAX, "characters")
        if not text.isprintable():
            message = f"{field} {_shown(text)!r} has characters that cannot be shown; leave them out"
            raise _refused("invalid_place", field, text, message)
    if place.region:
        _check_region("place.region", place.region)


def _check_region(field: str, region: str) -> None:
    if not is_id(region):
        message = f"{_shown(region)!r} is no region; write it like eu-west, in lower case"
        raise _refused("invalid_region", field, region, message)


def _check_price(field: str, price_microusd: int, otherwise: str) -> None:
    _between(field, "price_out_of_range", price_microusd, 1, PRICE_MICROUSD_PER_GPU_HOUR_MAX, otherwise)


def _between(field: str, code: str, value: int, at_least: int, at_most: int, otherwise: str = "") -> None:
    if not at_least <= value <= at_most:
        shown = _shown(str(value))
        hint = f"give {at_least} to {at_most}" + (f", or {otherwise}" if otherwise else "")
        raise _refused(code, field, shown, f"{field} {shown} is out of range; {hint}")


def _at_most(field: str, code: str, size: int, size_max: int, unit: str) -> None:
    if size > size_max:
        raise _refused(code, field, str(size), f"{field} has {size} {unit}; at most {size_max} are taken: shorten it")


def _refused(code: str, field: str, seen: str, message: str) -> Refused:
    return Refused(Reason(code=code, message=message, field=field, seen=_shown(seen)))


def _shown(text: str) -> str:
    return text if len(text) <= SEEN_CHARS_MAX else text[: SEEN_CHARS_MAX - 1] + "…"


def _bytes(text: str) -> int:
    return len(text.encode())
