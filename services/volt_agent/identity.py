"""What makes a node the same one tomorrow: an id in its state folder, which one agent holds at a time."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from volt.contracts.errors import Reason, Refused
from volt.contracts.ids import is_id

NODE_ID_BYTES = 5


@contextmanager
def held_identity(state_folder: Path) -> Iterator[str]:
    """The node id of this state folder, made at its first use, for as long as nobody else holds it.

    Raises Refused with code `agent_running` if another agent holds the folder.
    """
    state_folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(state_folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another agent runs with the state folder {state_folder}; give this one its own with --state"
            raise Refused(Reason(code="agent_running", message=message, field="state")) from error
        yield _node_id(state_folder / "node")
    finally:
        os.close(lock)


def new_incarnation() -> str:
    """A name for this run of the agent, like no other's."""
    return secrets.token_hex(8)


def _node_id(file: Path) -> str:
    if file.exists():
        node = file.read_text().strip()
        if is_id(node):
            return node
        raise Refused(Reason(code="invalid_node_id", message=f"{file} holds no node id", seen=node[:64]))
    node = "n" + secrets.token_hex(NODE_ID_BYTES)
    draft = file.with_suffix(".draft")
    with draft.open("w") as out:
        out.write(node)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(file)
    return node
