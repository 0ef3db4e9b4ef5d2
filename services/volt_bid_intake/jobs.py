"""Job requests and their answers.

    Absent ──RequestJob──▶ Admitted ──first gang──▶ Placed ──ReleaseJob──▶ Released
           └──(refused)──▶ Rejected    └──────────ReleaseJob───────────────▶
    Absent ──RequestQuote──▶ Quoted

A job that is Placed takes ScaleJob, which is answered in every state of a job and changes none. A job that has ended by
itself stays Placed: bid-intake does not follow clusters, and a wish that comes too late changes nothing.

The same request again gets no second event. Another one under the same id is refused, in whatever state the job is,
and changes nothing.
"""

from dataclasses import dataclass, field, replace
from typing import TypedDict

from volt.contracts.errors import Reason
from volt.contracts.ids import AccountId, JobId, RequestId, digest, job_id, quote_id
from volt.contracts.jobs import (
    JobAdmitted,
    JobRejected,
    JobReleaseAccepted,
    JobScaleAccepted,
    JobScaleRejected,
    Level,
    QuoteAdmitted,
    QuoteRejected,
    ReleaseJob,
    RequestJob,
    RequestQuote,
    ScaleJob,
)
from volt.contracts.market import Gang
from volt.contracts.messages import Asked, Event, encode
from volt_bid_intake.answers import Answers, reused
from volt_bid_intake.rules import nodes_for, specify


@dataclass(frozen=True)
class Admitted:
    """It may be matched."""

    account: str
    answers: Answers
    interconnect: Level
    scalings: Answers = field(default_factory=Answers)
    """The wishes for another size that were answered, beside the request: there may be many."""


@dataclass(frozen=True)
class Placed:
    """It has a gang, and so nodes of a size."""

    account: str
    answers: Answers
    interconnect: Level
    scalings: Answers
    gpus_per_node: int


@dataclass(frozen=True)
class Rejected:
    """It never was a job."""

    account: str
    answers: Answers


@dataclass(frozen=True)
class Released:
    """Its end was accepted."""

    account: str
    answers: Answers
    scalings: Answers


@dataclass(frozen=True)
class Quoted:
    """No job: the name of a question to the market."""

    account: str
    answers: Answers


Job = Admitted | Placed | Rejected | Released | Quoted
Jobs = dict[str, Job]


JobAnswer = (
    JobAdmitted | JobRejected | JobReleaseAccepted | JobScaleAccepted | JobScaleRejected | QuoteAdmitted | QuoteRejected
)
"""What bid-intake says of a job, or of a quote."""


def evolve_job(jobs: Jobs, event: JobAnswer) -> None:
    """Remembers an answer about a job."""
    match jobs.get(event.job), event:
        case None, JobAdmitted(spec=spec):
            jobs[event.job] = Admitted(event.account, _first(event), spec.interconnect)
        case None, JobRejected():
            jobs[event.job] = Rejected(event.account, _first(event))
        case Admitted() | Placed() | Rejected() | Released() as job, JobRejected():
            jobs[event.job] = replace(job, answers=job.answers.with_one(event.request_id, event.request_digest))
        case Admitted() | Placed() as job, JobReleaseAccepted():
            jobs[event.job] = Released(job.account, job.answers, job.scalings)
        case Admitted() | Placed() | Released() as job, JobScaleAccepted() | JobScaleRejected():
            scalings = job.scalings.with_one(event.request_id, event.request_digest)
            jobs[event.job] = replace(job, scalings=scalings)
        case None, QuoteAdmitted() | QuoteRejected():
            jobs[event.job] = Quoted(event.account, _first(event))
        case Quoted() as quoted, QuoteRejected():
            jobs[event.job] = replace(quoted, answers=quoted.answers.with_one(event.request_id, event.request_digest))
        case job, _:
            raise AssertionError(f"{type(event).__name__} of {event.job}, which is {job}")


def place_job(jobs: Jobs, gang: Gang) -> None:
    """Remembers the shape of a job's first gang; a later one has the same."""
    job = jobs.get(gang.job)
    if isinstance(job, Admitted):
        gpus_per_node = len(gang.grants[0].gpus)
        jobs[gang.job] = Placed(job.account, job.answers, job.interconnect, job.scalings, gpus_per_node)


def request_job(jobs: Jobs, command: RequestJob, asked: Asked) -> tuple[Event, ...]:
    """Admits a request or says what is wrong with it."""
    job = job_id(command.account, command.request_id)
    request_digest = digest(encode(command))
    known = jobs.get(job)
    if known is not None and known.answers.has(command.request_id, request_digest):
        return ()
    specified = specify(command) if known is None else reused(command.request_id)
    head = _head(command, job, request_digest, asked)
    if isinstance(specified, Reason):
        return (JobRejected(**head, reason=specified),)
    return (JobAdmitted(**head, spec=specified),)


def request_quote(jobs: Jobs, command: RequestQuote, asked: Asked) -> tuple[Event, ...]:
    """Lets the market be asked, or says what is wrong with the request."""
    request = command.request
    quote, request_digest = quote_id(request.account, request.request_id), digest(encode(command))
    known = jobs.get(quote)
    if known is not None and known.answers.has(request.request_id, request_digest):
        return ()
    specified = specify(request) if known is None else reused(request.request_id)
    head = _head(request, quote, request_digest, asked)
    if isinstance(specified, Reason):
        return (QuoteRejected(**head, reason=specified),)
    return (QuoteAdmitted(**head, spec=specified),)


def release_job(jobs: Jobs, command: ReleaseJob, asked: Asked) -> tuple[Event, ...] | Reason:
    """Accepts the end of a job, once; or says why there is none to end."""
    match jobs.get(command.job):
        case Admitted(account=account) | Placed(account=account) if account == command.account:
            return (
                JobReleaseAccepted(account=account, job=command.job, request_id=command.request_id, at_ms=asked.at_ms),
            )
        case Released(account=account) if account == command.account:
            return ()
        case _:
            message = f"there is no job {command.job} to release; `volt status` lists yours"
            return Reason(code="not_found", message=message, field="job", seen=command.job)


def scale_job(jobs: Jobs, command: ScaleJob, asked: Asked) -> tuple[Event, ...] | Reason:
    """Accepts another size for a job's cluster, or says what is wrong with it; or that there is no such job."""
    job = jobs.get(command.job)
    if not isinstance(job, Admitted | Placed | Released) or job.account != command.account:
        message = f"there is no job {command.job} to scale; `volt status` lists yours"
        return Reason(code="not_found", message=message, field="job", seen=command.job)
    request_digest = digest(encode(command))
    if job.scalings.has(command.request_id, request_digest):
        return ()
    # The request itself counts too: one id stands for one thing that was asked.
    is_used = job.scalings.knows(command.request_id) or job.answers.knows(command.request_id)
    nodes = reused(command.request_id) if is_used else _nodes_of(job, command)
    head = _head(command, command.job, request_digest, asked)
    if isinstance(nodes, Reason):
        return (JobScaleRejected(**head, reason=nodes),)
    return (JobScaleAccepted(**head, nodes=nodes),)


def _nodes_of(job: Admitted | Placed | Released, command: ScaleJob) -> int | Reason:
    match job:
        case Admitted():
            message = f"job {command.job} has no cluster yet; scale it once it is placed, or release it and ask anew"
            return Reason(code="not_placed", message=message, field="job", seen=command.job)
        case Released():
            message = f"job {command.job} was released; ask for a new one"
            return Reason(code="job_released", message=message, field="job", seen=command.job)
        case Placed(gpus_per_node=gpus_per_node, interconnect=interconnect):
            return nodes_for(command.count, gpus_per_node, interconnect)


class _Head(TypedDict):
    """What every answer to a request says first."""

    account: AccountId
    job: JobId
    request_id: RequestId
    at_ms: int
    request_digest: str


def _head(command: RequestJob | ScaleJob, job: JobId, request_digest: str, asked: Asked) -> _Head:
    return _Head(
        account=command.account,
        job=job,
        request_id=command.request_id,
        at_ms=asked.at_ms,
        request_digest=request_digest,
    )


def _first(event: JobAdmitted | JobRejected | QuoteAdmitted | QuoteRejected) -> Answers:
    return Answers().with_one(event.request_id, event.request_digest)
