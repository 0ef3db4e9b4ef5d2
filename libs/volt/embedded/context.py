"""What a client on this machine needs to know to reach the control plane that runs here."""

from pathlib import Path

import msgspec

from volt.embedded.errors import ContextMissing, FileUnreadable
from volt.embedded.files import make_private_dir, read_if_present, write_whole


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the running control plane, and the account that commands act for."""

    nats_url: str
    redis_url: str
    gateway_url: str
    account: str
    api_key: str
    checkpoints_url: str = ""
    """Where agents store checkpoints; empty: on the bus."""

    def __repr__(self) -> str:
        # The key is a secret: a log line or a traceback that shows a context must not show it.
        return f"Context(gateway_url={self.gateway_url!r}, account={self.account!r}, api_key='***')"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("gateway_url", self.gateway_url), ("account", self.account), ("api_key", "***")]


def write_context(data_dir: Path, context: Context) -> None:
    """Write `context` to <data>/context.json with mode 0600, whole or not at all."""
    write_whole(_context_path(make_private_dir(data_dir)), msgspec.json.format(msgspec.json.encode(context)))


def read_context(data_dir: Path) -> Context:
    """The context in <data>/context.json. Raises ContextMissing, FileUnreadable."""
    path = _context_path(data_dir)
    data = read_if_present(path)
    if data is None:
        raise ContextMissing(path)
    try:
        return msgspec.json.decode(data, type=Context)
    except msgspec.DecodeError as error:
        raise FileUnreadable(path, str(error)) from error


def _context_path(data_dir: Path) -> Path:
    return data_dir / "context.json"
