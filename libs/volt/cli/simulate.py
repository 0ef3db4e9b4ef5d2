"""`volt simulate`: the whole market on simulated time, under seeded faults."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from volt.cli.shared import EXIT_FAILED, EXIT_INTERRUPTED, err, json_option, out
from volt.contracts.errors import Unavailable

HISTORY_SHOWN_MAX = 40
SEED_DIGITS_MAX = 9
TOTAL = b'{"runs"'
"""How the line begins that is about all runs."""


class Run(msgspec.Struct, frozen=True):
    """What is shown of a run. `broken` is empty if every law held."""

    seed: int
    broken: str
    at_ms: int
    log_events: int
    jobs_closed: int
    generations: int
    history: tuple[str, ...]


class Line(msgspec.Struct, frozen=True):
    """A run, how many seconds it took, and the smallest plan that breaks a law, if one does."""

    result: Run
    seconds: float
    plan: msgspec.Raw


class Total(msgspec.Struct, frozen=True):
    """All runs together."""

    runs: int
    broken: int
    events_per_second: int


@click.command()
@click.option("--seeds", "--seed", default="1..20", show_default=True, help="One, or from..to.")
@click.option("--nodes", type=click.IntRange(1, 2_000), default=20, show_default=True)
@click.option("--jobs", type=click.IntRange(1, 5_000), default=60, show_default=True)
@click.option("--hours", type=click.FloatRange(0.05, 48), default=1.0, show_default=True, help="Simulated ones.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Runs at a time.")
@click.option(
    "--plan", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run this plan, as --save wrote it."
)
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Where to keep the smallest plan that breaks a law."
)
@click.option("--trace", is_flag=True, help="Show the last events of a run that breaks a law.")
@json_option
def simulate(
    seeds: str,
    nodes: int,
    jobs: int,
    hours: float,
    workers: int,
    plan: Path | None,
    save: Path | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Run the services of production over a simulated bus under faults, and check every law after every event.

    The same seed with the same options is the same run. Exits 1 if a law is broken; then the smallest plan that was
    found to break it is told (with --json) or kept (with --save), and its last events are told (with --trace).
    """
    if not _is_range(seeds):
        raise click.BadParameter(f"{seeds!r} is neither a seed nor like 1..20", param_hint="--seeds")
    options: dict[str, object] = {"plan": plan.resolve()} if plan is not None else {}
    options |= {"seeds": seeds, "nodes": nodes, "jobs": jobs, "hours": hours, "workers": workers}
    total = Total(0, 0, 0)
    try:
        for line in _told([text for name, value in options.items() for text in (f"--{name}", str(value))]):
            if as_json:
                click.echo(line)
            if line.startswith(TOTAL):
                total = msgspec.json.decode(line, type=Total)
                continue
            run = msgspec.json.decode(line, type=Line)
            if not as_json:
                _show(run, trace=trace)
            if save is not None and run.result.broken:
                save.write_bytes(run.plan)
                save = None  # The first one is as good as any, and is not overwritten.
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    if not as_json:
        out.print(f"{total.runs} runs, {total.broken} broke a law; {total.events_per_second} events a second")
    if total.broken:
        sys.exit(EXIT_FAILED)


def _is_range(seeds: str) -> bool:
    first, dots, last = seeds.partition("..")
    ends = [first, last] if dots else [first]
    return all(end.isdecimal() and len(end) <= SEED_DIGITS_MAX for end in ends) and int(ends[0]) <= int(ends[-1])


def _told(options: list[str]) -> Iterator[bytes]:
    """The simulator's lines; it is a program of its own, since it has all the services in it."""
    command = [sys.executable, "-P", "-m", "volt_simulator", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as simulator:  # our own program
        assert simulator.stdout is not None
        last = b""
        for last in simulator.stdout:
            yield last.rstrip()
    if not last.startswith(TOTAL):
        raise Unavailable("the simulation has ended before its end; what is above says why")


def _show(run: Line, *, trace: bool) -> None:
    result = run.result
    how = f"BROKEN at {result.at_ms / 1000:.1f} s: {result.broken}" if result.broken else "every law held"
    counts = f"{result.jobs_closed} jobs closed, {result.generations} generations, {result.log_events} events logged"
    out.print(Text(f"seed {result.seed}: {how}; {counts}, {run.seconds:.1f} s"))
    if result.broken and trace:
        for happening in result.history[-HISTORY_SHOWN_MAX:]:
            err.print(Text(f"  {happening}"))
