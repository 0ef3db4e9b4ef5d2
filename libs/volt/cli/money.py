"""`volt balance`: an account's money."""

from pathlib import Path

import click

from volt.cli.shared import client, data_option, json_option, out, print_json


@click.command()
@data_option
@json_option
def balance(data: Path | None, as_json: bool) -> None:
    """What the account has in its wallet, on hold, pending and earned."""
    with client(data) as market:
        found = market.balance()
    if as_json:
        print_json(found)
        return
    out.print(f"account  {found.account}", markup=False)
    for name, amount_usd in (
        ("wallet", found.wallet_usd),
        ("on hold", found.on_hold_usd),
        ("pending", found.pending_usd),
        ("earned", found.earned_usd),
    ):
        out.print(f"{name:8} ${amount_usd:>14}", markup=False)
