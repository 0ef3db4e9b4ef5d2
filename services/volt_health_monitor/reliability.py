"""How far a node can be relied on, from how long it was alive and how often it fell silent.

    reliability = (alive + trust) / (alive + trust + penalty x losses)

`trust` is what a node without a history starts with, and `penalty` the time alive that makes up for one loss. A node
that leaves on purpose, or whose beats come back before it is lost, loses nothing.
"""

from typing import NamedTuple

from volt.contracts.nodes import NodeAlive, NodeEvent, NodeLost
from volt.contracts.units import MS_PER_HOUR

PERMILLE = 1_000
TRUST_MS = 7 * 24 * MS_PER_HOUR
PENALTY_MS = 24 * MS_PER_HOUR


class Record(NamedTuple):
    """A node's history. `since_ms` is when it became alive; None while it is not."""

    alive_ms: int = 0
    losses: int = 0
    since_ms: int | None = None


def recorded(record: Record, event: NodeEvent) -> Record:
    """The history with one more event."""
    match event:
        case NodeAlive() if record.since_ms is None:
            return record._replace(since_ms=event.at_ms)
        case NodeLost(cause=cause):
            return Record(_alive_ms(record, event.at_ms), record.losses + (cause == "silent"))
        case _:
            return record


def reliability_permille(record: Record, at_ms: int) -> int:
    """Thousandths, rounded down; 1,000 for a node that was never lost."""
    good_ms = _alive_ms(record, at_ms) + TRUST_MS
    return PERMILLE * good_ms // (good_ms + PENALTY_MS * record.losses)


def _alive_ms(record: Record, at_ms: int) -> int:
    return record.alive_ms if record.since_ms is None else record.alive_ms + max(0, at_ms - record.since_ms)
