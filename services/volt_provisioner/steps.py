"""What a cluster's state calls for next: one event at once, or else one of those that wait for their instant."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from volt.contracts.clusters import ClusterEvent
from volt.contracts.ids import LeaseId
from volt.contracts.timing import Timing
from volt.contracts.units import MS_PER_SECOND
from volt_provisioner import events
from volt_provisioner.causes import can_retry, has_failed, is_decided, no_replacement, policy_of, undrained
from volt_provisioner.crew import Crew, Forgone, Offered, Prepared, Preparing, Sought, Vacant
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
    movers,
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
            # What all ranks have stored is committed before the end, so that the last checkpoint of a job counts.
            return [Step(AT_ONCE_MS, _commit(was) or partial(events.released, was, verdict))]
        case Granted() | Forming() | Starting() | Running() | Stopping():
            make = _at_once(cluster, timing)
            if make is not None:
                return [Step(AT_ONCE_MS, make)]
            deadlines = [*_deadlines(cluster, timing), *_duration(cluster)]
            return sorted(deadlines, key=lambda step: step.due_ms)


def _at_once(cluster: Open, timing: Timing) -> Make | None:
    if commit := _commit(cluster):
        return commit
    match cluster:
        case Granted():
            return partial(events.forming_first, cluster, timing)
        case Forming():
            return _forming_at_once(cluster, timing)
        case Starting():
            return _crew_at_once(cluster)
        case Running():
            return _crew_at_once(cluster) or _growth_at_once(cluster, timing)
        case Stopping(life=life):
            if life.doomed:
                return partial(events.doomed_lost, cluster)
            if not is_decided(cluster):
                return None
            if stranded := undrained(cluster):
                return partial(events.lost, cluster, stranded[0], "drained")
            if can_retry(cluster):
                return partial(events.retry_planned, cluster)
            if cluster.retry_at_ms is not None and not cluster.crew.lost:
                return None
            return partial(events.forming_again, cluster, timing)


def _commit(cluster: Open) -> Make | None:
    """The commit of a step that every rank has stored. It comes first: whatever follows may begin from there."""
    if not isinstance(cluster, Starting | Running | Stopping) or (common := cluster.crew.progress.common()) is None:
        return None
    return partial(events.checkpoint_committed, cluster, *common)


def _forming_at_once(cluster: Forming, timing: Timing) -> Make | None:
    """Who was granted joins, though its node be lost: only a member is replaced. Losses come before what is wanted."""
    seats = cluster.seats.values()
    offered = next((seat for seat in seats if isinstance(seat, Offered)), None)
    if offered is not None:
        return partial(events.joined, cluster, offered, timing)
    if cluster.life.doomed:
        return partial(events.doomed_lost, cluster)
    if any(isinstance(seat, Vacant) for seat in seats):
        is_smaller = policy_of(cluster.life) == "shrink"
        return partial(events.forming_smaller, cluster, timing) if is_smaller else partial(events.wanted, cluster)
    prepared = [seat.member.lease for seat in seats if isinstance(seat, Prepared)]
    gone = next((lease for lease in prepared if lease in cluster.unended), None)
    if gone is not None:
        return partial(events.ended_unseen, cluster, gone)
    return partial(events.starting, cluster, timing) if are_prepared(cluster) and not cluster.leavers else None


def _crew_at_once(cluster: Starting | Running) -> Make | None:
    crew = cluster.crew
    if crew.trouble is not None:
        return partial(events.generation_ended, cluster, crew.trouble)
    if cluster.life.doomed:
        return partial(events.doomed_lost, cluster)
    if isinstance(cluster, Starting) and not _missing(crew, crew.started):
        return partial(events.ready, cluster)
    return None


def _growth_at_once(cluster: Running, timing: Timing) -> Make | None:
    """What brings a cluster nearer to its size. What is not wanted is given up before anything else."""
    seats, members, nodes = cluster.growth.seats, len(cluster.crew.members), cluster.seats_wanted
    live = [rank for rank, seat in seats.items() if not isinstance(seat, Forgone)]
    if unwanted := [rank for rank in live if rank >= nodes]:
        return partial(events.growth_given_up, cluster, unwanted, "unwanted")
    if has_failed(cluster.growth):
        return partial(events.growth_given_up, cluster, live, "failed")
    offered = next((seat for seat in seats.values() if isinstance(seat, Offered)), None)
    if offered is not None:
        return partial(events.joined, cluster, offered, timing)
    if missing := [rank for rank in range(members, nodes) if rank not in live]:
        return partial(events.growth_wanted, cluster, missing)
    if nodes < members:
        return partial(events.ended_to_shrink, cluster)
    is_grown = nodes > members and len(cluster.growth.prepared) == nodes - members
    return _ended_with_others(cluster) if is_grown else None


def _ended_with_others(cluster: Running) -> Make:
    """Ends the generation because others are prepared for the next one."""
    return partial(events.ended_to_drain if movers(cluster) else events.ended_to_grow, cluster)


def _deadlines(cluster: Open, timing: Timing) -> Iterator[Step]:
    """By when others must have answered."""
    match cluster:
        case Granted():
            return
        case Running():
            yield from _growth_deadlines(cluster, timing)
        case Forming(seats=seats, setbacks=setbacks):
            if cluster.leavers and are_prepared(cluster):
                yield Step(cluster.unended_by_ms, partial(events.starting, cluster, timing), halt_ms_max(timing))
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
        case Stopping(retry_at_ms=int(retry_at_ms)):
            yield Step(retry_at_ms, partial(events.forming_again, cluster, timing))
        case Stopping(crew=crew, halt_by_ms=by_ms):
            halting = [lease for lease in _missing(crew) if lease not in cluster.left_out]
            makes: list[Make] = [partial(events.lost, cluster, lease, "halt_overdue") for lease in halting]
            # Who leaves anyway is not waited for any longer, and is no loss.
            makes.append(partial(events.forming_again, cluster, timing))
            yield from (Step(by_ms, make, halt_ms_max(timing)) for make in makes)


def _growth_deadlines(cluster: Running, timing: Timing) -> Iterator[Step]:
    """By when who is to join must be prepared; and how long those who are wait for others that the market may not have,
    before the cluster grows by them alone."""
    growth = cluster.growth
    preparing = [seat for seat in growth.seats.values() if isinstance(seat, Preparing)]
    for seat in preparing:
        late = partial(events.dropped, cluster, seat.member.lease, "prepare_overdue")
        yield Step(seat.prepare_by_ms, late, timing.prepare_ms_max)
    if growth.prepared_ms is not None and not preparing:
        due_ms = growth.prepared_ms + timing.replace_ms_max
        yield Step(due_ms, _ended_with_others(cluster), timing.replace_ms_max)
    if cluster.life.drains and (moving := movers(cluster)):
        yield Step(cluster.life.drains[moving[0].lease], partial(events.ended_to_drain, cluster))


def _duration(cluster: Open) -> Iterator[Step]:
    """When the job has had all the time it asked for, counted from its first being ready."""
    life = cluster.life
    if life.ready_ms is not None and life.job.spec.max_duration_seconds is not None:
        due_ms = life.ready_ms + life.job.spec.max_duration_seconds * MS_PER_SECOND
        yield Step(due_ms, partial(events.released, cluster, Verdict("duration_reached")))


def _missing(crew: Crew, arrived: Collection[LeaseId] = ()) -> list[LeaseId]:
    """The members that have neither arrived nor ended."""
    return [lease for lease in crew.members if lease not in crew.ended and lease not in arrived]
