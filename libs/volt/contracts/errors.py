"""What can be wrong, in words that every door uses alike.

VoltError                      everything that VOLT raises on purpose; has a stable `code`
├── Refused                    a request that the rules do not allow; carries a `Reason`
├── MalformedMessage           bytes that are not the message they should be
├── NotFound                   nothing by that name for this account
├── Unauthorized               the key is missing, wrong or revoked
└── Unavailable                a part of the control plane cannot answer now; the same call may work later
    └── BusUnavailable         the bus did not acknowledge in time; what was sent may or may not be stored

A code is the same on HTTP, in the CLI and in the SDK.
"""

import msgspec

CHOICES_MAX = 8
SEEN_CHARS_MAX = 80
"""Of what was seen, as far as a reason repeats it."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why something was refused: what was wrong, the value seen, and what to do next."""

    code: str
    message: str
    field: str = ""
    seen: str = ""
    choices: tuple[str, ...] = ()


class VoltError(Exception):
    """Base of everything raised on purpose. `code` is stable."""

    code = "internal"


class Refused(VoltError):
    """The rules do not allow it."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason
        self.code = reason.code


class MalformedMessage(VoltError):
    """Bytes that are not the message they should be."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotFound(VoltError):
    """Nothing by that name for this account."""

    code = "not_found"


class Unauthorized(VoltError):
    """The key is missing, wrong or revoked."""

    code = "unauthorized"


class Unavailable(VoltError):
    """A part of the control plane cannot answer now; the same call may work later."""

    code = "unavailable"


class BusUnavailable(Unavailable):
    """The bus did not acknowledge in time; what was sent may or may not be stored."""

    code = "bus_unavailable"


def refused_for(code: str, field: str, seen: str, message: str) -> Refused:
    """The refusal of a field, with what was seen there."""
    return Refused(Reason(code=code, message=message, field=field, seen=shown(seen)))


def shown(text: str) -> str:
    """The text, cut off if it is long."""
    return text if len(text) <= SEEN_CHARS_MAX else text[: SEEN_CHARS_MAX - 1] + "…"
