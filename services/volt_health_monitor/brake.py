"""The brake: when too many nodes fall silent at once, nobody is lost until the monitor has reason to trust its eyes.

    Free ──LossesHeld──▶ Held ──LossesReleased──▶ Free

A node is counted from half of its L without a beat until one and a half, called lost meanwhile or not: so whoever fell
silent within one L is counted together when the first of them would be lost. More than a few machines do not die at
once; a switch, a provider's uplink or a bus that takes some beats and not others does look so. The brake ends when the
beat stream has answered the monitor's probes for long enough without a break, counted from the last such surge: what is
silent then has been silent for long, and is judged, however much it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from volt.contracts.fleet import FleetEvent, LossesHeld, LossesReleased, PaceSet
from volt_health_monitor.nodes import NodeKey

SILENT_NODES_MAX = 3
"""So many are believed to be lost at once, however small the fleet."""
SILENT_PERCENT_MAX = 30
"""Of the nodes that are watched: so many are believed in a large one."""


class Surge(NamedTuple):
    """Nodes that fell silent at once, of those that are watched."""

    silent: int
    watched: int
    is_due: bool
    """Whether one of them has been silent for all of its L, so that it would be lost."""

    @property
    def silent_max(self) -> int:
        return max(SILENT_NODES_MAX, self.watched * SILENT_PERCENT_MAX // 100)

    @property
    def is_believed(self) -> bool:
        return not self.is_due or self.silent <= self.silent_max


NO_SURGE = Surge(0, 0, is_due=False)


class Fall(NamedTuple):
    """When a node was last heard of, on the monotonic clock, and its L."""

    heard_ms: int
    lost_after_ms: int

    def counts(self, now_ms: int) -> bool:
        return 2 * (now_ms - self.heard_ms) <= 3 * self.lost_after_ms

    def is_due(self, now_ms: int) -> bool:
        return now_ms - self.heard_ms >= self.lost_after_ms


@dataclass(frozen=True)
class Free:
    """Losses are said as they are found."""


@dataclass(frozen=True)
class Held:
    """No silence is called a loss, since `at_ms` of the log."""

    at_ms: int


@dataclass
class Brake:
    """What the log says of it, and what was counted beside the log."""

    phase: Free | Held = Free()
    surge: Surge = NO_SURGE
    """As the last probe found it."""
    steady_since_ms: int | None = None
    """Since when probes have come back without a break and without too large a surge; on the monotonic clock."""
    fallen: dict[NodeKey, Fall] = field(default_factory=dict)
    """Nodes that were called lost, as long as they count."""

    @property
    def holds(self) -> bool:
        """Whether no silence may be called a loss now."""
        return isinstance(self.phase, Held) or not self.surge.is_believed


def evolve_brake(brake: Brake, event: FleetEvent) -> None:
    """Folds what the log says of it. Raises AssertionError for what cannot follow."""
    match brake.phase, event:
        case Free(), LossesHeld():
            brake.phase = Held(event.at_ms)
        case Held(), LossesReleased():
            brake.phase = Free()
        case _, PaceSet():
            pass
        case _:
            raise AssertionError(f"{type(event).__name__} while {type(brake.phase).__name__}")


def observe_silence(brake: Brake, silent: Iterable[Fall], watched: int, sent_ms: int, receipt_ms: int) -> None:
    """Counts again: a probe that was sent at `sent_ms` came back, and these of the watched nodes are silent."""
    brake.fallen = {key: fall for key, fall in brake.fallen.items() if fall.counts(sent_ms)}
    counted = [fall for fall in silent if fall.counts(sent_ms)]
    lost = len(brake.fallen)
    is_due = any(fall.is_due(sent_ms) for fall in counted)
    brake.surge = Surge(len(counted) + lost, watched + lost, is_due=is_due)
    if brake.steady_since_ms is None or not brake.surge.is_believed:
        brake.steady_since_ms = receipt_ms


def lose_steadiness(brake: Brake) -> None:
    """The row of probes is broken: it begins afresh with the next one. Who is silent then has to fall silent anew."""
    brake.steady_since_ms = None
    brake.surge = NO_SURGE


def steady_ms(brake: Brake, receipt_ms: int | None) -> int:
    """For how long probes have come back without a break, by the last one."""
    if brake.steady_since_ms is None or receipt_ms is None:
        return 0
    return receipt_ms - brake.steady_since_ms
