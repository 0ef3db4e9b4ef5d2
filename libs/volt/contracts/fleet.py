"""What the health-monitor says of all nodes together: whether losses are held, and at what pace agents beat."""

from typing import Annotated

import msgspec

from volt.contracts.messages import Event, Signal
from volt.contracts.subjects import LOG_FLEET
from volt.contracts.timing import PACE_LEVEL_MAX, Timing

PaceLevel = Annotated[int, msgspec.Meta(ge=0, le=16)]


class FleetEvent(Event, frozen=True, kw_only=True):
    """An event of `log.fleet`, written by the health-monitor."""

    at_ms: int

    def subject(self) -> str:
        return LOG_FLEET


class LossesHeld(FleetEvent, frozen=True, kw_only=True):
    """Too many nodes fell silent at once to believe that all of them died: `silent` of `watched`, and at most
    `silent_max` are believed. Until `LossesReleased` no silence is called a loss."""

    silent: int
    watched: int
    silent_max: int


class LossesReleased(FleetEvent, frozen=True, kw_only=True):
    """The beat stream has answered the monitor's own probes for `steady_ms` without a break: who is silent still is
    judged from now on, which are `silent` of `watched` nodes."""

    silent: int
    watched: int
    steady_ms: int


class PaceSet(FleetEvent, frozen=True, kw_only=True):
    """So many living nodes beat at this level from now on: each level doubles the periods of the one below."""

    level: PaceLevel
    nodes: int


class Pace(Signal, frozen=True, kw_only=True):
    """The value on `desired.fleet`: how often an agent beats, and how long it runs on from an acknowledged beat."""

    beat_ms: int
    fence_after_ms: int

    def is_of(self, timing: Timing) -> bool:
        """Whether it is one of the paces of this profile: nothing else is believed."""
        levels = map(timing.at_level, range(PACE_LEVEL_MAX + 1))
        return any((self.beat_ms, self.fence_after_ms) == (one.beat_ms, one.fence_after_ms) for one in levels)
