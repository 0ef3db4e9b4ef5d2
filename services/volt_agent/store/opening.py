"""Which store a URL means: `nats://host:port`, `s3://bucket/path` or `file:///folder`."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from volt.contracts.errors import Reason, Refused
from volt_agent.store.folder import FolderStore
from volt_agent.store.jetstream import JetStreamStore
from volt_agent.store.port import Store

try:
    from volt_agent.store.s3 import S3Store
except ModuleNotFoundError:  # An extra that most agents do without.
    S3Store = None  # type: ignore[assignment,misc]

SCHEMES = ("nats", "tls", "s3", "file")


def check_url(url: str) -> None:
    """Raises Refused for a URL that means no store, or one whose library is not installed."""
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        message = f"{url!r} is no object store; write it like nats://host:4222, s3://bucket/path or file:///folder"
        raise Refused(Reason(code="invalid_store", message=message, field="checkpoints", seen=url, choices=SCHEMES))
    if scheme == "s3" and S3Store is None:
        message = "checkpoints in S3 need one more library; install it with: pip install 'volt-gpu[agent,s3]'"
        raise Refused(Reason(code="store_not_installed", message=message, field="checkpoints", seen=url))


async def open_store(url: str, name: str) -> Store:
    """The store at this URL; `name` is how the store may know this agent. Raises StoreUnavailable."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            return await FolderStore.open(Path(unquote(parts.path)))
        case "s3":
            assert S3Store is not None, "the URL was checked"
            return S3Store(url)
        case _:
            return await JetStreamStore.open(url, name)
