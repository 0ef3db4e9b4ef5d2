"""How far a node, and its provider, can be relied on: one formula, from the events of `log.node` alone.

    node      (good + trust x others) / (good + trust + bad)
    provider  (good + trust) / (good + trust + bad), of all its nodes together

`good` is the time alive and `bad` the sum of what its faults cost, both in milliseconds and both halved every half-life
since. `trust` is what somebody without a history starts with; `others` is the reliability of the provider's other
nodes, so that a new name for an old machine makes nothing good. Only what is the provider's doing is a fault: a node
that leaves on purpose, a doubt that passes, a workload's errors, and what the control plane did not see, are none.

docs/reliability.md tells why the constants are what they are.
"""

import math
from typing import Literal, NamedTuple

from volt.contracts.messages import Value
from volt.contracts.nodes import GpuFaulted, GpuQuarantined, NodeAlive, NodeEvent, NodeLost, NodeQuarantined
from volt.contracts.units import MS_PER_HOUR

PERMILLE = 1_000
DAY_MS = 24 * MS_PER_HOUR
HALF_LIFE_MS = 30 * DAY_MS
TRUST_MS = 7 * DAY_MS

Mishap = Literal["lost", "node_quarantined", "gpu_quarantined", "gpu_faulted"]
COST_MS: dict[Mishap, int] = {
    "lost": DAY_MS,
    "node_quarantined": DAY_MS,
    "gpu_quarantined": DAY_MS // 2,
    "gpu_faulted": 2 * MS_PER_HOUR,
}
"""The time alive that makes up for it."""


class Record(Value, frozen=True, kw_only=True):
    """A history, as it weighs at `at_ms`. `alive` is how many of its nodes are alive from then on."""

    good_ms: float = 0.0
    bad_ms: float = 0.0
    alive: int = 0
    at_ms: int = 0


class Change(NamedTuple):
    """What an event does to a history."""

    alive: int = 0
    mishap: Mishap | None = None


def mishap_of(event: NodeEvent) -> Mishap | None:
    """What an event counts as, if it counts against the provider at all."""
    match event:
        case NodeLost(cause="silent"):
            return "lost"
        case NodeQuarantined():
            return "node_quarantined"
        case GpuQuarantined():
            return "gpu_quarantined"
        case GpuFaulted():
            return "gpu_faulted"
        case _:
            return None


def change_of(record: Record, event: NodeEvent) -> Change:
    """What the event does to the history of its node, which is this one."""
    match event:
        case NodeAlive():
            return Change(alive=1 - record.alive)
        case NodeLost():
            return Change(-record.alive, mishap_of(event))
        case _:
            return Change(0, mishap_of(event))


def changed(record: Record, change: Change, at_ms: int) -> Record:
    """The history with one more change, at `at_ms`."""
    now = aged(record, at_ms)
    cost_ms = 0 if change.mishap is None else COST_MS[change.mishap]
    return Record(
        good_ms=now.good_ms, bad_ms=now.bad_ms + cost_ms, alive=now.alive + change.alive, at_ms=max(at_ms, now.at_ms)
    )


def aged(record: Record, at_ms: int) -> Record:
    """The same history as it weighs later: what is old counts less, and whoever is alive has gained."""
    passed_ms = at_ms - record.at_ms
    if passed_ms <= 0:
        return record
    kept = weight(passed_ms)
    gained_ms = record.alive * HALF_LIFE_MS / math.log(2) * (1 - kept)
    return Record(
        good_ms=record.good_ms * kept + gained_ms, bad_ms=record.bad_ms * kept, alive=record.alive, at_ms=at_ms
    )


def weight(age_ms: int) -> float:
    """How much of what is that old still counts."""
    return math.exp2(-age_ms / HALF_LIFE_MS)


def provider_permille(record: Record, at_ms: int) -> int:
    """Thousandths, rounded down; 1,000 for a provider that was never at fault."""
    now = aged(record, at_ms)
    return _permille(now.good_ms + TRUST_MS, now.good_ms + TRUST_MS + now.bad_ms)


def node_permille(record: Record, provider: Record, at_ms: int) -> int:
    """Thousandths, rounded down, of a node whose provider has this history, the node's own included."""
    now, whole = aged(record, at_ms), aged(provider, at_ms)
    others_good_ms, others_bad_ms = max(0.0, whole.good_ms - now.good_ms), max(0.0, whole.bad_ms - now.bad_ms)
    others = (others_good_ms + TRUST_MS) / (others_good_ms + TRUST_MS + others_bad_ms)
    return _permille(now.good_ms + TRUST_MS * others, now.good_ms + TRUST_MS + now.bad_ms)


def _permille(part_ms: float, whole_ms: float) -> int:
    # A hair below a whole permille is the error of a sum and not a fault.
    return min(PERMILLE, max(1, math.floor(PERMILLE * part_ms / whole_ms + 1e-6)))
