"""`volt demo`: the main job, end to end, on this machine."""

import asyncio
import sys

import click
import msgspec
from rich.live import Live

from volt.cli.demo.scenario import STEPS_BEFORE_KILL, Ending, Options, play
from volt.cli.demo.screen import Screen, summary
from volt.cli.shared import EXIT_INTERRUPTED, err, out, print_json

DEMO_SECONDS_MAX = 120.0


class Figures(msgspec.Struct, frozen=True):
    """Times in milliseconds from the publish of the request, or from the kill; seconds are node-seconds."""

    matched_ms: int
    ready_ms: int
    first_step_ms: int
    lost_detected_ms: int
    recovered_ms: int
    generations: int
    resumed_step: int
    steps_lost: int
    billed_seconds: float
    covered_seconds: float
    charged_microusd: int
    paid_microusd: int
    fee_microusd: int
    ledger_balanced: bool
    total_s: float


@click.command()
@click.option(
    "--kill", type=click.Choice(["head", "other"]), default="other", show_default=True, help="Whose agent dies."
)
@click.option(
    "--steps", type=click.IntRange(min=2 * STEPS_BEFORE_KILL), default=80, show_default=True, help="Training steps."
)
@click.option("--step-seconds", default=0.05, show_default=True, help="How long a step takes at least.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON line at the end.")
def demo(kill: str, steps: int, step_seconds: float, as_json: bool) -> None:
    """Run the main job end to end: a market, a cluster, a killed node, a recovery, a bill."""
    options = Options(kill_rank=0 if kill == "head" else 1, steps=steps, step_seconds=step_seconds)
    screen = Screen()
    try:
        with Live(screen, console=err, refresh_per_second=8, transient=True):
            ending = asyncio.run(asyncio.wait_for(play(options, screen.watch), DEMO_SECONDS_MAX))
    except KeyboardInterrupt:
        err.print("stopped; nothing is left running")
        sys.exit(EXIT_INTERRUPTED)
    figures = _figures(ending)
    (err if as_json else out).print(summary(ending))
    if as_json:
        print_json(figures)
    if not figures.ledger_balanced or ending.story.released is None or ending.story.released.reason != "completed":
        sys.exit(1)


def _figures(ending: Ending) -> Figures:
    story, report = ending.story, ending.report
    return Figures(
        matched_ms=story.marks["matched"] - ending.requested_ms,
        ready_ms=story.marks["ready/1"] - ending.requested_ms,
        first_step_ms=story.marks["first_step"] - ending.requested_ms,
        lost_detected_ms=story.marks["lost"] - ending.killed_ms,
        recovered_ms=story.marks["ready/2"] - ending.killed_ms,
        generations=story.generation,
        resumed_step=story.resumed_step,
        steps_lost=story.steps_lost,
        billed_seconds=sum(line.billable_ms for line in story.bill) / 1000,
        covered_seconds=report.covered_ms / 1000,
        charged_microusd=report.charged_microusd,
        paid_microusd=report.paid_microusd,
        fee_microusd=report.fee_microusd,
        ledger_balanced=report.is_balanced,
        total_s=round(ending.total_ms / 1000, 3),
    )
