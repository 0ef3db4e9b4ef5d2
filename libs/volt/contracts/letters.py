"""What could not be answered, kept for a person to look at."""

from volt.contracts.messages import Signal, Value


class DeadLetter(Signal, frozen=True, kw_only=True):
    """A message that no handler could answer. `payload` is its bytes, base64 on the wire."""

    service: str
    stream: str
    stream_seq: int
    subject: str
    payload: bytes
    error: str
    cause: str
    deliveries: int


class LogLine(Value, frozen=True, kw_only=True):
    """One line of a workload's output, on `LOGS`."""

    generation: int
    rank: int
    """Process rank in the cluster."""
    stream: str
    text: str


class LogLines(Signal, frozen=True, kw_only=True):
    """Lines of one member, in order. `last`: the processes have ended and no line of the generation follows."""

    node_rank: int
    lines: tuple[LogLine, ...]
    last: bool = False
