"""Settings of the gateway."""

from typing import Annotated

import msgspec

from volt.runtime.settings import BusSettings


class Settings(BusSettings, frozen=True, kw_only=True):
    """Beside the bus: where the views are, and where it listens. Port 0 takes a free one."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    gateway_host: str = "127.0.0.1"
    """The address to listen on; anything but loopback belongs behind TLS."""
    gateway_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8420
