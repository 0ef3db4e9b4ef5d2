"""Identifiers: all of them are single NATS subject tokens, so that permissions can be given by subject.

Ids of what a request creates are derived from the request, so that sending it twice names the same thing.
"""

import base64
import hashlib
import re
from typing import Annotated

import msgspec

ID_CHARS_MAX = 64
# `$` alone would let a newline through at the end, and a newline in a subject is another command to the bus.
ID_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)"

AccountId = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
NodeId = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
JobId = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
LeaseId = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
GpuUuid = Annotated[str, msgspec.Meta(min_length=1, max_length=96)]
Address = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.:%_-]{1,253}$(?!\n)")]
"""An IP address or a host name, as `MASTER_ADDR` takes it."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
"""A SHA-256 in hex."""


def is_id(text: str) -> bool:
    """Whether `text` can be an account, node, job or lease id."""
    return re.fullmatch(ID_PATTERN, text) is not None


def job_id(account: str, request_id: str) -> str:
    """The id of the job that this account's request makes, the same at every retry."""
    return "j" + _token(f"{account}\0{request_id}")


def quote_id(account: str, request_id: str) -> str:
    """The id of the quote that this account's request makes; no job has it."""
    return "q" + _token(f"{account}\0{request_id}")


def lease_id(job: str, number: int) -> str:
    """The id of a job's `number`-th lease, counted from 1 over the job's whole life."""
    return f"{job}-{number}"


def digest(data: bytes) -> str:
    """Fingerprint of a request's bytes: tells a retry from another request under the same id."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def key_sha256(api_key: str) -> str:
    """What is stored of an HTTP key."""
    return hashlib.sha256(api_key.encode()).hexdigest()


def _token(text: str) -> str:
    raw = hashlib.blake2b(text.encode(), digest_size=10).digest()
    return base64.b32encode(raw).decode().lower().rstrip("=")
