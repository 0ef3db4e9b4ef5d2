"""The file in which a control plane leaves its address and key for clients on the same machine."""

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import platformdirs

from volt.contracts.errors import MalformedMessage, NotFound

CONTEXT_FILE = "context.json"
DATA_VARIABLE = "VOLT_DATA"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Where the gateway is, and the key of the account to act for."""

    gateway_url: str
    api_key: str

    def __repr__(self) -> str:
        # The key is a secret: a log line or a traceback that shows a context must not show it.
        return f"Context(gateway_url={self.gateway_url!r}, api_key='***')"


def data_folder(override: Path | None = None) -> Path:
    """The data folder: `override` (--data DIR), else VOLT_DATA, else the user's data folder; absolute."""
    if override is not None:
        return override.absolute()
    named = os.environ.get(DATA_VARIABLE)
    return Path(named or platformdirs.user_data_dir("volt")).absolute()


def read_context(path: str | os.PathLike[str] | None = None) -> Context:
    """The context in a file, or in the data folder that holds it; None is the user's own data folder.

    Raises NotFound, MalformedMessage.
    """
    file = data_folder() if path is None else Path(path).expanduser()
    file = file / CONTEXT_FILE if file.is_dir() else file
    try:
        return msgspec.json.decode(file.read_bytes(), type=Context)
    except OSError as error:
        raise NotFound(f"{file}: {error.strerror}; `volt up` starts a control plane and writes it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage("invalid_context", f"{file}: {error}") from error


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this very machine, where no proxy of the environment is to be asked."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
