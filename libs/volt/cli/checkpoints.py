"""`volt checkpoints`: what a job has committed, and so where it would begin again."""

from pathlib import Path

import click
from rich.text import Text

from volt.cli.jobs import newest
from volt.cli.shared import client, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.http import Checkpoint
from volt.contracts.units import MS_PER_SECOND

MIB_BYTES = 1024**2


@click.command()
@data_option
@json_option
@click.argument("job", required=False)
def checkpoints(data: Path | None, job: str | None, as_json: bool) -> None:
    """The committed checkpoints of a job, the newest first; the newest job's without JOB."""
    with client(data) as market:
        found = market.jobs.get(job or newest(market).id)
        listed = market.jobs.checkpoints(found.id)
    if as_json:
        print_json(listed)
        return
    for one in listed.stored[:1]:
        names = ", ".join(map(str, one.missing)) or "the provisioner"
        err.print(Text(f"step {one.step} waits for rank {names}: a step counts once every node has finished it"))
    if not listed.checkpoints:
        err.print(Text(f"{found.id} has committed none; what it finishes in $VOLT_CHECKPOINT_DIR/<step>/ is stored"))
        return
    columns = ("step", "generation", "committed after", "ranks", "MiB", "kept")
    rows = [_row(one, found.ready_at_ms) for one in listed.checkpoints]
    out.print(table(columns, rows, right=frozenset(columns[:-1])))


def _row(checkpoint: Checkpoint, ready_at_ms: int | None) -> tuple[str, ...]:
    """`committed after`: since the job was first ready."""
    after_ms = checkpoint.committed_at_ms - (checkpoint.committed_at_ms if ready_at_ms is None else ready_at_ms)
    return (
        str(checkpoint.step),
        str(checkpoint.generation),
        f"{after_ms / MS_PER_SECOND:.1f} s",
        str(checkpoint.ranks),
        f"{checkpoint.size_bytes / MIB_BYTES:.2f}",
        "yes" if checkpoint.kept else "removed",
    )
