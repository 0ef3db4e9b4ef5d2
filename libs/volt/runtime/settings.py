"""Settings from the environment, checked before anything starts."""

import os
from typing import TypeVar

import msgspec

from volt.contracts.errors import Reason, Refused
from volt.contracts.timing import PROFILES, ProfileName, Timing

PREFIX = "VOLT_"


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service needs. Each field is read from `VOLT_<FIELD>`."""

    nats_url: str = "nats://127.0.0.1:4222"
    profile: ProfileName = "embedded"
    ready_fd: int | None = None
    """A file descriptor on which the service says `ready`, once."""

    @property
    def timing(self) -> Timing:
        return PROFILES[self.profile]


T = TypeVar("T", bound=msgspec.Struct)


def from_environment(kind: type[T]) -> T:
    """The settings of this process. Raises Refused, naming the variable."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    values = {name: os.environ[PREFIX + name.upper()] for name in names if PREFIX + name.upper() in os.environ}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(Reason(code="invalid_setting", message=f"environment {PREFIX}*: {error}")) from error
