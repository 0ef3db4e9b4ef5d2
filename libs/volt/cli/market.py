"""`volt offers`, `volt market`: what can be had, and what was paid."""

from datetime import datetime
from pathlib import Path

import click
from rich.text import Text

from volt.cli.audit import market_audit, verify
from volt.cli.shared import Group, client, data_option, err, json_option, out, print_json
from volt.cli.tables import table


@click.command()
@data_option
@click.option("--gpu", help="Only this model.")
@click.option("--region", help="Only this region.")
@json_option
def offers(data: Path | None, gpu: str | None, region: str | None, as_json: bool) -> None:
    """Live supply, the cheapest first."""
    with client(data) as market:
        listed = market.offers(gpu=gpu, region=region)
    if as_json:
        print_json(listed.offers)
        return
    rows = [
        (
            one.node,
            one.gpu,
            one.price_usd_per_gpu_hour,
            str(one.free),
            str(one.total),
            one.place.region,
            one.place.fabric,
            f"{one.reliability_permille / 10:.1f}%",
            one.runtime,
            one.state,
        )
        for one in listed.offers
    ]
    if not rows:
        err.print("no offers now; `volt agent run` makes one")
    columns = ("node", "gpu", "$ per GPU-hour", "free", "total", "region", "fabric", "reliable", "runtime", "state")
    out.print(table(columns, rows, right=frozenset({"$ per GPU-hour", "free", "total", "reliable"})))
    if listed.more:
        err.print("there are more; narrow it down with --gpu or --region")


@click.group(cls=Group)
def market() -> None:
    """Prices and depth, by model; and whether the market keeps its rules."""


market.add_command(market_audit)
market.add_command(verify)


@market.command()
@data_option
@json_option
@click.argument("model")
def show(data: Path | None, as_json: bool, model: str) -> None:
    """Best ask, depth by price, and the last clearing prices of MODEL."""
    with client(data) as gateway:
        found = gateway.market(model)
    if as_json:
        print_json(found)
        return
    best = f"best ask ${found.best_ask_usd_per_gpu_hour}" if found.best_ask_usd_per_gpu_hour else "nothing is free"
    last = f", last price ${found.prices[0].price_usd_per_gpu_hour}" if found.prices else ""
    out.print(Text(f"{found.gpu}: {best}{last}; {found.free} of {found.total} GPUs free, {found.waiting} jobs wait"))
    levels = [(one.price_usd_per_gpu_hour, str(one.free), str(one.nodes)) for one in found.depth]
    out.print(table(("$ per GPU-hour", "free", "nodes"), levels, right=frozenset({"$ per GPU-hour", "free", "nodes"})))
    if found.prices:
        paid = [(_when(one.at_ms), one.price_usd_per_gpu_hour, str(one.gpus)) for one in found.prices]
        out.print(table(("cleared at", "$ per GPU-hour", "GPUs"), paid, right=frozenset({"$ per GPU-hour", "GPUs"})))


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(" ", timespec="seconds")
