"""What the commands share: where the control plane is, how results are printed, how failures are told."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from volt.contracts.errors import MalformedMessage, NotFound, Reason, Refused, Unauthorized, Unavailable, VoltError
from volt.contracts.timing import PROFILES, ProfileName
from volt.sdk import Client
from volt.sdk.context import data_folder, read_context

F = TypeVar("F", bound=Callable[..., object])

EXIT_FAILED = 1
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_UNAVAILABLE = 5
EXIT_UNAUTHORIZED = 6
EXIT_INTERRUPTED = 130

KEY_VARIABLE = "VOLT_API_KEY"
PROFILE_VARIABLE = "VOLT_PROFILE"

CONNECT_SECONDS_MAX = 3.0
"""How long a command waits for the bus: a person waits too."""
SENTENCE_CHARS_MAX = 500
PIPE_COLUMNS = 240
"""Into a pipe or file a table is as wide as it needs to be: nothing of it is folded."""

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="VOLT_DATA",
    help="The control plane's data folder; the default is the user's.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


class Group(click.Group):
    """Lists each command with the first sentence of its help, the whole of it: click would cut it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        said = [(name, one.get_short_help_str(SENTENCE_CHARS_MAX)) for name, one in commands if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(said)


def client(data: Path | None) -> Client:
    """A client of the control plane whose context is in the data folder; `VOLT_API_KEY` may be another account's key.

    Of a folder that was given with the command itself the account is meant too, whatever the environment says.
    Raises NotFound if there is no context.
    """
    context = read_context(data_folder(data))
    key = context.api_key if _is_given("data") else os.environ.get(KEY_VARIABLE) or context.api_key
    return Client(context.gateway_url, key, on_break=_say_it_waits)


def _is_given(option: str) -> bool:
    """Whether the running command has this option in its words, and not from the environment."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is ParameterSource.COMMANDLINE


def _say_it_waits(error: Unavailable) -> None:
    err.print(f"waiting for the control plane to come back: {error}", markup=False)


def profile() -> ProfileName:
    """The profile that `VOLT_PROFILE` names. Raises Refused for one that there is not."""
    wanted = os.environ.get(PROFILE_VARIABLE) or "embedded"
    for name in PROFILES:
        if name == wanted:
            return name
    message = f"there is no profile {wanted!r}; {PROFILE_VARIABLE} may be {' or '.join(PROFILES)}"
    raise Refused(
        Reason(code="invalid_profile", message=message, field="profile", seen=wanted, choices=tuple(PROFILES))
    )


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    click.echo(msgspec.json.encode(value))


def report_failure(error: VoltError) -> int:
    """Tells on stderr what went wrong and what to do, and returns the exit code of its class."""
    err.print(f"[red]error[/red] {error.code}: ", end="")
    err.print(str(error), markup=False)
    reason = error.reason if isinstance(error, Refused) else Reason(code=error.code, message="")
    if reason.seen:
        err.print(f"  seen: {reason.seen}", markup=False)
    if reason.choices:
        err.print(f"  choices: {', '.join(reason.choices)}", markup=False)
    match error:
        case Refused() | MalformedMessage() | VoltError(code="file_unreadable"):
            return EXIT_REFUSED
        case NotFound() | VoltError(code="context_missing"):
            return EXIT_NOT_FOUND
        case Unavailable():
            return EXIT_UNAVAILABLE
        case Unauthorized():
            return EXIT_UNAUTHORIZED
        case _:
            return EXIT_FAILED
