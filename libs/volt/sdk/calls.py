"""What each call asks and how its answer reads. No connection is known here, so both clients share all of it."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote

import msgspec

from volt.contracts import http
from volt.contracts.errors import (
    MalformedMessage,
    NotFound,
    Reason,
    Refused,
    Unauthorized,
    Unavailable,
    VoltError,
)
from volt.contracts.jobs import Level, WorkloadKind

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


def create_job(
    *,
    gpu: str | Sequence[str],
    count: int,
    command: Sequence[str],
    kind: WorkloadKind = "ddp",
    image: str = "",
    env: Mapping[str, str] | None = None,
    nodes: int | None = None,
    processes_per_node: int | None = None,
    interconnect: Level | None = None,
    regions: Sequence[str] = (),
    regions_denied: Sequence[str] = (),
    min_memory_mib: int = 0,
    max_price_usd_per_gpu_hour: str | None = None,
    max_duration: str | None = None,
    idempotency_key: str | None = None,
) -> Call[http.Job]:
    """Asks for `count` GPUs that run `command`, and returns the job as soon as it is admitted.

    `max_price_usd_per_gpu_hour` is a decimal string such as `"2.50"` and `max_duration` one such as `"1h30m"`; None
    is no limit. `gpu` may name several models, any of which will do. A call that is repeated with the same
    `idempotency_key` makes no second job; without one each call has its own, which its retries share. A job that is
    not answered in time comes back in state `requested`. Raises Refused with the reason, Unauthorized, Unavailable.
    """
    body = http.JobRequest(
        gpu=gpu if isinstance(gpu, str) else tuple(gpu),
        count=count,
        nodes=nodes,
        workload=http.WorkloadRequest(
            command=tuple(command),
            kind=kind,
            image=image,
            env=dict(env or {}),
            processes_per_node=processes_per_node,
        ),
        constraints=http.ConstraintsRequest(
            interconnect=interconnect,
            regions=tuple(regions),
            regions_denied=tuple(regions_denied),
            min_memory_mib=min_memory_mib,
        ),
        max_price_usd_per_gpu_hour=max_price_usd_per_gpu_hour,
        max_duration=max_duration,
    )
    headers = {"Content-Type": "application/json", http.IDEMPOTENCY_HEADER: idempotency_key or uuid.uuid4().hex}
    return Call(method="POST", path=http.JOBS_PATH, answer=http.Job, headers=headers, body=msgspec.json.encode(body))


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
    if job in ("", ".", ".."):
        raise NotFound(f"{job!r} is no id of a job")
    return f"{http.JOBS_PATH}/{quote(job, safe='')}"
