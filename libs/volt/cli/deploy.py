"""`volt deploy`, `scale`, `wait`: a cluster from its request to its end."""

import sys
import uuid
from pathlib import Path

import click
from rich.text import Text

from volt.cli.asking import job_options, terms_of
from volt.cli.jobs import ENDED, READY_EVENT, ending, newest, show_waiting
from volt.cli.shared import EXIT_FAILED, EXIT_INTERRUPTED, client, data_option, err, json_option, out, print_json
from volt.cli.suggesting import release_command
from volt.cli.tables import table
from volt.contracts.errors import Unavailable
from volt.contracts.http import Job, JobHappening
from volt.contracts.http_market import Quote
from volt.sdk import Client
from volt.sdk.calls import JobTerms

EXIT_ENDED_EARLY = 7
"""The job came to an end that is neither its workload's nor wanted."""
CODE_MAX = 255
SCALE_EVENT = "JobScaleAccepted"
SCALED_EVENTS = frozenset({SCALE_EVENT, READY_EVENT, "GrowthGivenUp", "MemberEnded"})
"""After these a job may have the size that was wished for, or may never have it."""


@click.command(context_settings={"allow_interspersed_args": False})
@data_option
@job_options
@click.option("--request-id", help="Asking again with the same one makes no second job.")
@click.option("--dry-run", is_flag=True, help="Only say what it would get now, and at what price.")
@click.option("--detach", is_flag=True, help="Return as soon as the request is admitted.")
@json_option
@click.argument("command", nargs=-1, required=True)
def deploy(
    data: Path | None,
    request_id: str | None,
    dry_run: bool,
    detach: bool,
    as_json: bool,
    command: tuple[str, ...],
    **options: object,
) -> None:
    """Ask for a cluster that runs COMMAND, and wait until it is ready.

    It runs in the folder that the node's agent was told (`volt agent run --workdir`), with what is there.
    """
    terms = terms_of(options, command)
    with client(data) as market:
        if dry_run:
            _show_quote(market.jobs.quote(**terms), terms, data, as_json=as_json)
            return
        job = _created(market, terms, request_id or uuid.uuid4().hex)
        if not as_json:
            click.echo(job.id)
        if not detach:
            job = _until_ready(market, job, data)
        if as_json:
            print_json(job)
        if job.state in ENDED and job.release_reason != "completed":
            err.print(Text(f"the job ended: {ending(job)}", style="red"))
            sys.exit(EXIT_FAILED)


@click.command()
@data_option
@click.option("--count", type=int, required=True, help="GPUs in all, on nodes of the size that the cluster has.")
@click.option("--detach", is_flag=True, help="Return as soon as the wish is accepted.")
@json_option
@click.argument("job", required=False)
def scale(data: Path | None, count: int, detach: bool, as_json: bool, job: str | None) -> None:
    """Make a running cluster larger or smaller, and wait until it is; the newest running one without JOB.

    It runs on as it is until the nodes that it grows by are prepared; then, or at once to become smaller, its processes
    end with SIGTERM and start again on all of its nodes. The highest ranks leave. The last wish counts.
    """
    with client(data) as market:
        scaled = market.jobs.scale(job or newest(market, running=True).id, count)
        if not detach and scaled.state != "requested":
            scaled = _until_scaled(market, scaled)
    if as_json:
        print_json(scaled)
    elif detach or scaled.state == "requested":
        err.print(f"{scaled.id} is to have {count} GPUs; `volt status {scaled.id}` shows how far it is")
    if scaled.state in ENDED or not (detach or _is_scaled(scaled)):
        err.print(Text(f"not scaled: {ending(scaled) if scaled.state in ENDED else 'it stays as it is'}", style="red"))
        sys.exit(EXIT_FAILED)


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def wait(data: Path | None, as_json: bool, job: str | None) -> None:
    """Wait until a job has ended, the newest one without JOB, and exit as it did.

    0 for one that is completed or was released, the workload's own exit code for one that failed, 7 for any other end.
    """
    with client(data) as market:
        name = job or newest(market).id
        try:
            ended = market.jobs.wait(name)
        except KeyboardInterrupt:
            err.print(f"not waited for; {name} goes on")
            sys.exit(EXIT_INTERRUPTED)
    if as_json:
        print_json(ended)
    err.print(Text(f"{ended.id} has ended: {ending(ended)}"))
    sys.exit(_exit_code(ended))


def _exit_code(job: Job) -> int:
    if job.release_reason in ("completed", "released") or job.release_accepted_at_ms is not None:
        return 0
    if job.release_reason == "workload_failed":
        return min(job.exit_code or EXIT_FAILED, CODE_MAX)
    return EXIT_ENDED_EARLY


def _created(market: Client, terms: JobTerms, key: str) -> Job:
    """The job, or how to find out whether there is one."""
    again = f"the job may be there all the same: the same command with --request-id {key} asks for it again"
    try:
        return market.jobs.create(idempotency_key=key, **terms)
    except KeyboardInterrupt:
        err.print(f"\nnot waited for; {again}")
        sys.exit(EXIT_INTERRUPTED)
    except Unavailable:
        err.print(again)
        raise


def _until_scaled(market: Client, job: Job) -> Job:
    """The job once it has the size that was wished for last, or will not have it."""
    wished_seq = max(
        (one.seq for one in market.jobs.events(job.id, follow=False) if one.event == SCALE_EVENT), default=0
    )
    try:
        for happening in market.jobs.events(job.id):
            if happening.seq < wished_seq:
                continue
            _tell(happening)
            if happening.event in SCALED_EVENTS:
                job = market.jobs.get(job.id)
                if _is_scaled(job) or job.nodes_wanted is None:
                    return job
    except KeyboardInterrupt:
        err.print(f"\ndetached; {job.id} goes on, and is scaled when it can be")
        sys.exit(EXIT_INTERRUPTED)
    return market.jobs.get(job.id)


def _is_scaled(job: Job) -> bool:
    return job.state == "ready" and len([one for one in job.members if one.state == "started"]) == job.nodes_wanted


def _tell(happening: JobHappening) -> None:
    whose = "" if happening.node in happening.message else f"{happening.node}: "
    err.print(Text(f"  {whose}{happening.message}"))


def _until_ready(market: Client, job: Job, data: Path | None) -> Job:
    try:
        for happening in market.jobs.events(job.id):
            _tell(happening)
            if happening.event == READY_EVENT:
                break
    except KeyboardInterrupt:
        err.print(f"\ndetached; {job.id} goes on, and costs from when it is ready. To stop it:")
        err.print(Text(release_command(job.id, data)))
        sys.exit(EXIT_INTERRUPTED)
    return market.jobs.get(job.id)


def _show_quote(quote: Quote, terms: JobTerms, data: Path | None, *, as_json: bool) -> None:
    """The plan on stdout; exits 1 if nothing would be granted now, 5 if the market did not answer."""
    if quote.price_usd_per_gpu_hour is None and quote.waiting is None:
        raise Unavailable("the market did not answer in time; ask again")
    if as_json:
        print_json(quote)
    elif quote.waiting is not None:
        show_waiting(quote.waiting, terms, data=data)
    else:
        gpus = sum(node.gpus for node in quote.nodes)
        where = f" in {quote.domain}" if quote.domain else ""
        out.print(Text(f"{gpus} x {quote.gpu} at ${quote.price_usd_per_gpu_hour} per GPU-hour{where}"))
        rows = [(str(one.rank), one.node, one.provider, str(one.gpus)) for one in quote.nodes]
        out.print(table(("rank", "node", "provider", "GPUs"), rows, right=frozenset({"GPUs"})))
    if quote.waiting is not None:
        sys.exit(EXIT_FAILED)
