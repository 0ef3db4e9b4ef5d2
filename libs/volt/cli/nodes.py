"""`volt node`: a provider's own nodes, and how they are emptied for maintenance."""

from datetime import datetime
from pathlib import Path

import click

from volt.cli.shared import Group, client, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.http_market import NodeList, ProviderNode


@click.group(cls=Group)
def node() -> None:
    """List your nodes, and empty one before you work on it."""


@node.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """Your nodes: whether they are alive, what is leased on them, which are drained."""
    with client(data) as market:
        _show(market.nodes.list(), as_json=as_json)


@node.command()
@data_option
@click.option("--reason", default="", help="Why, in a few words.")
@click.option("--deadline", default="30m", show_default=True, help="By when it is empty; 0s is at once.")
@json_option
@click.argument("name", metavar="NODE")
def drain(data: Path | None, reason: str, deadline: str, as_json: bool, name: str) -> None:
    """Lease nothing more of NODE, and move what runs there to other nodes.

    A job goes on where it is until another node is prepared; then its processes end with SIGTERM, and go on from the
    checkpoint that they store last. What has not moved by the deadline ends there, and goes on as its buyer has said.
    """
    with client(data) as market:
        drained = market.nodes.drain(name, reason=reason, deadline=deadline)
    _show(drained, as_json=as_json)
    if not as_json:
        err.print(f"`volt node list` shows when it is empty; `volt node resume {name}` leases it again", markup=False)


@node.command()
@data_option
@json_option
@click.argument("name", metavar="NODE")
def resume(data: Path | None, as_json: bool, name: str) -> None:
    """Lease NODE again; what has not moved stays."""
    with client(data) as market:
        resumed = market.nodes.resume(name)
    _show(resumed, as_json=as_json)


def _show(listed: NodeList, *, as_json: bool) -> None:
    if as_json:
        print_json(listed.nodes)
        return
    if not listed.nodes:
        err.print("no nodes; `volt agent run` brings one")
        return
    right = frozenset({"gpus", "leased"})
    out.print(table(("node", "state", "gpus", "leased", "leases", "drained"), map(_row, listed.nodes), right=right))


def _row(one: ProviderNode) -> tuple[str, ...]:
    state = "withdrawn" if one.withdrawn and one.state == "alive" else one.state
    return one.node, state, str(one.gpus), str(one.leased), ", ".join(one.leases), _drained(one)


def _drained(one: ProviderNode) -> str:
    if one.drain_by_ms is None:
        return ""
    by = datetime.fromtimestamp(one.drain_by_ms / 1000).astimezone().isoformat(timespec="minutes")
    how = f"by {by}" if one.leases else "empty"
    return f"{how} ({one.drain_reason})" if one.drain_reason else how
