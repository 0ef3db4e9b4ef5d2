"""Which store a URL means: `nats://host:port`, `s3://bucket/path` or `file:///folder`."""

import importlib
import importlib.util
from pathlib import Path
from urllib.parse import unquote, urlsplit

from volt.contracts.errors import Reason, Refused
from volt_agent.store.folder import FolderStore
from volt_agent.store.jetstream import JetStreamStore
from volt_agent.store.port import Store

S3_LIBRARY = "obstore"
SCHEMES = ("nats", "tls", "s3", "file")


def check_url(url: str) -> None:
    """Raises Refused for a URL that means no store, or one whose library is not installed."""
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        message = f"{url!r} is no object store; write it like nats://host:4222, s3://bucket/path or file:///folder"
        raise Refused(Reason(code="invalid_store", message=message, field="checkpoints", seen=url, choices=SCHEMES))
    if scheme == "s3" and importlib.util.find_spec(S3_LIBRARY) is None:
        message = f"checkpoints in S3 need the library {S3_LIBRARY}; install it with: pip install 'volt-gpu[s3]'"
        raise Refused(Reason(code="store_not_installed", message=message, field="checkpoints", seen=url))


async def open_store(url: str, name: str) -> Store:
    """The store at this URL; `name` is how the store may know this agent. Raises StoreUnavailable."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            return await FolderStore.open(Path(unquote(parts.path)))
        case "s3":
            # Only the extra `s3` brings its library, so this is loaded when somebody wants it.
            store = importlib.import_module("volt_agent.store.s3").S3Store(url)
            assert isinstance(store, Store)
            return store
        case _:
            return await JetStreamStore.open(url, name)
