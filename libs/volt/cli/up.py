"""`volt up`: the control plane on this machine, until Ctrl-C."""

import asyncio
import signal
from pathlib import Path

import click

from volt.cli.shared import data_option, err, profile
from volt.contracts.timing import ProfileName
from volt.embedded import Context, ContextMissing, ControlPlane, data_folder, read_context, write_context
from volt.embedded.accounts import new_account_id, new_api_key, open_account
from volt.runtime import telemetry
from volt.runtime.nats import NatsBus


@click.command()
@data_option
def up(data: Path | None) -> None:
    """Start the control plane: bus, views and services, as processes of this one."""
    telemetry.set_up("up")
    asyncio.run(_run(data_folder(data), profile()))


async def _run(folder: Path, profile: ProfileName) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    err.print(f"starting the control plane in {folder}")
    async with ControlPlane(folder, profile) as control_plane:
        context = await _first_account(control_plane)
        err.print(f"[green]ready[/green]  gateway {context.gateway_url}  bus {context.nats_url}")
        err.print(f"checkpoints are stored at {context.checkpoints_url}")
        err.print(f"account {context.account}; its key and the addresses are in {folder / 'context.json'}")
        err.print("Ctrl-C stops it; what it knows is kept.")
        await stop.wait()
        err.print("stopping")


async def _first_account(control_plane: ControlPlane) -> Context:
    """The data folder's account, opened at its first start, with the addresses of this one."""
    try:
        known = read_context(control_plane.data_dir)
        account, api_key = known.account, known.api_key
    except ContextMissing:
        account, api_key = new_account_id(), new_api_key()
    context = Context(
        nats_url=control_plane.nats_url,
        redis_url=control_plane.redis_url,
        gateway_url=control_plane.gateway_url,
        checkpoints_url=control_plane.checkpoints_url,
        account=account,
        api_key=api_key,
    )
    bus = await NatsBus.connect(control_plane.nats_url, "up")
    try:
        await open_account(bus, account, api_key)
    finally:
        await bus.close()
    write_context(control_plane.data_dir, context)
    return context
