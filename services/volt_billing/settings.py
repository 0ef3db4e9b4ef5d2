"""Settings of billing."""

from volt.runtime.settings import BusSettings


class Settings(BusSettings, frozen=True, kw_only=True):
    """Nothing but the bus."""
