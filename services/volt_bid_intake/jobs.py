"""Job requests and their answers.

    Absent ──RequestJob──▶ Admitted ──ReleaseJob──▶ Released
           └──(refused)──▶ Rejected
    Absent ──RequestQuote──▶ Quoted

The same request again gets no second event. Another one under the same id is refused, in whatever state the job is,
and changes nothing.
"""

from dataclasses import dataclass, replace

from volt.contracts.errors import Reason
from volt.contracts.ids import digest, job_id, quote_id
from volt.contracts.jobs import (
    JobAdmitted,
    JobRejected,
    JobReleaseAccepted,
    QuoteAdmitted,
    QuoteRejected,
    ReleaseJob,
    RequestJob,
    RequestQuote,
)
from volt.contracts.messages import Asked, Event, encode
from volt_bid_intake.answers import Answers, reused
from volt_bid_intake.rules import specify


@dataclass(frozen=True)
class Admitted:
    """It may be matched."""

    account: str
    answers: Answers


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


@dataclass(frozen=True)
class Quoted:
    """No job: the name of a question to the market."""

    account: str
    answers: Answers


Job = Admitted | Rejected | Released | Quoted
Jobs = dict[str, Job]


JobAnswer = JobAdmitted | JobRejected | JobReleaseAccepted | QuoteAdmitted | QuoteRejected
"""What bid-intake says of a job, or of a quote."""


def evolve_job(jobs: Jobs, event: JobAnswer) -> None:
    """Remembers an answer about a job."""
    match jobs.get(event.job), event:
        case None, JobAdmitted():
            jobs[event.job] = Admitted(event.account, _first(event))
        case None, JobRejected():
            jobs[event.job] = Rejected(event.account, _first(event))
        case Admitted() | Rejected() | Released() as job, JobRejected():
            jobs[event.job] = replace(job, answers=job.answers.with_one(event.request_id, event.request_digest))
        case Admitted(account, answers), JobReleaseAccepted():
            jobs[event.job] = Released(account, answers)
        case None, QuoteAdmitted() | QuoteRejected():
            jobs[event.job] = Quoted(event.account, _first(event))
        case Quoted() as quoted, QuoteRejected():
            jobs[event.job] = replace(quoted, answers=quoted.answers.with_one(event.request_id, event.request_digest))
        case job, _:
            raise AssertionError(f"{type(event).__name__} of {event.job}, which is {job}")


def request_job(jobs: Jobs, command: RequestJob, asked: Asked) -> tuple[Event, ...]:
    """Admits a request or says what is wrong with it."""
    job = job_id(command.account, command.request_id)
    request_digest = digest(encode(command))
    known = jobs.get(job)
    if known is not None and known.answers.has(command.request_id, request_digest):
        return ()
    specified = specify(command) if known is None else reused(command.request_id)
    if isinstance(specified, Reason):
        return (
            JobRejected(
                account=command.account,
                job=job,
                request_id=command.request_id,
                at_ms=asked.at_ms,
                request_digest=request_digest,
                reason=specified,
            ),
        )
    return (
        JobAdmitted(
            account=command.account,
            job=job,
            request_id=command.request_id,
            at_ms=asked.at_ms,
            request_digest=request_digest,
            spec=specified,
        ),
    )


def request_quote(jobs: Jobs, command: RequestQuote, asked: Asked) -> tuple[Event, ...]:
    """Lets the market be asked, or says what is wrong with the request."""
    request = command.request
    quote, request_digest = quote_id(request.account, request.request_id), digest(encode(command))
    known = jobs.get(quote)
    if known is not None and known.answers.has(request.request_id, request_digest):
        return ()
    specified = specify(request) if known is None else reused(request.request_id)
    if isinstance(specified, Reason):
        return (
            QuoteRejected(
                account=request.account,
                job=quote,
                request_id=request.request_id,
                at_ms=asked.at_ms,
                request_digest=request_digest,
                reason=specified,
            ),
        )
    return (
        QuoteAdmitted(
            account=request.account,
            job=quote,
            request_id=request.request_id,
            at_ms=asked.at_ms,
            request_digest=request_digest,
            spec=specified,
        ),
    )


def release_job(jobs: Jobs, command: ReleaseJob, asked: Asked) -> tuple[Event, ...] | Reason:
    """Accepts the end of a job, once; or says why there is none to end."""
    match jobs.get(command.job):
        case Admitted(account=account) if account == command.account:
            return (
                JobReleaseAccepted(account=account, job=command.job, request_id=command.request_id, at_ms=asked.at_ms),
            )
        case Released(account=account) if account == command.account:
            return ()
        case _:
            message = f"there is no job {command.job} to release; `volt status` lists yours"
            return Reason(code="not_found", message=message, field="job", seen=command.job)


def _first(event: JobAdmitted | JobRejected | QuoteAdmitted | QuoteRejected) -> Answers:
    return Answers().with_one(event.request_id, event.request_digest)
