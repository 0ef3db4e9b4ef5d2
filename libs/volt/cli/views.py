"""`volt views`: what the gateway shows."""

import asyncio
import sys
import time
from pathlib import Path

import click
from redis import RedisError

from volt.cli.shared import EXIT_UNAVAILABLE, Group, client, data_option, err
from volt.contracts.errors import Reason, Refused, Unavailable
from volt.embedded import data_folder, read_context
from volt.runtime.views import drop_views_at

REBUILD_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1


@click.group(cls=Group)
def views() -> None:
    """Look after the views."""


@views.command()
@data_option
def rebuild(data: Path | None) -> None:
    """Drop every view and wait until the gateway has built it anew from the log."""
    dropped = _drop(read_context(data_folder(data)).redis_url)
    err.print(f"dropped {dropped} keys")
    give_up_at = time.monotonic() + REBUILD_SECONDS_MAX
    with client(data) as market:
        while (health := market.health()).status != "ok":
            if time.monotonic() > give_up_at:
                err.print(f"the gateway has not rebuilt them within {REBUILD_SECONDS_MAX:.0f} s: {health.views}")
                sys.exit(EXIT_UNAVAILABLE)
            time.sleep(POLL_SECONDS)
    err.print(f"rebuilt up to {health.seq} of the log")


def _drop(redis_url: str) -> int:
    if not redis_url:
        message = "this context does not say where the views are; use the control plane's own"
        raise Refused(Reason(code="no_redis_url", message=message, field="redis_url"))
    try:
        return asyncio.run(drop_views_at(redis_url))
    except (RedisError, TimeoutError) as error:
        raise Unavailable(f"no views at {redis_url}: {error}") from error
