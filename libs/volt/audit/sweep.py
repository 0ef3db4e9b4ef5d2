"""Reckons from its story what a job owes, by walking over the instants at which anything changes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from math import floor
from operator import itemgetter
from typing import NamedTuple

from volt.audit.story import Fact, Leased, Story, merged
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    GenerationEnded,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberStarted,
)
from volt.contracts.ids import LeaseId
from volt.contracts.jobs import JobReleaseAccepted
from volt.contracts.ledger import FEE_BASIS_POINTS, FundsExhausted
from volt.contracts.units import BASIS_POINTS, MS_PER_HOUR

LATEST_MS = 10**15
"""Later than anything."""

Stretch = tuple[int, int]


class Tally(NamedTuple):
    """Milliseconds of one lease within [ready, end): all, those its own heartbeats cover, and those to be paid for."""

    ready_ms: int
    covered_ms: int
    billable_ms: int


def tally(story: Story, known_facts: int, through_ms: int) -> dict[LeaseId, Tally]:
    """Every lease's time before `through_ms`, by the first `known_facts` facts of the story."""
    told = _heard(story, known_facts)
    ready: dict[LeaseId, list[Stretch]] = defaultdict(list)
    covered: dict[LeaseId, list[Stretch]] = defaultdict(list)
    billable: dict[LeaseId, list[Stretch]] = defaultdict(list)
    for number, ready_ms in told.ready_ms.items():
        whole = _whole(told, number) if story.is_gang else None
        for lease in told.counted[number]:
            own = story.cover.get((lease, number), [])
            to_ms = min(through_ms, told.over_ms, told.ended_ms[number], told.lost_ms[lease])
            counts_to_ms = min(to_ms, told.exit_ms[lease, number])
            ready[lease] += _cut([(ready_ms, counts_to_ms)], ready_ms, counts_to_ms)
            covered[lease] += _cut(own, ready_ms, to_ms)
            billable[lease] += _cut(own if whole is None else whole, ready_ms, counts_to_ms)
    return {
        lease: Tally(_length_ms(ready[lease]), _length_ms(covered[lease]), _length_ms(billable[lease]))
        for lease in story.leases
    }


def due_microusd(leased: Leased, billable_ms: int) -> int:
    """What the lease owes for so much time, rounded down once."""
    hours = Fraction(billable_ms, MS_PER_HOUR)
    return floor(hours * leased.gpus * leased.price_microusd_per_gpu_hour)


def fee_microusd(due: int) -> int:
    """The platform's part of it, rounded down once."""
    return floor(Fraction(due * FEE_BASIS_POINTS, BASIS_POINTS))


def last_instant_ms(story: Story, known_facts: int) -> int:
    """When the last lease stopped counting, by the first `known_facts` facts; 0 if none ever counted."""
    told = _heard(story, known_facts)
    windows = [
        (ready_ms, min(told.over_ms, told.ended_ms[number], told.lost_ms[lease], told.exit_ms[lease, number]))
        for number, ready_ms in told.ready_ms.items()
        for lease in told.counted[number]
    ]
    return max((end_ms for ready_ms, end_ms in windows if ready_ms < end_ms), default=0)


def _latest() -> int:
    return LATEST_MS


@dataclass
class _Told:
    """The instants that a story's facts tell. What is not told does not come."""

    story: Story
    over_ms: int = LATEST_MS
    is_over: bool = False
    ready_ms: dict[int, int] = field(default_factory=dict)
    counted: dict[int, set[LeaseId]] = field(default_factory=dict)
    ended_ms: dict[int, int] = field(default_factory=lambda: defaultdict(_latest))
    lost_ms: dict[LeaseId, int] = field(default_factory=lambda: defaultdict(_latest))
    exit_ms: dict[tuple[LeaseId, int], int] = field(default_factory=lambda: defaultdict(_latest))
    joined: dict[int, set[LeaseId]] = field(default_factory=lambda: defaultdict(set))
    started: dict[int, set[LeaseId]] = field(default_factory=lambda: defaultdict(set))

    def hear(self, fact: Fact) -> None:
        match fact:
            case ClusterForming(generation=number, members=members):
                self.joined[number] = {member.lease for member in members}
            case MemberJoined(generation=number, member=member):
                self.joined[number].add(member.lease)
            case MemberStarted(generation=number, lease=lease):
                self.started[number].add(lease)
            case ClusterReady(generation=number, at_ms=at_ms) if not self.is_over and number not in self.ready_ms:
                present = self.started[number] if self.story.is_gang else self.joined[number]
                self.counted[number] = present & self.story.leases.keys()
                self.ready_ms[number] = at_ms
            case MemberEnded(generation=number, lease=lease, exits=exits, at_ms=at_ms):
                if exits and not any(one.code != 0 for one in exits):
                    self.exit_ms.setdefault((lease, number), at_ms)
            case MemberLost(lease=lease, at_ms=at_ms):
                self.lost_ms[lease] = min(self.lost_ms[lease], at_ms)
            case GenerationEnded(generation=number, at_ms=at_ms) if number in self.ready_ms:
                self.ended_ms[number] = min(self.ended_ms[number], at_ms)
            case JobReleaseAccepted(at_ms=at_ms) | ClusterReleased(at_ms=at_ms) | FundsExhausted(exhausted_at_ms=at_ms):
                self.over_ms, self.is_over = min(self.over_ms, at_ms), True


def _heard(story: Story, known_facts: int) -> _Told:
    told = _Told(story)
    for _, fact in story.facts[:known_facts]:
        told.hear(fact)
    return told


def _whole(told: _Told, number: int) -> list[Stretch]:
    """When none of a gang's members is missing: each is covered, or has exited 0."""
    changes: list[Stretch] = []
    for lease in told.counted[number]:
        exit_ms, lost_ms = told.exit_ms[lease, number], told.lost_ms[lease]
        for from_ms, to_ms in _cut(told.story.cover.get((lease, number), []), 0, min(exit_ms, lost_ms)):
            changes += [(from_ms, 1), (to_ms, -1)]
        changes.append((exit_ms, 1))
    stretches: list[Stretch] = []
    present, since_ms = 0, 0
    for at_ms, group in groupby(sorted(changes), key=itemgetter(0)):
        if present == len(told.counted[number]):
            stretches.append((since_ms, at_ms))
        present += sum(change for _, change in group)
        since_ms = at_ms
    return [*stretches, (since_ms, LATEST_MS)]


def _cut(stretches: Iterable[Stretch], from_ms: int, to_ms: int) -> list[Stretch]:
    clipped = ((max(start_ms, from_ms), min(end_ms, to_ms)) for start_ms, end_ms in stretches)
    return [(start_ms, end_ms) for start_ms, end_ms in clipped if start_ms < end_ms]


def _length_ms(stretches: list[Stretch]) -> int:
    """How many different milliseconds there are: one that is in two generations counts once."""
    return sum(to_ms - from_ms for from_ms, to_ms in merged(stretches))
