"""`volt dlq`: what nobody could be answered about."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from volt.cli.shared import CONNECT_SECONDS_MAX, Group, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.letters import DeadLetter
from volt.embedded import data_folder, read_context
from volt.runtime import telemetry
from volt.runtime.dead_letters import letter, letters, replay
from volt.runtime.nats import NatsBus

T = TypeVar("T")
PAYLOAD_CHARS_SHOWN_MAX = 2_000


@click.group(cls=Group)
def dlq() -> None:
    """List, show and replay dead letters."""
    telemetry.set_up("cli")


@dlq.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """The dead letters that are kept, oldest first."""
    found = asyncio.run(_on_bus(data, letters))
    if as_json:
        print_json(found)
        return
    rows = [(str(one.seq), one.letter.subject, one.letter.service, one.letter.cause, one.letter.error) for one in found]
    out.print(table(("number", "subject", "service", "cause", "error"), rows))
    err.print("1 dead letter" if len(found) == 1 else f"{len(found)} dead letters")


@dlq.command()
@click.argument("number", type=int)
@data_option
@json_option
def show(number: int, data: Path | None, as_json: bool) -> None:
    """One dead letter with its payload."""
    found = asyncio.run(_on_bus(data, lambda bus: letter(bus, number)))
    if as_json:
        print_json(found)
        return
    for name in DeadLetter.__struct_fields__:
        value = getattr(found.letter, name)
        text = value.decode(errors="replace")[:PAYLOAD_CHARS_SHOWN_MAX] if isinstance(value, bytes) else str(value)
        out.print(f"{name:12} {text}", markup=False)


@dlq.command("replay")
@click.argument("number", type=int)
@data_option
def replay_(number: int, data: Path | None) -> None:
    """Send a dead letter's message again, to its subject, and take the letter out."""
    subject = asyncio.run(_on_bus(data, lambda bus: replay(bus, number)))
    err.print(f"sent again on {subject}")


async def _on_bus(data: Path | None, act: Callable[[NatsBus], Awaitable[T]]) -> T:
    bus = await NatsBus.connect(read_context(data_folder(data)).nats_url, "dlq", CONNECT_SECONDS_MAX)
    try:
        return await act(bus)
    finally:
        await bus.close()
