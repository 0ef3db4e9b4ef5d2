"""What people send, made into commands: bytes and text in, a command or a typed refusal out."""

import difflib
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from volt.contracts.bids import DRAIN_SECONDS_DEFAULT, ChangeBid, DrainNode, ResumeNode, WithdrawBid
from volt.contracts.errors import CHOICES_MAX, MalformedMessage, NotFound, Reason, Refused
from volt.contracts.gpus import resolve
from volt.contracts.http import (
    IDEMPOTENCY_HEADER,
    ConstraintsRequest,
    JobRequest,
    RecoveryRequest,
    Request,
    ScaleRequest,
    WorkloadRequest,
)
from volt.contracts.http_market import BidChange, DrainRequest
from volt.contracts.ids import is_id
from volt.contracts.jobs import Constraints, Recovery, RequestJob, RequestQuote, Workload
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt.contracts.units import parse_duration_seconds, parse_usd

REQUEST_ID_CHARS_MAX = 128
SEEN_CHARS_MAX = 200
NO_WAIT = "0s"
NO_TERM = "none"
NUMBER_DIGITS_MAX = 18

_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_NAMED_FIELD = re.compile(r"(missing required|contains unknown) field `([^`]+)`")
_FIELDS = [
    field.encode_name
    for struct in (
        JobRequest,
        WorkloadRequest,
        ConstraintsRequest,
        RecoveryRequest,
        ScaleRequest,
        BidChange,
        DrainRequest,
    )
    for field in msgspec.structs.fields(struct)
]

T = TypeVar("T")
R = TypeVar("R", bound=Request)


def read_job_request(body: bytes) -> JobRequest:
    """The request in a body. Raises MalformedMessage if it is not JSON, Refused if a field is not what it should be."""
    return _read(body, JobRequest)


def _read(body: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(_invalid(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage("not_json", f"the body is not JSON: {error}") from error


def request_id(header: str) -> str:
    """The id of a request, as its sender gave it. Raises Refused."""
    if 0 < len(header) <= REQUEST_ID_CHARS_MAX:
        return header
    message = f"{IDEMPOTENCY_HEADER} has {len(header)} characters; write 1 to {REQUEST_ID_CHARS_MAX}"
    raise Refused(Reason(code="invalid_field", message=message, field=IDEMPOTENCY_HEADER, seen=_shortened(header)))


def job_command(account: str, request: str, body: JobRequest) -> RequestJob:
    """The command that a request makes: the same one, to the byte, at every retry. Raises Refused."""
    wanted = body.constraints
    command = RequestJob(
        account=account,
        request_id=request,
        gpu=body.gpu,
        count=body.count,
        nodes=body.nodes,
        workload=Workload(
            kind=body.workload.kind,
            command=body.workload.command,
            image=body.workload.image,
            env=dict(sorted(body.workload.env.items())),
            processes_per_node=body.workload.processes_per_node,
        ),
        constraints=Constraints(
            interconnect=wanted.interconnect,
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
        ),
        recovery=Recovery(
            on_loss=body.recovery.on_loss, min_nodes=body.recovery.min_nodes, retries=body.recovery.retries
        ),
        max_price_microusd_per_gpu_hour=_parsed(
            _parse_price_microusd, body.max_price_usd_per_gpu_hour, "max_price_usd_per_gpu_hour", "invalid_amount"
        ),
        max_duration_seconds=_parsed(parse_duration_seconds, body.max_duration, "max_duration", "invalid_duration"),
        max_wait_seconds=_parsed(_parse_wait_seconds, body.max_wait, "max_wait", "invalid_duration"),
    )
    size_bytes = len(encode(command))
    if size_bytes > MESSAGE_BYTES_MAX:
        message = f"the request makes a message of {size_bytes} bytes; at most {MESSAGE_BYTES_MAX} are taken"
        raise Refused(Reason(code="too_large", message=message, seen=str(size_bytes)))
    return command


def quote_command(account: str, request: str, body: JobRequest) -> RequestQuote:
    """The question what a request would get. Raises Refused."""
    return RequestQuote(request=job_command(account, request, body))


def read_scale_request(body: bytes) -> ScaleRequest:
    """Raises MalformedMessage, Refused."""
    return _read(body, ScaleRequest)


def read_bid_change(body: bytes) -> BidChange:
    """Raises MalformedMessage, Refused."""
    return _read(body, BidChange)


def change_command(account: str, node: str, request: str, body: BidChange) -> ChangeBid:
    """The command that a change of a bid makes. Raises Refused."""
    if not is_id(node):
        raise NotFound(f"there is no node {node[:64]} of yours")
    return ChangeBid(
        account=account,
        node=node,
        request_id=request,
        model=body.gpu,
        offer=body.offer,
        ask_microusd_per_gpu_hour=_parsed(
            _parse_price_microusd, body.price_usd_per_gpu_hour, "price_usd_per_gpu_hour", "invalid_amount"
        ),
        gpus_min=body.gpus_min,
        max_duration_seconds=_parsed(_parse_term_seconds, body.max_duration, "max_duration", "invalid_duration"),
        available_from_ms=body.available_from_ms,
        available_until_ms=body.available_until_ms,
        paused=body.paused,
    )


def withdraw_command(account: str, node: str, request: str) -> WithdrawBid:
    """The command that takes a node off the market. Raises NotFound."""
    if not is_id(node):
        raise NotFound(f"there is no node {node[:64]} of yours")
    return WithdrawBid(account=account, node=node, request_id=request)


def read_drain_request(body: bytes) -> DrainRequest:
    """Raises MalformedMessage, Refused."""
    return _read(body, DrainRequest)


def drain_command(account: str, node: str, request: str, body: DrainRequest) -> DrainNode:
    """The command that empties a node. Raises NotFound, Refused."""
    if not is_id(node):
        raise NotFound(f"there is no node {node[:64]} of yours")
    seconds = _parsed(_parse_wait_seconds, body.deadline, "deadline", "invalid_duration")
    return DrainNode(
        account=account,
        node=node,
        request_id=request,
        reason=body.reason,
        deadline_seconds=DRAIN_SECONDS_DEFAULT if seconds is None else seconds,
    )


def resume_command(account: str, node: str, request: str) -> ResumeNode:
    """The command that ends the draining of a node. Raises NotFound."""
    if not is_id(node):
        raise NotFound(f"there is no node {node[:64]} of yours")
    return ResumeNode(account=account, node=node, request_id=request)


def read_flag(name: str, text: str | None, *, default: bool) -> bool:
    """A parameter that says `true` or `false`. Raises Refused."""
    flags = {"true": True, "false": False}
    if text is None:
        return default
    if text not in flags:
        raise Refused(_invalid_parameter(name, text, f"{name} is true or false", tuple(flags)))
    return flags[text]


def read_number(name: str, text: str | None, most: int) -> int | None:
    """A parameter that is a whole number of at least 1. Raises Refused."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX and 1 <= int(text) <= most):
        raise Refused(_invalid_parameter(name, text, f"{name} is a whole number from 1 to {most}"))
    return int(text)


def read_account(text: str) -> str:
    """The id of an account. Raises Refused."""
    if not is_id(text):
        raise Refused(_invalid_parameter("provider", text, "it is no id of an account"))
    return text


def read_model(text: str) -> str:
    """The canonical name of a GPU model. Raises Refused, with those that may be meant."""
    return resolve(text).slug


def _invalid_parameter(name: str, text: str, message: str, choices: tuple[str, ...] = ()) -> Reason:
    return Reason(code="invalid_parameter", message=message, field=name, seen=_shortened(text), choices=choices)


def _parse_price_microusd(text: str) -> int:
    """Raises ValueError, here and not at intake, so that it speaks of dollars and of the field as it was written."""
    price_microusd = parse_usd(text)
    if price_microusd <= 0:
        raise ValueError(f"{text!r} is not above zero; leave it out, or write null, for no cap")
    return price_microusd


def _parse_term_seconds(text: str) -> int:
    """A duration, or `none` for no such term, which is 0. Raises ValueError."""
    return 0 if text.strip() == NO_TERM else parse_duration_seconds(text)


def _parse_wait_seconds(text: str) -> int:
    """A duration; unlike others it may be nothing at all. Raises ValueError."""
    return 0 if text.strip() == NO_WAIT else parse_duration_seconds(text)


def _parsed(parse: Callable[[str], T], text: str | None, field: str, code: str) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except (ValueError, ArithmeticError) as error:
        message = str(error) if isinstance(error, ValueError) else f"{text!r} is out of range"
        raise Refused(Reason(code=code, message=message, field=field, seen=_shortened(text))) from error


def _invalid(problem: str) -> Reason:
    """The reason in what msgspec says, with the field that it is about."""
    place = _PLACE.search(problem)
    where = place.group(1) if place else ""
    named = _NAMED_FIELD.search(problem)
    if named is None:
        return Reason(code="invalid_field", message=problem, field=where)
    field = f"{where}.{named.group(2)}".lstrip(".")
    if named.group(1) == "missing required":
        return Reason(code="missing_field", message=problem, field=field)
    close = difflib.get_close_matches(named.group(2), _FIELDS, CHOICES_MAX)
    return Reason(
        code="unknown_field", message=problem, field=field, seen=_shortened(named.group(2)), choices=tuple(close)
    )


def _shortened(text: str) -> str:
    return text[:SEEN_CHARS_MAX]
