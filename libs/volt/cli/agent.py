"""`volt agent run`: this machine as a node."""

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click
import platformdirs

from volt.cli.shared import KEY_VARIABLE, Group, data_option, err, profile
from volt.contracts.declared import check_country, check_region, parse_gpus
from volt.contracts.errors import refused_for, shown
from volt.contracts.gpus import resolve
from volt.contracts.units import parse_usd
from volt.embedded import data_folder, read_context

BUS_PORT = 4222
BUS_LOOK_SECONDS_MAX = 1.0


@click.group(cls=Group)
def agent() -> None:
    """Run and look after this machine's agent."""


@agent.command()
@data_option
@click.option("--gpus", default="", help="Declared GPUs, like 8xh100-80gb; without it the NVIDIA driver is asked.")
@click.option("--price", required=True, help="Gross ask in dollars per GPU-hour, like 1.85.")
@click.option(
    "--runtime",
    type=click.Choice(["process"]),
    default="process",
    show_default=True,
    help="How workloads run: as processes of this machine.",
)
@click.option("--fabric", default="", help="The fabric segment that this node shares with others.")
@click.option("--site", default="", help="The building that this node stands in; nodes of one site are near.")
@click.option("--region", default="", help="Where it is, like eu-west, in lower case.")
@click.option("--country", default="", help="Its country's two letters, like DE.")
@click.option(
    "--address", default="", help="Where other nodes reach this one; the default is the way it reaches the bus."
)
@click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    help="Where processes start; the default is here.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that makes this node itself; each node needs its own.",
)
@click.option("--nats-url", envvar="VOLT_NATS_URL", help="The bus; the default is the data folder's control plane.")
@click.option(
    "--checkpoints",
    envvar="VOLT_CHECKPOINTS",
    help="Where checkpoints are stored: nats://host:port, s3://bucket/path or file:///folder; the default is the data"
    " folder's control plane, else the bus.",
)
@click.option("--account", envvar="VOLT_ACCOUNT", help="Whose node it is; the default is the data folder's account.")
def run(
    data: Path | None,
    gpus: str,
    price: str,
    runtime: str,
    fabric: str,
    site: str,
    region: str,
    country: str,
    address: str,
    workdir: str,
    state: Path | None,
    nats_url: str | None,
    checkpoints: str | None,
    account: str | None,
) -> None:
    """Offer this machine's GPUs and run what is leased, until Ctrl-C."""
    if nats_url is None or account is None:
        context = read_context(data_folder(data))
        if nats_url is None and checkpoints is None:
            checkpoints = context.checkpoints_url
        nats_url, account = nats_url or context.nats_url, account or context.account
    _check(gpus, region, country)
    environment = {
        **{name: value for name, value in os.environ.items() if name != KEY_VARIABLE},
        "VOLT_PROFILE": profile(),
        "VOLT_NATS_URL": nats_url,
        "VOLT_CHECKPOINTS": checkpoints or "",
        "VOLT_ACCOUNT": account,
        "VOLT_GPUS": gpus,
        "VOLT_PRICE": str(_ask_microusd(price)),
        "VOLT_RUNTIME": runtime,
        "VOLT_ADDRESS": address,
        "VOLT_WORKDIR": str(Path(workdir).resolve()),
        "VOLT_STATE": str((state or default_state_folder()).absolute()),
        "VOLT_FABRIC": fabric,
        "VOLT_SITE": site,
        "VOLT_REGION": region,
        "VOLT_COUNTRY": country,
    }
    _say_if_it_waits_for(nats_url)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "volt_agent"], environment)


def default_state_folder() -> Path:
    """The first folder of this user's that no running agent of this machine holds is the agent's to choose."""
    return Path(platformdirs.user_state_dir("volt")) / "agent"


def _ask_microusd(price: str) -> int:
    try:
        ask_microusd = parse_usd(price)
        if ask_microusd <= 0:
            raise ValueError(f"{price!r} is not above zero")
    except ValueError as error:
        raise refused_for("invalid_price", "price", price, str(error)) from error
    return ask_microusd


def _check(gpus: str, region: str, country: str) -> None:
    """Refuses at once what intake would refuse of this node's first bid."""
    if gpus:
        _, model = parse_gpus(gpus)
        resolve(model)
    if region:
        check_region("region", region)
    if country:
        check_country("country", country)


def _say_if_it_waits_for(nats_url: str) -> None:
    """The agent itself waits for its bus; somebody who looks on should know for what."""
    try:
        place = urlsplit(nats_url)
        address = (place.hostname or "127.0.0.1", place.port or BUS_PORT)
    except ValueError as error:
        message = f"{shown(nats_url)!r} is no address of a bus; write it like nats://127.0.0.1:4222"
        raise refused_for("invalid_nats_url", "nats_url", nats_url, message) from error
    try:
        socket.create_connection(address, BUS_LOOK_SECONDS_MAX).close()
    except OSError as error:
        err.print(f"waiting for the bus at {nats_url} ({error}); `volt up` starts one", markup=False)
