"""How the demo looks: a timeline that grows, then one screen that says what happened."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from volt.cli.demo.scenario import Ending, clock_ms
from volt.cli.demo.story import Story
from volt.cli.tables import table
from volt.contracts.units import format_usd

MOMENTS_SHOWN_MAX = 24


class Screen:
    """Renders the story as it stands each time it is drawn."""

    def __init__(self) -> None:
        self._story: Story | None = None

    def watch(self, story: Story) -> None:
        self._story = story

    def __rich__(self) -> RenderableType:
        if self._story is None:
            return Text("")
        status = Text(f"generation {self._story.generation}  {self._story.last_line}", style="cyan")
        return Panel(Group(timeline(self._story), status), title="volt demo", border_style="dim")


def timeline(story: Story) -> Table:
    """Each moment with its time since the first."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim")
    table.add_column()
    began_ms = story.moments[0].at_ms if story.moments else clock_ms()
    for moment in story.moments[-MOMENTS_SHOWN_MAX:]:
        table.add_row(f"{(moment.at_ms - began_ms) / 1000:6.2f} s", Text(moment.text))
    return table


def summary(ending: Ending) -> RenderableType:
    """What happened, the bill line by line, and what the audit says."""
    return Group(timeline(ending.story), Text(""), bill(ending), verdict(ending))


def bill(ending: Ending) -> Table:
    """A line for each lease, and their sum."""
    rows = [
        (
            line.lease,
            ending.story.node_of_lease[line.lease],
            str(line.gpus),
            f"{line.billable_ms / 1000:.3f}",
            format_usd(line.price_microusd_per_gpu_hour, 2),
            format_usd(line.due_microusd),
        )
        for line in sorted(ending.story.bill, key=lambda line: line.lease)
    ]
    total_microusd = sum(line.due_microusd for line in ending.story.bill)
    columns = ("lease", "node", "GPUs", "seconds", "$/GPU-hour", "amount $")
    return table(columns, [*rows, ("total", "", "", "", "", format_usd(total_microusd))], right=frozenset(columns[2:]))


def verdict(ending: Ending) -> Text:
    """The audit in a sentence."""
    report = ending.report
    text = Text()
    if report.is_balanced:
        text.append("audit  ", style="green")
    else:
        text.append("audit  ", style="red")
    text.append(
        f"charged ${format_usd(report.charged_microusd)} = paid ${format_usd(report.paid_microusd)} "
        f"+ fee ${format_usd(report.fee_microusd)}; {report.covered_ms / 1000:.3f} node-seconds covered by heartbeats; "
    )
    text.append("every bill recomputed from the log, to the micro-dollar" if report.is_balanced else "FINDINGS")
    text.append(f"\nresumed after step {ending.story.resumed_step}: {ending.story.steps_lost} steps lost to the kill")
    text.append("\ncovered but not billed: what a node ran before all were ready, and a survivor beside the dead one")
    for finding in report.findings:
        text.append(f"\n  {finding.code} at {finding.seq}: {finding.message}", style="red")
    text.append(f"\n{ending.total_ms / 1000:.1f} s in all")
    return text
