"""`volt views`: what the gateway shows."""

import asyncio
import sys
import time
from pathlib import Path

import click

from volt.cli.shared import EXIT_UNAVAILABLE, client, data_option, err
from volt.embedded import data_folder, read_context
from volt.runtime.views import drop_views_at

REBUILD_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1


@click.group()
def views() -> None:
    """Look after the views."""


@views.command()
@data_option
def rebuild(data: Path | None) -> None:
    """Drop every view and wait until the gateway has built it anew from the log."""
    dropped = asyncio.run(drop_views_at(read_context(data_folder(data)).redis_url))
    err.print(f"dropped {dropped} keys")
    give_up_at = time.monotonic() + REBUILD_SECONDS_MAX
    with client(data) as market:
        while (health := market.health()).status != "ok":
            if time.monotonic() > give_up_at:
                err.print(f"the gateway has not rebuilt them within {REBUILD_SECONDS_MAX:.0f} s: {health.views}")
                sys.exit(EXIT_UNAVAILABLE)
            time.sleep(POLL_SECONDS)
    err.print(f"rebuilt up to {health.seq} of the log")
