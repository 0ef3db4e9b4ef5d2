"""`volt account open`: another account, for another buyer or provider."""

import asyncio
from pathlib import Path

import click
import msgspec

from volt.cli.shared import CONNECT_SECONDS_MAX, KEY_VARIABLE, Group, data_option, err, json_option, print_json
from volt.contracts.errors import Reason, Refused
from volt.contracts.ids import is_id
from volt.embedded import Context, data_folder, read_context, write_context
from volt.embedded.accounts import new_api_key, open_account
from volt.runtime import telemetry
from volt.runtime.nats import NatsBus
from volt.sdk.context import CONTEXT_FILE


@click.group(cls=Group)
def account() -> None:
    """Open accounts."""
    telemetry.set_up("cli")


@account.command("open")
@click.argument("name")
@data_option
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="A folder to write its context into.")
@click.option("--force", is_flag=True, help="Write over a context that is there, and so over the only copy of its key.")
@click.option("--nats-url", help="The bus; the default is the data folder's control plane.")
@click.option("--gateway-url", help="The gateway that belongs to --nats-url.")
@json_option
def open_(
    name: str,
    data: Path | None,
    into: Path | None,
    force: bool,
    nats_url: str | None,
    gateway_url: str | None,
    as_json: bool,
) -> None:
    """Open the account NAME and print its key, once: it is stored nowhere else but in a context.

    With --into DIR, `--data DIR` acts for it from then on; without, commands do so while VOLT_API_KEY is the key and
    no --data is given. Where no context is at hand, --nats-url says where to ask; --gateway-url then goes into the
    context that is written.
    """
    if not is_id(name):
        message = f"{name!r} is no account name: lower-case letters, digits, - and _, at most 64"
        raise Refused(Reason(code="invalid_account", message=message, field="name", seen=name))
    if nats_url is None:
        opened = msgspec.structs.replace(read_context(data_folder(data)), account=name, api_key=new_api_key())
    elif into is not None and gateway_url is None:
        raise click.UsageError("a context names the gateway too: give --gateway-url with --nats-url and --into")
    else:
        addresses = {"nats_url": nats_url, "redis_url": "", "gateway_url": gateway_url or ""}
        opened = Context(**addresses, account=name, api_key=new_api_key())
    if into is not None and not force and (into / CONTEXT_FILE).exists():
        message = (
            f"{into / CONTEXT_FILE} is there, with the only copy of another key; choose another folder, or --force"
        )
        raise Refused(Reason(code="context_exists", message=message, field="into", seen=str(into)))
    asyncio.run(_open(opened))
    # The key is told first: should the context not get written, it would be lost.
    if as_json:
        print_json({"account": name, "api_key": opened.api_key})
    else:
        click.echo(opened.api_key)
    if into is None:
        err.print(f"the key is kept nowhere; with {KEY_VARIABLE} set to it, commands without --data act for {name}")
        return
    write_context(into, opened)
    err.print(f"its context is in {into / CONTEXT_FILE}; use it with --data {into}", markup=False)


async def _open(context: Context) -> None:
    bus = await NatsBus.connect(context.nats_url, "account", CONNECT_SECONDS_MAX)
    try:
        await open_account(bus, context.account, context.api_key)
    finally:
        await bus.close()
