"""The streams as data: what each keeps, for how long, and how large it may grow."""

from typing import Literal

from volt.contracts.checkpoints import CHUNK_BYTES, OBJECT_SECONDS_MAX
from volt.contracts.messages import Value

STORED_BYTES_MAX = 512 * 1024
"""What a stream takes, headers included; messages themselves are held to less (`messages.MESSAGE_BYTES_MAX`)."""
DESIRED_BYTES_MAX = 4 * 1024**2
"""All that a node has to be told at once: a lease on each of its GPUs, each with the largest workload and manifest."""
GIB = 1024**3
DAY_SECONDS = 86_400


class StreamSpec(Value, frozen=True, kw_only=True):
    """One JetStream stream. Zero means no limit of that kind."""

    name: str
    subjects: tuple[str, ...]
    bytes_max: int
    age_seconds_max: int = 0
    messages_per_subject_max: int = 0
    message_bytes_max: int = STORED_BYTES_MAX
    duplicate_window_seconds: int = 120
    discard: Literal["old", "new"] = "old"
    persist_async: bool = False


LOG = StreamSpec(name="LOG", subjects=("log.>",), bytes_max=16 * GIB, discard="new")
COMMANDS = StreamSpec(name="COMMANDS", subjects=("cmd.>",), bytes_max=2 * GIB, age_seconds_max=7 * DAY_SECONDS)
DESIRED = StreamSpec(
    name="DESIRED",
    subjects=("desired.>",),
    bytes_max=GIB,
    messages_per_subject_max=1,
    message_bytes_max=DESIRED_BYTES_MAX,
)
HEARTBEATS = StreamSpec(
    name="HEARTBEATS", subjects=("heartbeats.>",), bytes_max=2 * GIB, age_seconds_max=900, persist_async=True
)
LOGS = StreamSpec(
    name="LOGS",
    subjects=("logs.>",),
    bytes_max=4 * GIB,
    age_seconds_max=3 * DAY_SECONDS,
    messages_per_subject_max=100_000,
    persist_async=True,
)
DEAD_LETTERS = StreamSpec(
    name="DEAD_LETTERS",
    subjects=("dead.>",),
    bytes_max=GIB,
    age_seconds_max=30 * DAY_SECONDS,
    message_bytes_max=1024**2,
)

CHECKPOINTS = StreamSpec(
    name="CHECKPOINTS",
    subjects=("checkpoints.>",),
    bytes_max=0,
    age_seconds_max=OBJECT_SECONDS_MAX,
    messages_per_subject_max=1,
    message_bytes_max=CHUNK_BYTES,
    discard="new",
)
"""Not one of `ALL`: it is where agents keep objects, on the bus or on a server of its own that may be filled."""

ALL = (LOG, COMMANDS, DESIRED, HEARTBEATS, LOGS, DEAD_LETTERS)
