"""Settings of the gateway."""

from typing import Annotated

import msgspec

from volt.runtime.settings import BusSettings


class Settings(BusSettings, frozen=True, kw_only=True):
    """Beside the bus: where the views are, and where it listens, on loopback. Port 0 takes a free one."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    gateway_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8420
