"""What each call asks and how its answer reads. No connection is known here, so both clients share all of it."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Required, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from volt.contracts import http, http_market
from volt.contracts.bids import Tier
from volt.contracts.errors import (
    MalformedMessage,
    NotFound,
    Reason,
    Refused,
    Unauthorized,
    Unavailable,
    VoltError,
)
from volt.contracts.gpus import Interface
from volt.contracts.jobs import Level, OnLoss, WorkloadKind

ERROR_TEXT_CHARS_MAX = 500

_KINDS: Mapping[int, type[VoltError]] = {
    401: Unauthorized,
    404: NotFound,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}

T = TypeVar("T")


class GatewayUnreachable(Unavailable):
    """The gateway could not be reached, or the connection broke; what was sent may or may not have arrived."""

    code = "gateway_unreachable"


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request. Every call can be sent again: what makes something carries the key that makes it once."""

    method: str
    path: str
    answer: type[T]
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reads_unavailable: bool = False
    """The answer of 503 is an answer, too."""

    def read(self, status: int, body: bytes) -> T:
        """The answer in a response. Raises the error that it tells of, or MalformedMessage."""
        if not 200 <= status < 300 and not (status == 503 and self.reads_unavailable):
            raise error_in(status, body)
        try:
            return msgspec.json.decode(body, type=self.answer)
        except msgspec.DecodeError as error:
            text = f"the gateway answered {self.method} {self.path} with what this version cannot read: {error}"
            raise MalformedMessage("unreadable_answer", text) from error


def unreachable(url: str, error: Exception) -> str:
    """What to say when nobody answers."""
    return f"no gateway at {url} ({error!r}); is its control plane running? `volt up` starts one"


def error_in(status: int, body: bytes) -> VoltError:
    """The error that a response tells of, as the gateway meant it."""
    try:
        told = msgspec.json.decode(body, type=http.ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body[:ERROR_TEXT_CHARS_MAX].decode(errors="replace")
        told = http.ErrorBody(code=f"http_{status}", message=f"the gateway answered {status}: {text}")
    if status in (409, 413, 422, 429):
        return Refused(
            Reason(code=told.code, message=told.message, field=told.field, seen=told.seen, choices=told.choices)
        )
    if status == 400:
        return MalformedMessage(told.code, told.message)
    kind = _KINDS.get(status, VoltError)
    error = kind(told.message)
    error.code = told.code
    return error


class JobTerms(TypedDict, total=False):
    """What a job asks for, as in `volt.contracts.jobs.RequestJob`; what is left out is as there.

    `gpu` may name several models, any of which will do. Prices are decimal strings such as `"2.50"`, durations such as
    `"1h30m"`; None is no limit. `max_wait` may be `"0s"`, for an answer now.
    """

    gpu: Required[str | Sequence[str]]
    count: Required[int]
    command: Required[Sequence[str]]
    kind: WorkloadKind
    image: str
    env: Mapping[str, str] | None
    nodes: int | None
    processes_per_node: int | None
    interconnect: Level | None
    preferred_interconnect: Level | None
    preference_percent: int
    min_bandwidth_gbps: int
    interface: Interface | None
    regions: Sequence[str]
    regions_denied: Sequence[str]
    countries: Sequence[str]
    countries_denied: Sequence[str]
    min_memory_mib: int
    min_reliability_permille: int
    tier: Tier | None
    providers_excluded: Sequence[str]
    max_price_usd_per_gpu_hour: str | None
    max_duration: str | None
    max_wait: str | None
    on_loss: OnLoss
    min_nodes: int
    retries: int


def create_job(*, idempotency_key: str | None = None, **terms: Unpack[JobTerms]) -> Call[http.Job]:
    """Asks for `count` GPUs that run `command`, and returns the job as soon as it is admitted.

    A call that is repeated with the same `idempotency_key` makes no second job; without one each call has its own,
    which its retries share. A job that is not answered in time comes back in state `requested`. Raises Refused with the
    reason, Unauthorized, Unavailable.
    """
    return _posting(http.JOBS_PATH, http.Job, _job_request(terms), idempotency_key)


def ask_quote(**terms: Unpack[JobTerms]) -> Call[http_market.Quote]:
    """Asks what a job would get now: the nodes and the price, or why none. Nothing is held. Raises as `create_job`."""
    return _posting(http_market.QUOTES_PATH, http_market.Quote, _job_request(terms))


def scale_job(job: str, count: int, *, idempotency_key: str | None = None) -> Call[http.Job]:
    """Makes a running cluster larger or smaller, to `count` GPUs in all. Raises NotFound, Refused and the others."""
    return _posting(job_path(job) + "/scale", http.Job, http.ScaleRequest(count=count), idempotency_key)


def list_bids() -> Call[http_market.BidList]:
    """What the account's own nodes offer, those too that are withdrawn."""
    return Call(method="GET", path=http_market.BIDS_PATH, answer=http_market.BidList)


def change_bid(
    node: str,
    *,
    gpu: str | None = None,
    offer: bool = False,
    price_usd_per_gpu_hour: str | None = None,
    gpus_min: int | None = None,
    max_duration: str | None = None,
    available_from_ms: int | None = None,
    available_until_ms: int | None = None,
    paused: bool | None = None,
    idempotency_key: str | None = None,
) -> Call[http_market.BidList]:
    """Changes what one of the account's nodes offers, of one model or all; running leases keep their terms.

    `offer` puts a withdrawn node back on the market. A `max_duration` of `"none"`, and an instant of 0, take that term
    away; None leaves one as it is. Raises NotFound, Refused with the reason, and the others.
    """
    change = http_market.BidChange(
        gpu=gpu,
        offer=offer,
        price_usd_per_gpu_hour=price_usd_per_gpu_hour,
        gpus_min=gpus_min,
        max_duration=max_duration,
        available_from_ms=available_from_ms,
        available_until_ms=available_until_ms,
        paused=paused,
    )
    return _posting(_node_path(node), http_market.BidList, change, idempotency_key)


def withdraw_bid(node: str) -> Call[http_market.BidList]:
    """Takes one of the account's nodes off the market; running leases go on. Raises NotFound and the others."""
    headers = {http.IDEMPOTENCY_HEADER: uuid.uuid4().hex}
    return Call(method="DELETE", path=_node_path(node), answer=http_market.BidList, headers=headers)


def list_nodes() -> Call[http_market.NodeList]:
    """The account's own nodes, and which of them are drained."""
    return Call(method="GET", path=http_market.NODES_PATH, answer=http_market.NodeList)


def drain_node(node: str, *, reason: str = "", deadline: str | None = None) -> Call[http_market.NodeList]:
    """Empties one of the account's nodes: it gets no new leases, and those that it has move to other nodes.

    By `deadline`, a duration such as `"30m"`, what has not moved ends on it. Raises NotFound, Refused and the others.
    """
    request = http_market.DrainRequest(reason=reason, deadline=deadline)
    return _posting(f"{http_market.NODES_PATH}/{_segment(node, 'node')}/drain", http_market.NodeList, request)


def resume_node(node: str) -> Call[http_market.NodeList]:
    """Ends the draining of one of the account's nodes. Raises NotFound and the others."""
    headers = {http.IDEMPOTENCY_HEADER: uuid.uuid4().hex}
    path = f"{http_market.NODES_PATH}/{_segment(node, 'node')}/resume"
    return Call(method="POST", path=path, answer=http_market.NodeList, headers=headers)


def get_market(gpu: str) -> Call[http_market.Market]:
    """The market of one model: best ask, depth by price, and the last clearing prices. Raises Refused for a model
    that is unknown or ambiguous."""
    path = f"{http_market.MARKET_PATH}/{quote(gpu, safe='')}"
    return Call(method="GET", path=path, answer=http_market.Market)


def provider_reliability(provider: str | None = None) -> Call[http_market.ProviderReliability]:
    """How far a provider's nodes can be relied on, and why; the account's own if none is named."""
    params = {} if provider is None else {"provider": provider}
    return Call(
        method="GET",
        path=http_market.RELIABILITY_PATH,
        answer=http_market.ProviderReliability,
        params=params,
    )


def _job_request(terms: JobTerms) -> http.JobRequest:
    gpu = terms["gpu"]
    known = {name: value for name, value in terms.items() if name in _CONSTRAINTS}
    constraints = msgspec.convert(known, http.ConstraintsRequest)
    return http.JobRequest(
        gpu=gpu if isinstance(gpu, str) else tuple(gpu),
        count=terms["count"],
        nodes=terms.get("nodes"),
        workload=http.WorkloadRequest(
            command=tuple(terms["command"]),
            kind=terms.get("kind", "ddp"),
            image=terms.get("image", ""),
            env=dict(terms.get("env") or {}),
            processes_per_node=terms.get("processes_per_node"),
        ),
        constraints=constraints,
        recovery=http.RecoveryRequest(
            on_loss=terms.get("on_loss", "replace"),
            min_nodes=terms.get("min_nodes", 1),
            retries=terms.get("retries", 0),
        ),
        max_price_usd_per_gpu_hour=terms.get("max_price_usd_per_gpu_hour"),
        max_duration=terms.get("max_duration"),
        max_wait=terms.get("max_wait"),
    )


_CONSTRAINTS = frozenset(field.name for field in msgspec.structs.fields(http.ConstraintsRequest))


def _posting(path: str, answer: type[T], body: http.Request, idempotency_key: str | None = None) -> Call[T]:
    """Raises Refused if there is something in the body that is no text."""
    headers = {"Content-Type": "application/json", http.IDEMPOTENCY_HEADER: idempotency_key or uuid.uuid4().hex}
    try:
        return Call(method="POST", path=path, answer=answer, headers=headers, body=msgspec.json.encode(body))
    except UnicodeEncodeError as error:
        message = f"bytes that are no UTF-8 text cannot be sent: {error.reason}"
        raise Refused(Reason(code="not_text", message=message)) from error


def _node_path(node: str) -> str:
    return f"{http_market.BIDS_PATH}/{_segment(node, 'node')}"


def get_job(job: str) -> Call[http.Job]:
    """The job as it is now. Raises NotFound, Unauthorized, Unavailable."""
    return Call(method="GET", path=job_path(job), answer=http.Job)


def list_jobs(*, limit: int | None = None, before: int | None = None) -> Call[http.JobList]:
    """A page of the account's jobs, the newest first; `before` is the `next_before` of the page above it."""
    params = {name: str(value) for name, value in (("limit", limit), ("before", before)) if value is not None}
    return Call(method="GET", path=http.JOBS_PATH, answer=http.JobList, params=params)


def release_job(job: str) -> Call[http.Job]:
    """Ends a job, in whatever state it is: its bill stops at the accepted release. Raises NotFound and the others.

    A job that is released already is returned as it is. One in state `requested` means that the release was handed
    over and is not accepted yet.
    """
    return Call(method="DELETE", path=job_path(job), answer=http.Job)


def job_bill(job: str) -> Call[http.Bill]:
    """What the job owes so far, lease by lease. Raises NotFound, Unauthorized, Unavailable."""
    return Call(method="GET", path=job_path(job) + "/bill", answer=http.Bill)


def job_checkpoints(job: str) -> Call[http.CheckpointList]:
    """The job's committed checkpoints, the newest first. Raises NotFound, Unauthorized, Unavailable."""
    return Call(method="GET", path=job_path(job) + "/checkpoints", answer=http.CheckpointList)


def list_offers(*, gpu: str | None = None, region: str | None = None) -> Call[http.OfferList]:
    """Live supply, the cheapest first, of one model and in one region if they are given."""
    params = {name: value for name, value in (("gpu", gpu), ("region", region)) if value is not None}
    return Call(method="GET", path=http.OFFERS_PATH, answer=http.OfferList, params=params)


def get_balance() -> Call[http.Balance]:
    """The account's money: in the wallet, on hold, pending and earned."""
    return Call(method="GET", path=http.BALANCE_PATH, answer=http.Balance)


def get_statement() -> Call[http.Statement]:
    """The last movements of the account's money, the newest first."""
    return Call(method="GET", path=http.STATEMENT_PATH, answer=http.Statement)


def get_health() -> Call[http.Health]:
    """Whether the gateway's bus and views are live, and which of them is not."""
    return Call(method="GET", path=http.HEALTH_PATH, answer=http.Health, reads_unavailable=True)


def job_path(job: str) -> str:
    """The path of a job, whatever somebody may take for its id. Raises NotFound for what can be none."""
    return f"{http.JOBS_PATH}/{_segment(job, 'job')}"


def _segment(name: str, kind: str) -> str:
    if name in ("", ".", ".."):
        raise NotFound(f"{name!r} is no id of a {kind}")
    return quote(name, safe="")
