"""`volt provider`: how far a provider's nodes can be relied on, and why."""

from collections.abc import Iterator
from pathlib import Path

import click
from rich.text import Text

from volt.cli.shared import Group, client, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.http_market import NodeReliability, ProviderReliability
from volt.contracts.units import MS_PER_HOUR

_NUMBERS = frozenset({"reliable", "alive for", "lost to faults", "cost", "counts", "ago"})


@click.group(cls=Group)
def provider() -> None:
    """How far providers and their nodes can be relied on."""


@provider.command("reliability")
@data_option
@json_option
@click.argument("name", metavar="[PROVIDER]", required=False)
def reliability(data: Path | None, as_json: bool, name: str | None) -> None:
    """Of PROVIDER, or of yourself: each node's result, and what it comes from. docs/reliability.md has the formula."""
    with client(data) as gateway:
        found = gateway.reliability(name)
    if as_json:
        print_json(found)
        return
    _show(found)


def _show(found: ProviderReliability) -> None:
    out.print(Text(f"{found.provider}: {_percent(found.reliability_permille)} reliable"))
    if not found.nodes:
        err.print("no nodes yet; whoever has no history is trusted")
        return
    columns = ("node", "reliable", "alive for", "lost to faults", "now")
    rows = [
        (
            one.node,
            _percent(one.reliability_permille),
            _hours(one.good_ms),
            _hours(one.bad_ms),
            "alive" if one.alive else "away",
        )
        for one in found.nodes
    ]
    out.print(table(columns, rows, right=_NUMBERS))
    mishaps = [row for one in found.nodes for row in _mishaps(one)]
    if mishaps:
        out.print(table(("node", "mishap", "ago", "cost", "counts", "what"), mishaps, right=_NUMBERS))


def _mishaps(node: NodeReliability) -> Iterator[tuple[str, ...]]:
    for one in node.mishaps:
        kind = one.kind.replace("_", " ")
        yield node.node, kind, _hours(one.age_ms), _hours(one.cost_ms), _percent(one.weight_permille), one.what


def _percent(permille: int) -> str:
    return f"{permille / 10:.1f}%"


def _hours(ms: int) -> str:
    return f"{ms / MS_PER_HOUR:.1f} h"
