"""What a bid must be, its canonical form, and how its terms are changed. Pure: a value in, a value or a reason out."""

from volt.contracts.bids import (
    BANDWIDTH_GBPS_MAX,
    GPUS_PER_BID_MAX,
    PLACE_CHARS_MAX,
    BidAccepted,
    ChangeBid,
    Gpu,
    Place,
    PlaceBid,
    Terms,
)
from volt.contracts.declared import check_country, check_region
from volt.contracts.errors import Reason, Refused, refused_for, shown
from volt.contracts.gpus import GPU_MEMORY_MIB_MAX, GPU_NAME_CHARS_MAX, resolve
from volt.contracts.units import DURATION_SECONDS_MAX
from volt_bid_intake.checks import (
    check_at_most,
    check_between,
    check_price,
)

INSTANT_MS_MAX = 10**14

_UUID_SIGNS = frozenset("-_.:/")


def bid_problem(command: PlaceBid) -> Reason | None:
    """What is wrong with a bid, if anything."""
    try:
        check_between("gpus", "gpu_count_out_of_range", len(command.gpus), 1, GPUS_PER_BID_MAX)
        for gpu in command.gpus:
            _check_gpu(gpu)
        _check_uuids([gpu.uuid for gpu in command.gpus])
        _check_terms(command.terms, len(command.gpus))
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


def models_named(command: ChangeBid, standing: BidAccepted) -> tuple[str, ...]:
    """The models of the node whose terms a command changes. Raises Refused."""
    offered = tuple(sorted({gpu.model for gpu in standing.gpus}))
    if command.model is None:
        return offered
    model = resolve(command.model).slug
    if model not in offered:
        message = f"node {command.node} has no {model}; it has {', '.join(offered)}"
        raise Refused(Reason(code="model_not_offered", message=message, field="model", seen=model, choices=offered))
    return (model,)


def changed_terms(terms: Terms, command: ChangeBid, gpus: int) -> Terms:
    """Terms for so many GPUs with what a command changes of them. Raises Refused."""

    def kept_or(value: int | None, known: int | None) -> int | None:
        return known if value is None else value or None

    changed = Terms(
        ask_microusd_per_gpu_hour=_kept(command.ask_microusd_per_gpu_hour, terms.ask_microusd_per_gpu_hour),
        gpus_min=_kept(command.gpus_min, terms.gpus_min),
        max_duration_seconds=kept_or(command.max_duration_seconds, terms.max_duration_seconds),
        available_from_ms=kept_or(command.available_from_ms, terms.available_from_ms),
        available_until_ms=kept_or(command.available_until_ms, terms.available_until_ms),
        paused=terms.paused if command.paused is None else command.paused,
    )
    _check_terms(changed, gpus)
    return changed


def _kept(value: int | None, known: int) -> int:
    return known if value is None else value


def _check_gpu(gpu: Gpu) -> None:
    if not gpu.uuid.isascii() or not all(sign.isalnum() or sign in _UUID_SIGNS for sign in gpu.uuid):
        message = f"{shown(gpu.uuid)!r} is no GPU UUID; use the one that the driver reports"
        raise refused_for("invalid_gpu_uuid", "gpus.uuid", gpu.uuid, message)
    check_between("gpus.memory_mib", "memory_out_of_range", gpu.memory_mib, 0, GPU_MEMORY_MIB_MAX)
    check_at_most("gpus.raw_model", "name_too_long", len(gpu.raw_model), GPU_NAME_CHARS_MAX, "characters")
    resolve(gpu.model, gpu.memory_mib)


def _check_terms(terms: Terms, gpus: int) -> None:
    check_price("terms.ask_microusd_per_gpu_hour", terms.ask_microusd_per_gpu_hour, "withdraw the bid")
    check_between("terms.gpus_min", "gpus_min_out_of_range", terms.gpus_min, 1, gpus)
    if terms.max_duration_seconds is not None:
        field = "terms.max_duration_seconds"
        check_between(field, "duration_out_of_range", terms.max_duration_seconds, 1, DURATION_SECONDS_MAX)
    from_ms, until_ms = terms.available_from_ms, terms.available_until_ms
    for name, instant_ms in (("available_from_ms", from_ms), ("available_until_ms", until_ms)):
        if instant_ms is not None:
            check_between(f"terms.{name}", "instant_out_of_range", instant_ms, 1, INSTANT_MS_MAX)
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        message = "the window ends before it begins; give an end that is later than its beginning"
        raise refused_for("empty_window", "terms.available_until_ms", str(until_ms), message)


def _check_uuids(uuids: list[str]) -> None:
    twice = next((uuid for uuid in uuids if uuids.count(uuid) > 1), None)
    if twice is not None:
        raise refused_for("duplicate_gpu", "gpus.uuid", twice, f"GPU {shown(twice)} is listed twice; list each once")


def _check_place(place: Place) -> None:
    named = {"region": place.region, "country": place.country, "site": place.site, "fabric": place.fabric}
    for name, text in named.items():
        field = f"place.{name}"
        check_at_most(field, "place_too_long", len(text), PLACE_CHARS_MAX, "characters")
        if not text.isprintable():
            message = f"{field} {shown(text)!r} has characters that cannot be shown; leave them out"
            raise refused_for("invalid_place", field, text, message)
    if place.region:
        check_region("place.region", place.region)
    if place.country:
        check_country("place.country", place.country)
    check_between("place.bandwidth_gbps", "bandwidth_out_of_range", place.bandwidth_gbps, 0, BANDWIDTH_GBPS_MAX)
