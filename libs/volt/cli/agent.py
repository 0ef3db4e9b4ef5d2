"""`volt agent run`: this machine as a node."""

import os
import sys
from pathlib import Path

import click
import platformdirs

from volt.cli.shared import data_option
from volt.contracts.errors import Reason, Refused
from volt.contracts.units import parse_usd
from volt.embedded import data_folder, read_context


@click.group()
def agent() -> None:
    """Run and look after this machine's agent."""


@agent.command()
@data_option
@click.option("--gpus", default="", help="Declared GPUs, like 8xh100-80gb; without it the NVIDIA driver is asked.")
@click.option("--price", required=True, help="Gross ask in dollars per GPU-hour, like 1.85.")
@click.option("--runtime", type=click.Choice(["process"]), default="process", show_default=True)
@click.option("--fabric", default="", help="The fabric segment that this node shares with others.")
@click.option("--site", default="")
@click.option("--region", default="")
@click.option("--country", default="")
@click.option("--address", default="", help="This node's address on its fabric.")
@click.option("--workdir", type=click.Path(exists=True, file_okay=False), default=".", help="Where processes start.")
@click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), help="The folder that makes this node itself."
)
@click.option("--nats-url", envvar="VOLT_NATS_URL", help="The bus; the default is the data folder's control plane.")
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
    account: str | None,
) -> None:
    """Offer this machine's GPUs and run what is leased, until Ctrl-C."""
    if nats_url is None or account is None:
        context = read_context(data_folder(data))
        nats_url, account = nats_url or context.nats_url, account or context.account
    environment = {
        **os.environ,
        "VOLT_NATS_URL": nats_url,
        "VOLT_ACCOUNT": account,
        "VOLT_GPUS": gpus,
        "VOLT_PRICE": str(_ask_microusd(price)),
        "VOLT_RUNTIME": runtime,
        "VOLT_ADDRESS": address,
        "VOLT_WORKDIR": str(Path(workdir).resolve()),
        "VOLT_STATE": str(state or default_state_folder()),
        "VOLT_FABRIC": fabric,
        "VOLT_SITE": site,
        "VOLT_REGION": region,
        "VOLT_COUNTRY": country,
    }
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
        raise Refused(Reason(code="invalid_price", message=str(error), field="price", seen=price)) from error
    return ask_microusd
