"""The states of a node, and what its beats and its silence call for.

    Unseen ──NodeAlive──▶ Alive ──NodeUnknown──▶ Unknown ──NodeLost──▶ Lost
      │                   │ │ ▲                     │                   │ ▲
      │                   │ │ └──────NodeAlive──────┴───────────────────┘ │
      │                   │ └──NodeAlive of a new incarnation──▶ Alive    │
      │                   └──NodeLost──▶ Lost                             │
      └──NodeLost, when its bid has waited for a beat for too long────────┘

What is said of the GPUs of a node that is alive, and of its reliability, leaves it alive.
The log holds the states; beats, silence and departures are seen beside it, and are answered by its next event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from volt.contracts.nodes import (
    GpuFaulted,
    GpuQuarantined,
    Heartbeat,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    NodeRated,
    NodeUnknown,
    QuarantineEnded,
)

INCARNATIONS_REMEMBERED_MAX = 8

Silence = Literal["unknown", "silent", "certain"]
"""Half of L without a beat, or all of it; or all of it, and the leader of the beat stream has no newer one either."""

Verdict = Literal["alive", "unknown", "silent", "left", "never_beat"]

Tenure = tuple[str, int]
"""A lease and its generation."""


class NodeKey(NamedTuple):
    """Who a node is: its account and its name there."""

    account: str
    node: str


class Sight(NamedTuple):
    """The newest beat of a node. `at_ms` is when the stream stored it."""

    incarnation: str
    sequence: int
    at_ms: int
    leaving: bool
    started: tuple[str, ...]
    """The incarnations that were seen, by their start."""
    running: Mapping[Tenure, int]
    """Since when each lease that runs has been covered without a break."""
    fence_ms: int
    """How long it states that the node runs on."""


@dataclass(frozen=True)
class Unseen:
    """It has never been alive."""


@dataclass(frozen=True)
class Seen:
    """It has been alive. `started` are its incarnations by their start, the present one last; so says the log since
    `since_ms`."""

    started: tuple[str, ...]
    since_ms: int

    @property
    def incarnation(self) -> str:
        return self.started[-1]


@dataclass(frozen=True)
class Alive(Seen):
    """Its beats arrive."""


@dataclass(frozen=True)
class Unknown(Seen):
    """Its beats are missing since about `at_ms`."""

    at_ms: int


@dataclass(frozen=True)
class Lost(Seen):
    """Whatever it ran has been given up at `at_ms`."""

    at_ms: int


NodeState = Unseen | Alive | Unknown | Lost
UNSEEN = Unseen()


def after(node: NodeState, event: NodeEvent) -> NodeState:
    """The state that the event leads to. Raises AssertionError for a transition that is not in the table."""
    match node, event:
        case (
            Alive(),
            GpuFaulted() | GpuQuarantined() | NodeQuarantined() | QuarantineEnded() | NodeRated(),
        ) if event.incarnation == node.incarnation:
            return node
        case Unseen(), NodeAlive():
            return Alive((event.incarnation,), event.at_ms)
        case Unseen(), NodeLost(cause="never_beat"):
            return Lost((event.incarnation,), event.at_ms, event.at_ms)
        case Alive(), NodeAlive() if event.incarnation != node.incarnation:
            return Alive(with_start(node.started, event.incarnation), event.at_ms)
        case Unknown() | Lost(), NodeAlive():
            return Alive(with_start(node.started, event.incarnation), event.at_ms)
        case Alive(), NodeUnknown():
            return Unknown(node.started, node.since_ms, event.at_ms)
        case Alive() | Unknown(), NodeLost():
            return Lost(with_start(node.started, event.incarnation), node.since_ms, event.at_ms)
        case _:
            raise AssertionError(f"{type(event).__name__} of {event.node}, which is {type(node).__name__}")


def verdict(node: NodeState, sight: Sight | None, silence: Silence | None) -> Verdict | None:
    """What the log should say next of a node of which this was seen; None if it says so already."""
    match node:
        case Unseen():
            if sight is not None:
                return None if sight.leaving else "alive"
            return "never_beat" if silence == "certain" else None
        case Alive():
            if sight is None or _is_outdated(node, sight):
                return _said_of(silence)
            if sight.leaving:
                return "left"
            return _said_of(silence) if sight.incarnation == node.incarnation else "alive"
        case Unknown():
            if sight is not None and _is_news(node, sight):
                return "left" if sight.leaving else "alive"
            return "silent" if silence == "certain" else None
        case Lost():
            return "alive" if sight is not None and _is_news(node, sight) and not sight.leaving else None


def is_stale(beat: Heartbeat, at_ms: int, sight: Sight | None, node: NodeState) -> bool:
    """Whether it was seen already, or is older than what was: by its incarnation's start, then by its sequence."""
    if not isinstance(node, Unseen) and beat.incarnation in node.started[:-1] and at_ms > node.since_ms:
        return True
    if sight is None:
        return False
    if beat.incarnation == sight.incarnation:
        return beat.sequence <= sight.sequence
    return beat.incarnation in sight.started


def with_start(started: tuple[str, ...], incarnation: str) -> tuple[str, ...]:
    """The incarnations with this one among them, as the latest if it is new."""
    return started if incarnation in started else (*started, incarnation)[-INCARNATIONS_REMEMBERED_MAX:]


def _said_of(silence: Silence | None) -> Verdict | None:
    """What silence means for a node that is said to be alive: unknown, until it is certain."""
    match silence:
        case None:
            return None
        case "unknown" | "silent":
            return "unknown"
        case "certain":
            return "silent"


def _is_outdated(node: Seen, sight: Sight) -> bool:
    """Whether the log knows of an incarnation that began after the one that was seen."""
    return sight.incarnation in node.started[:-1]


def _is_news(node: Unknown | Lost, sight: Sight) -> bool:
    """Whether the beat came after the event that it contradicts. One from before is read again at a restart."""
    return sight.at_ms > node.at_ms and not _is_outdated(node, sight)
