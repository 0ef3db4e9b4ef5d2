"""`volt offers`: what can be had."""

from pathlib import Path

import click

from volt.cli.shared import client, data_option, err, json_option, out, print_json
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
            one.state,
        )
        for one in listed.offers
    ]
    columns = ("node", "gpu", "$ per GPU-hour", "free", "total", "region", "fabric", "state")
    out.print(table(columns, rows, right=frozenset({"$ per GPU-hour", "free", "total"})))
    if listed.more:
        err.print("there are more; narrow it down with --gpu or --region")
