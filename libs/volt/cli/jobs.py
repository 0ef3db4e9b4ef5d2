"""`volt status`, `logs`, `release`, `explain`: a buyer's jobs."""

import shlex
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click
from rich.text import Text

from volt.cli.shared import client, data_option, err, json_option, out, print_json
from volt.cli.suggesting import deploy_command, release_command, terms_of_shape
from volt.cli.tables import table
from volt.contracts.errors import NotFound
from volt.contracts.http import PAGE_JOBS_MAX, Job, JobMember, JobWaiting
from volt.sdk import Client, with_alternative
from volt.sdk.calls import JobTerms

ENDED = frozenset({"rejected", "unfunded", "expired", "released", "closed"})
NO_JOB = "there is no job yet; `volt deploy` makes one"
PAGES_MAX = 50
ENDED_SHOWN_MAX = 10
CLOSED_SECONDS_MAX = 5.0
CLOSED_POLL_SECONDS = 0.2
READY_EVENT = "ClusterReady"

_NOT_YET = {
    "requested": "nobody has answered the request yet",
    "admitted": "its first hour is being put on hold",
    "funded": "the market is asked next",
}


@click.command()
@data_option
@click.option("--all", "everything", is_flag=True, help="Those too that ended long ago.")
@json_option
@click.argument("job", required=False)
def status(data: Path | None, everything: bool, job: str | None, as_json: bool) -> None:
    """Your jobs that have not ended and the last that have, or one JOB in full."""
    with client(data) as market:
        if job is not None:
            found = market.jobs.get(job)
            if as_json:
                print_json(found)
            else:
                _show(found)
            return
        listed = _shown(_every_job(market), everything=everything)
        if held := market.health().losses_held:
            err.print(f"losses are held: {held}")
    if as_json:
        print_json(listed)
        return
    if not listed:
        err.print(NO_JOB)
    rows = [
        (one.id, one.state, str(one.generation), _shape(one), one.price_usd_per_gpu_hour or "", one.posted_usd)
        for one in listed
    ]
    columns = ("job", "state", "gen", "shape", "$/GPU-hour", "posted $")
    out.print(table(columns, rows, right=frozenset({"gen", "$/GPU-hour", "posted $"})))
    for one in listed:
        if note := _note(one):
            out.print(Text(f"{one.id}  {note}", style="dim"))


@click.command()
@data_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", type=int, help="Only the lines of this process, by its RANK.")
@click.argument("job", required=False)
def logs(data: Path | None, follow: bool, rank: int | None, job: str | None) -> None:
    """What the job's processes write, each line behind [generation.rank]; the newest job's that has run without JOB."""
    with client(data) as market:
        found = market.jobs.get(job) if job else _newest_that_ran(market)
        if found.granted_at_ms is None:
            _say_nothing_yet(found)
            if not follow or found.state in ENDED:
                return
        generation = 0
        for output in market.jobs.logs(found.id, follow=follow):
            for line in output.lines:
                if line.generation > generation > 0:
                    err.print(f"generation {line.generation} begins")
                generation = max(generation, line.generation)
                if rank in (None, line.rank):
                    prefix = f"[{line.generation}.{line.rank}] "
                    click.echo(prefix + line.text, err=line.stream == "err")
    if generation == 0 and found.granted_at_ms is not None:
        _say_nothing_yet(found)


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def release(data: Path | None, job: str | None, as_json: bool) -> None:
    """End a job that runs or waits, the newest that has not ended without JOB; its bill stops at once."""
    with client(data) as market:
        released = market.jobs.release(job or newest(market, running=True).id)
        released = _closed(market, released)
    if as_json:
        print_json(released)
    elif released.state == "released":
        again = f"`volt status {released.id}` shows what it cost once its last bill is there"
        err.print(f"{released.id} is released and costs nothing from here on; {again}")
    elif released.state == "requested":
        err.print(f"the release of {released.id} is handed over and not answered yet; `volt status` shows it")
    else:
        err.print(Text(f"{released.id} is {released.state}, {ending(released)}; it cost ${released.posted_usd}"))


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def explain(data: Path | None, job: str | None, as_json: bool) -> None:
    """Why a job waits, and what would clear now; the newest job without JOB."""
    with client(data) as market:
        found = market.jobs.get(job or newest(market).id)
    if as_json:
        print_json(found.waiting)
    elif found.waiting is None:
        err.print(f"{found.id} does not wait: it is {found.state}")
    else:
        terms = terms_of_shape(found.shape) if found.shape is not None and found.state not in ENDED else None
        show_waiting(found.waiting, terms, release_first=found.id, data=data)


def _every_job(market: Client) -> Iterator[Job]:
    """The account's jobs, the newest first, a page at a time as they are wanted."""
    before: int | None = None
    for _ in range(PAGES_MAX):
        page = market.jobs.list(limit=PAGE_JOBS_MAX, before=before)
        yield from page.jobs
        before = page.next_before
        if before is None:
            return
    err.print(f"there are more than {PAGES_MAX * PAGE_JOBS_MAX} jobs; the oldest are passed over")


def _shown(jobs: Iterator[Job], *, everything: bool) -> list[Job]:
    shown, ended = [], 0
    for job in jobs:
        ended += job.state in ENDED
        if everything or job.state not in ENDED or ended <= ENDED_SHOWN_MAX:
            shown.append(job)
    return shown


def _newest_that_ran(market: Client) -> Job:
    """The newest job that was granted a cluster; the newest of all if none was."""
    latest = newest(market)
    ran = next((job for job in _every_job(market) if job.granted_at_ms is not None), latest)
    if ran.id != latest.id:
        err.print(Text(f"{latest.id}, the newest, has not run: it is {latest.state}; this is {ran.id}"))
    return ran


def _say_nothing_yet(job: Job) -> None:
    why = _note(job) or _NOT_YET.get(job.state, "")
    err.print(Text(f"{job.id} has written nothing: it is {job.state}" + (f"; {why}" if why else "")))


def _closed(market: Client, job: Job) -> Job:
    """The job once its last bill is posted; as it is if that takes long."""
    until = time.monotonic() + CLOSED_SECONDS_MAX
    while job.state == "released" and time.monotonic() < until:
        time.sleep(CLOSED_POLL_SECONDS)
        job = market.jobs.get(job.id)
    return job


def newest(market: Client, *, running: bool = False) -> Job:
    for job in _every_job(market):
        if not running or job.state not in ENDED:
            return job
    raise NotFound("there is no running job" if running else NO_JOB)


def _shape(job: Job) -> str:
    if job.shape is None:
        return ""
    models = " or ".join(job.shape.models)
    if job.nodes_wanted is not None and job.members:
        per_node = len(job.members[0].gpus)
        change = f", to be {job.nodes_wanted}" if job.nodes_wanted != len(job.members) else ""
        return f"{len(job.members)} x {per_node} {models}{change}"
    if job.shape.nodes is None:
        return f"{job.shape.gpus} {models}"
    return f"{job.shape.nodes} x {job.shape.gpus // job.shape.nodes} {models}"


def _note(job: Job) -> str:
    if job.waiting is not None and job.state not in ENDED:
        return job.waiting.message
    if job.retry_at_ms is not None and job.state not in ENDED:
        instant = datetime.fromtimestamp(job.retry_at_ms / 1000).astimezone()
        return f"begins again at {instant.isoformat(timespec='seconds')}, costs nothing until then: {job.first_cause}"
    return ending(job) if job.state in ENDED else ""


def ending(job: Job) -> str:
    if job.reason is not None:
        return job.reason.message
    words: list[str] = [job.release_reason or ("released" if job.release_accepted_at_ms is not None else job.state)]
    if job.exit_code:
        words.append(f"exit code {job.exit_code}")
    return ", ".join([*words, job.first_cause] if job.first_cause else words)


def _show(job: Job) -> None:
    facts = [
        ("job", job.id),
        ("state", job.state),
        ("shape", _shape(job)),
        ("command", shlex.join(job.shape.command) if job.shape else ""),
        ("generation", str(job.generation)),
        ("price", f"${job.price_usd_per_gpu_hour} per GPU-hour" if job.price_usd_per_gpu_hour else ""),
        ("cap", f"${job.cap_usd_per_gpu_hour} per GPU-hour" if job.cap_usd_per_gpu_hour else ""),
        ("posted", f"${job.posted_usd}"),
        ("note", _note(job)),
    ]
    for name, value in facts:
        if value:
            out.print(Text(f"{name:11} {value}"))
    if job.members:
        out.print(table(("rank", "node", "lease", "state", "address", "$ per GPU-hour"), map(_member_row, job.members)))
    if job.waiting is not None and job.state not in ENDED:
        show_waiting(job.waiting)


def _member_row(member: JobMember) -> tuple[str, ...]:
    return (
        str(member.rank),
        member.node,
        member.lease,
        member.state,
        member.address,
        member.price_usd_per_gpu_hour,
    )


def show_waiting(
    waiting: JobWaiting, terms: JobTerms | None = None, *, release_first: str = "", data: Path | None = None
) -> None:
    """Why it waits, and what would clear; with the terms that were asked for, the command that asks for that."""
    missing = "no supply at this price exists" if waiting.binding == "price" else "no such supply exists"
    kind = f"infeasible: {missing}" if waiting.infeasible else "no capacity now"
    out.print(Text(f"{kind}; {waiting.binding}: {waiting.message}"))
    if waiting.queue_position is not None:
        out.print(Text(f"number {waiting.queue_position} of those that wait for this model"))
    rows = [(step.filter, str(step.seen), str(step.kept)) for step in waiting.funnel]
    out.print(table(("filter", "nodes seen", "kept"), rows, right=frozenset({"nodes seen", "kept"})))
    for alternative in waiting.alternatives:
        price = alternative.price_usd_per_gpu_hour
        out.print(Text(f"would clear now: {alternative.change}: {alternative.gpus} GPUs at ${price} per GPU-hour"))
        if terms is not None:
            asking = deploy_command(with_alternative(terms, alternative), data)
            first = f"{release_command(release_first, data)} && " if release_first else ""
            out.print(Text(f"  {first}{asking}"), soft_wrap=True)
