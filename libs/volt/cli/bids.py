"""`volt bid`: what a provider's nodes offer, while they are on the market."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click
from rich.text import Text

from volt.cli.shared import Group, client, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.errors import Reason, Refused
from volt.contracts.http_market import Bid, BidList

gpu_option = click.option("--gpu", help="Only for this model of the node; the default is all.")


@click.group(cls=Group)
def bid() -> None:
    """Place, reprice, pause and withdraw what your nodes offer. Running leases keep their terms."""


@bid.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """What your nodes offer, withdrawn and paused ones too."""
    with client(data) as market:
        _show(market.bids.list(), as_json=as_json)


@bid.command()
@data_option
@gpu_option
@click.option("--price", help="Gross ask in dollars per GPU-hour, like 1.85.")
@click.option("--min-gpus", type=int, help="The smallest lease.")
@click.option("--max-duration", help="The longest lease, like 24h; `none` for any.")
@click.option("--from", "from_", help="When it becomes available, like 2026-12-24T18:00+01:00; `none` for now.")
@click.option("--until", help="By when every lease must have ended; `none` for never.")
@json_option
@click.argument("node")
def place(
    data: Path | None,
    gpu: str | None,
    price: str | None,
    min_gpus: int | None,
    max_duration: str | None,
    from_: str | None,
    until: str | None,
    as_json: bool,
    node: str,
) -> None:
    """Put NODE on the market (again) and set its terms; what is not given stays as it was."""
    with client(data) as market:
        changed = market.bids.change(
            node,
            gpu=gpu,
            offer=True,
            price_usd_per_gpu_hour=price,
            gpus_min=min_gpus,
            max_duration=max_duration,
            available_from_ms=_instant_ms("from", from_),
            available_until_ms=_instant_ms("until", until),
            paused=False,
        )
    _show(changed, as_json=as_json)


@bid.command()
@data_option
@gpu_option
@click.option("--price", required=True, help="Gross ask in dollars per GPU-hour, like 1.85.")
@json_option
@click.argument("node")
def reprice(data: Path | None, gpu: str | None, price: str, as_json: bool, node: str) -> None:
    """Ask another price for NODE from now on."""
    with client(data) as market:
        changed = market.bids.change(node, gpu=gpu, price_usd_per_gpu_hour=price)
    _show(changed, as_json=as_json)


@bid.command()
@data_option
@gpu_option
@click.option("--resume", is_flag=True, help="Go on selling it.")
@json_option
@click.argument("node")
def pause(data: Path | None, gpu: str | None, resume: bool, as_json: bool, node: str) -> None:
    """Sell nothing more of NODE for now."""
    with client(data) as market:
        changed = market.bids.change(node, gpu=gpu, paused=not resume)
    _show(changed, as_json=as_json)


@bid.command()
@data_option
@json_option
@click.argument("node")
def withdraw(data: Path | None, as_json: bool, node: str) -> None:
    """Take NODE off the market."""
    with client(data) as market:
        withdrawn = market.bids.withdraw(node)
    _show(withdrawn, as_json=as_json)


def _instant_ms(field: str, text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 instant with its offset; 0 for `none`. Raises Refused."""
    if text is None:
        return None
    if text == "none":
        return 0
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        message = f"{text!r} is no instant; write it with its offset, like 2026-12-24T18:00+01:00"
        raise Refused(Reason(code="invalid_instant", message=message, field=field, seen=text))
    return round(instant.timestamp() * 1000)


def _show(listed: BidList, *, as_json: bool) -> None:
    if as_json:
        print_json(listed.bids)
        return
    if not listed.bids:
        err.print("no bids; `volt agent run` places one")
        return
    columns = ("node", "gpu", "$ per GPU-hour", "net $", "free", "total", "state", "terms")
    right = frozenset({"$ per GPU-hour", "net $", "free", "total"})
    out.print(table(columns, map(_row, listed.bids), right=right))
    for one in listed.bids:
        for gpu in one.quarantined:
            also = ", and with it nothing of the node" if gpu.closes_node else ""
            out.print(Text(f"{one.node}: {gpu.gpu} is not sold{also}, since {_when(gpu.since_ms)}: {gpu.why}"))


def _row(one: Bid) -> Sequence[str]:
    state = "withdrawn" if one.withdrawn else "paused" if one.paused else one.state
    return (
        one.node,
        one.gpu,
        one.price_usd_per_gpu_hour,
        one.net_usd_per_gpu_hour,
        str(one.free),
        str(one.total),
        state,
        ", ".join(_terms(one)),
    )


def _terms(one: Bid) -> list[str]:
    terms = [one.reason] if one.reason else []
    if one.gpus_min > 1:
        terms.append(f"at least {one.gpus_min} GPUs")
    if one.max_duration_seconds is not None:
        terms.append(f"at most {one.max_duration_seconds} s")
    for name, instant_ms in (("from", one.available_from_ms), ("until", one.available_until_ms)):
        if instant_ms is not None:
            terms.append(f"{name} {_when(instant_ms)}")
    return terms


def _when(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000).astimezone().isoformat(timespec="minutes")
