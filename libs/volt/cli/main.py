"""The command group and what a failure looks like.

0  done                    4  there is no such thing
1  a job or check failed   5  not available now; try again
2  wrong usage             6  the key is missing or wrong
3  refused by the rules    7  a job ended early (`volt wait`)
"""

import importlib
import sys

import click

from volt.cli.shared import EXIT_FAILED, Group, err, report_failure
from volt.contracts.errors import VoltError

_COMMANDS = {
    "up": "volt.cli.up:up",
    "demo": "volt.cli.demo:demo",
    "agent": "volt.cli.agent:agent",
    "account": "volt.cli.account:account",
    "deploy": "volt.cli.deploy:deploy",
    "scale": "volt.cli.deploy:scale",
    "simulate": "volt.cli.simulate:simulate",
    "wait": "volt.cli.deploy:wait",
    "status": "volt.cli.jobs:status",
    "logs": "volt.cli.jobs:logs",
    "release": "volt.cli.jobs:release",
    "explain": "volt.cli.jobs:explain",
    "checkpoints": "volt.cli.checkpoints:checkpoints",
    "offers": "volt.cli.market:offers",
    "market": "volt.cli.market:market",
    "bid": "volt.cli.bids:bid",
    "provider": "volt.cli.providers:provider",
    "node": "volt.cli.nodes:node",
    "balance": "volt.cli.money:balance",
    "ledger": "volt.cli.audit:ledger",
    "dlq": "volt.cli.dlq:dlq",
    "views": "volt.cli.views:views",
}


class Commands(Group):
    """Imports a command when it is used, so that `volt status` does not wait for what `volt up` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click calls it so
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands)
@click.version_option(package_name="volt-gpu")
def volt() -> None:
    """GPUs of many operators, as clusters in seconds."""


def main() -> None:
    """Runs the command line and exits with the code of the failure's class."""
    try:
        volt(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except VoltError as error:
        sys.exit(report_failure(error))
    except OSError as error:
        err.print(f"[red]error[/red] {error}", markup=True)
        sys.exit(EXIT_FAILED)
