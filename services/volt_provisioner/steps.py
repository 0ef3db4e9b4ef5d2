"""What a cluster's state calls for next: one event at once, or else one of those that wait for their instant."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from volt.contracts.clusters import ClusterEvent
from volt.contracts.ids import LeaseId
from volt.contracts.timing import Timing
from volt.contracts.units import MS_PER_SECOND
from volt_provisioner import events
from volt_provisioner.causes import no_replacement
from volt_provisioner.crew import Crew, Offered, Prepared, Preparing, Sought, Vacant
from volt_provisioner.lifecycle import halt_ms_max
from volt_provisioner.states import (
    Absent,
    Cleared,
    Cluster,
    Ending,
    Forming,
    Granted,
    Open,
    Released,
    Running,
    Starting,
    Stopping,
    Verdict,
    are_prepared,
)

AT_ONCE_MS = 0

Make = Callable[[int], ClusterEvent]


class Step(NamedTuple):
    """An event and the instant behind which it is due.

    A wait for an answer has its `patience_ms`, which starts afresh with the service: who could not be heard is not
    late.
    """

    due_ms: int
    make: Make
    patience_ms: int = 0

    def is_due(self, at_ms: int, began_ms: int) -> bool:
        """Whether the event should be appended now, by a service that began to listen at `began_ms`."""
        return at_ms > self.due_ms and (self.patience_ms == 0 or at_ms > began_ms + self.patience_ms)


def next_steps(cluster: Cluster, timing: Timing) -> list[Step]:
    """The steps that a cluster calls for, the first due first; only one of them is taken. None: it waits for others."""
    match cluster:
        case Absent() | Released() | Cleared():
            return []
        case Ending(was=was, verdict=verdict):
            return [Step(AT_ONCE_MS, partial(events.released, was, verdict))]
        case Granted() | Forming() | Starting() | Running() | Stopping():
            make = _at_once(cluster, timing)
            if make is not None:
                return [Step(AT_ONCE_MS, make)]
            deadlines = [*_deadlines(cluster, timing), *_duration(cluster)]
            return sorted(deadlines, key=lambda step: step.due_ms)


def _at_once(cluster: Open, timing: Timing) -> Make | None:
    match cluster:
        case Granted():
            return partial(events.forming_first, cluster, timing)
        case Forming():
            return _forming_at_once(cluster, timing)
        case Starting() | Running():
            return _crew_at_once(cluster)
        case Stopping(life=life, crew=crew):
            if life.doomed:
                return partial(events.lost, cluster, life.doomed[0], "node_lost")
            is_decided = crew.lost or len(crew.ended) == len(crew.members)
            return partial(events.forming_again, cluster, timing) if is_decided else None


def _forming_at_once(cluster: Forming, timing: Timing) -> Make | None:
    """Who was granted joins, though its node be lost: only a member is replaced. Losses come before what is wanted."""
    seats = cluster.seats.values()
    offered = next((seat for seat in seats if isinstance(seat, Offered)), None)
    if offered is not None:
        return partial(events.joined, cluster, offered, timing)
    if cluster.life.doomed:
        return partial(events.lost, cluster, cluster.life.doomed[0], "node_lost")
    if any(isinstance(seat, Vacant) for seat in seats):
        return partial(events.wanted, cluster)
    prepared = [seat.member.lease for seat in seats if isinstance(seat, Prepared)]
    gone = next((lease for lease in prepared if lease in cluster.unended), None)
    if gone is not None:
        return partial(events.ended_unseen, cluster, gone)
    return partial(events.starting, cluster, timing) if are_prepared(cluster) else None


def _crew_at_once(cluster: Starting | Running) -> Make | None:
    crew = cluster.crew
    if crew.trouble is not None:
        return partial(events.generation_ended, cluster, crew.trouble)
    if cluster.life.doomed:
        return partial(events.lost, cluster, cluster.life.doomed[0], "node_lost")
    if isinstance(cluster, Starting) and not _missing(crew, crew.started):
        return partial(events.ready, cluster)
    return None


def _deadlines(cluster: Open, timing: Timing) -> Iterator[Step]:
    """By when others must have answered."""
    match cluster:
        case Granted() | Running():
            return
        case Forming(seats=seats, setbacks=setbacks):
            for rank, seat in seats.items():
                if isinstance(seat, Preparing):
                    late = partial(events.lost, cluster, seat.member.lease, "prepare_overdue")
                    yield Step(seat.prepare_by_ms, late, timing.prepare_ms_max)
                elif isinstance(seat, Sought):
                    end = partial(events.released, cluster, no_replacement(setbacks[rank]))
                    yield Step(setbacks[rank].since_ms + timing.replace_ms_max, end, timing.replace_ms_max)
        case Starting(crew=crew, start_by_ms=by_ms):
            for lease in _missing(crew, crew.started):
                yield Step(by_ms, partial(events.lost, cluster, lease, "start_overdue"), timing.start_ms_max)
        case Stopping(crew=crew, halt_by_ms=by_ms):
            for lease in _missing(crew):
                yield Step(by_ms, partial(events.lost, cluster, lease, "halt_overdue"), halt_ms_max(timing))


def _duration(cluster: Open) -> Iterator[Step]:
    """When the job has had all the time it asked for, counted from its first being ready."""
    life = cluster.life
    if life.ready_ms is not None and life.job.spec.max_duration_seconds is not None:
        due_ms = life.ready_ms + life.job.spec.max_duration_seconds * MS_PER_SECOND
        yield Step(due_ms, partial(events.released, cluster, Verdict("duration_reached")))


def _missing(crew: Crew, arrived: Collection[LeaseId] = ()) -> list[LeaseId]:
    """The members that have neither arrived nor ended."""
    return [lease for lease in crew.members if lease not in crew.ended and lease not in arrived]
