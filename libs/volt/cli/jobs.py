"""`volt deploy`, `status`, `logs`, `release`, `explain`: a buyer's jobs."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from volt.cli.shared import EXIT_FAILED, client, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.errors import NotFound, Reason, Refused
from volt.contracts.http import Job, JobMember, JobWaiting
from volt.contracts.jobs import Level, WorkloadKind
from volt.sdk import Client

KINDS: tuple[WorkloadKind, ...] = ("ddp", "fsdp", "ray", "service", "sweep", "batch", "inference")
LEVELS: tuple[Level, ...] = ("fabric", "site", "region", "any")
JOBS_SHOWN_MAX = 20
ENDED = frozenset({"rejected", "unfunded", "released", "closed"})
READY_EVENT = "ClusterReady"
EXIT_INTERRUPTED = 130


@click.command(context_settings={"allow_interspersed_args": False})
@data_option
@click.option("--gpu", "gpus", required=True, multiple=True, help="A GPU model; several mean that any of them will do.")
@click.option("--count", type=int, required=True, help="GPUs in all.")
@click.option("--nodes", type=int, help="Nodes to spread them over; the default is as few as possible.")
@click.option("--kind", type=click.Choice(KINDS), default="ddp", show_default=True)
@click.option("--image", default="", help="A container image, for nodes that run containers.")
@click.option("--env", "variables", multiple=True, help="NAME=VALUE for every process.")
@click.option("--interconnect", type=click.Choice(LEVELS), help="How near the nodes must be; the kind has a default.")
@click.option("--region", "regions", multiple=True, help="A region to allow.")
@click.option("--max-price", help="The most to pay in dollars per GPU-hour, like 2.50.")
@click.option("--max-duration", help="End the job after this long, like 24h.")
@click.option("--request-id", help="Asking again with the same one makes no second job.")
@click.option("--detach", is_flag=True, help="Return as soon as the request is admitted.")
@json_option
@click.argument("command", nargs=-1, required=True)
def deploy(
    data: Path | None,
    gpus: tuple[str, ...],
    count: int,
    nodes: int | None,
    kind: WorkloadKind,
    image: str,
    variables: tuple[str, ...],
    interconnect: Level | None,
    regions: tuple[str, ...],
    max_price: str | None,
    max_duration: str | None,
    request_id: str | None,
    detach: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Ask for a cluster that runs COMMAND, and wait until it is ready."""
    environment = _environment(variables)
    with client(data) as market:
        job = market.jobs.create(
            gpu=gpus[0] if len(gpus) == 1 else gpus,
            count=count,
            nodes=nodes,
            command=command,
            kind=kind,
            image=image,
            env=environment,
            interconnect=interconnect,
            regions=regions,
            max_price_usd_per_gpu_hour=max_price,
            max_duration=max_duration,
            idempotency_key=request_id,
        )
        if not as_json:
            click.echo(job.id)
        if not detach:
            job = _until_ready(market, job)
        if as_json:
            print_json(job)
        if job.state in ENDED and job.release_reason != "completed":
            err.print(Text(f"the job ended: {_ending(job)}", style="red"))
            sys.exit(EXIT_FAILED)


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def status(data: Path | None, job: str | None, as_json: bool) -> None:
    """Your jobs, or one of them in full."""
    with client(data) as market:
        if job is not None:
            found = market.jobs.get(job)
            if as_json:
                print_json(found)
            else:
                _show(found)
            return
        listed = market.jobs.list(limit=JOBS_SHOWN_MAX)
    if as_json:
        print_json(listed.jobs)
        return
    rows = [
        (one.id, one.state, str(one.generation), _shape(one), one.price_usd_per_gpu_hour or "", one.due_usd, _note(one))
        for one in listed.jobs
    ]
    columns = ("job", "state", "generation", "shape", "$ per GPU-hour", "due $", "")
    out.print(table(columns, rows, right=frozenset({"generation", "$ per GPU-hour", "due $"})))


@click.command()
@data_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", type=int, help="Only this process's lines.")
@click.argument("job", required=False)
def logs(data: Path | None, follow: bool, rank: int | None, job: str | None) -> None:
    """What the job's processes write; the newest job's without JOB."""
    with client(data) as market:
        name = job or _newest(market).id
        for output in market.jobs.logs(name, follow=follow):
            for line in output.lines:
                if rank in (None, line.rank):
                    prefix = f"[{line.generation}.{line.rank}] "
                    click.echo(prefix + line.text, err=line.stream == "err")


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def release(data: Path | None, job: str | None, as_json: bool) -> None:
    """End a job, the newest running one without JOB; its bill stops at once."""
    with client(data) as market:
        released = market.jobs.release(job or _newest(market, running=True).id)
    if as_json:
        print_json(released)
    else:
        err.print(f"{released.id} is {released.state}; it costs nothing from here on")


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def explain(data: Path | None, job: str | None, as_json: bool) -> None:
    """Why a job waits, and what would clear now."""
    with client(data) as market:
        found = market.jobs.get(job or _newest(market).id)
    if as_json:
        print_json(found.waiting)
    elif found.waiting is None:
        err.print(f"{found.id} does not wait: it is {found.state}")
    else:
        _show_waiting(found.waiting)


def _until_ready(market: Client, job: Job) -> Job:
    try:
        for happening in market.jobs.events(job.id):
            err.print(Text(f"  {happening.message}"))
            if happening.event == READY_EVENT:
                break
    except KeyboardInterrupt:
        err.print(f"\ndetached; {job.id} goes on, and costs from when it is ready. To stop it: volt release {job.id}")
        sys.exit(EXIT_INTERRUPTED)
    return market.jobs.get(job.id)


def _environment(variables: Sequence[str]) -> dict[str, str]:
    environment = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not equals:
            message = f"{variable!r} sets nothing; write it like NAME=VALUE"
            raise Refused(Reason(code="invalid_env", message=message, field="env", seen=variable))
        environment[name] = value
    return environment


def _newest(market: Client, *, running: bool = False) -> Job:
    for job in market.jobs.list(limit=JOBS_SHOWN_MAX).jobs:
        if not running or job.state not in ENDED:
            return job
    raise NotFound("there is no running job" if running else "there is no job yet; `volt deploy` makes one")


def _shape(job: Job) -> str:
    if job.shape is None:
        return ""
    models = " or ".join(job.shape.models)
    if job.shape.nodes is None:
        return f"{job.shape.gpus} {models}"
    return f"{job.shape.nodes} x {job.shape.gpus // job.shape.nodes} {models}"


def _note(job: Job) -> str:
    if job.waiting is not None and job.state not in ENDED:
        return job.waiting.message
    return _ending(job) if job.state in ENDED else ""


def _ending(job: Job) -> str:
    if job.reason is not None:
        return job.reason.message
    words: list[str] = [job.release_reason or job.state]
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
        ("due", f"${job.due_usd}"),
        ("note", _note(job)),
    ]
    for name, value in facts:
        if value:
            out.print(Text(f"{name:11} {value}"))
    if job.members:
        out.print(table(("rank", "node", "lease", "state", "address", "$ per GPU-hour"), map(_member_row, job.members)))
    if job.waiting is not None and job.state not in ENDED:
        _show_waiting(job.waiting)


def _member_row(member: JobMember) -> tuple[str, ...]:
    return (
        str(member.rank),
        member.node,
        member.lease,
        member.state,
        member.address,
        member.price_usd_per_gpu_hour,
    )


def _show_waiting(waiting: JobWaiting) -> None:
    kind = "infeasible: no such supply exists" if waiting.infeasible else "no capacity now"
    out.print(Text(f"{kind}; {waiting.binding}: {waiting.message}"))
    rows = [(step.filter, str(step.seen), str(step.kept)) for step in waiting.funnel]
    out.print(table(("filter", "nodes seen", "kept"), rows, right=frozenset({"nodes seen", "kept"})))
    for alternative in waiting.alternatives:
        price = alternative.price_usd_per_gpu_hour
        out.print(Text(f"would clear now: {alternative.change}: {alternative.gpus} GPUs at ${price} per GPU-hour"))
