"""The object store as the agent needs it. An object is whole and small (`CHUNK_BYTES`), so none has to be streamed.

StoreError
├── ObjectMissing       there is no object of that name
└── StoreUnavailable    the store did not answer, or would not; the same call may work later
"""

import re
from typing import Protocol, runtime_checkable

_NAME = re.compile(r"[a-z0-9_-]{1,64}(?:/[a-z0-9_-]{1,64})*")


class StoreError(Exception):
    """What can go wrong with an object store."""


class ObjectMissing(StoreError):
    def __init__(self, name: str) -> None:
        super().__init__(f"the store has no object {name}")
        self.name = name


class StoreUnavailable(StoreError):
    pass


@runtime_checkable
class Store(Protocol):
    """Objects by name. A name is segments of lower-case letters, digits, `_` and `-`, joined by slashes."""

    async def put(self, name: str, data: bytes) -> None:
        """Stores an object, whole or not at all; one that is there is replaced and is as good as new.

        Raises StoreUnavailable; then it may or may not be stored.
        """
        ...

    async def get(self, name: str) -> bytes:
        """The object's bytes. Raises ObjectMissing, StoreUnavailable."""
        ...

    async def names(self, prefix: str) -> frozenset[str]:
        """The names of all objects whose first segments are these. Raises StoreUnavailable."""
        ...

    async def delete(self, name: str) -> None:
        """Removes an object; one that is gone already is no error. Raises StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Gives up connections."""
        ...


def checked(name: str) -> str:
    """The same name; it would be a bug to ask for one that some store cannot have."""
    assert _NAME.fullmatch(name), f"{name!r} is no name of an object"
    return name
