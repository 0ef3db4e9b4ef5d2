"""The table of a cluster's transitions: each state's own `match` over the cluster's own events.

A pair that is in no `match` is impossible, since only the provisioner writes these events, each decided on the state
that the one before it made. What others write (grants, losses, releases) is in `inputs`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from volt.contracts.clusters import (
    CheckpointCommitted,
    CheckpointStored,
    ClusterEvent,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    LeaseCleared,
    LeaseResumed,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberPrepared,
    MemberStarted,
    MembersWanted,
    RetryPlanned,
)
from volt.contracts.ids import LeaseId
from volt.contracts.nodes import Thaw
from volt.contracts.timing import FINAL_STORE_MS_MAX, Timing
from volt_provisioner.causes import (
    BLAMELESS,
    can_retry,
    is_restart,
    loss_sentence,
    restart_cause,
    succeeded,
    verdict_of,
)
from volt_provisioner.crew import Crew, Loss, Offered, Prepared, Preparing, Seat, Setback, Sought, Vacant
from volt_provisioner.growth import ended_on_purpose, grown, grown_seats, prepared_or_dropped, without_the_rest
from volt_provisioner.inputs import gone
from volt_provisioner.states import (
    Absent,
    Cleared,
    Cluster,
    Ending,
    Forming,
    Granted,
    Left,
    Life,
    Open,
    Released,
    Running,
    Starting,
    Stopping,
    are_prepared,
    can_prepare,
    can_store,
    generation_of,
    members_of,
)


def advance(cluster: Cluster, event: ClusterEvent, timing: Timing) -> Cluster:
    """The cluster after one of its own events. Raises AssertionError for one that its state does not allow."""
    after: Cluster | None
    match cluster:
        case Absent() | Cleared():
            after = None
        case Released():
            after = _released(cluster, event)
        case Ending():
            after = _ending(cluster, event, timing)
        case Granted() | Forming() | Starting() | Running() | Stopping():
            after = _opened(cluster, event, timing)
    assert after is not None, f"{type(event).__name__} of generation {event.generation} while {cluster}"
    return after


def halt_ms_max(timing: Timing) -> int:
    """How long a node may take to end a generation: the grace, and then as long as a start may take."""
    return timing.stop_grace_ms + timing.start_ms_max


def _opened(cluster: Open, event: ClusterEvent, timing: Timing) -> Cluster | None:
    """What may happen in every open state, or else in this one; then whether that decides the end."""
    match event:
        case ClusterReleased():
            return _release(cluster)
        case LeaseCleared(lease=lease) if lease in cluster.life.left:
            left = _without(cluster.life.left, lease)
            return gone(replace(cluster, life=replace(cluster.life, left=left)), lease)
    after: Open | None
    match cluster:
        case Granted():
            after = _granted(cluster, event)
        case Forming():
            after = _forming(cluster, event)
        case Stopping():
            after = _stopping(cluster, event)
        case Starting():
            after = _starting(cluster, event, timing) if event.generation == cluster.generation else None
        case Running():
            after = _running(cluster, event, timing)
    verdict = verdict_of(after) if after else None
    return Ending(after, verdict, is_gang_void=False) if after and verdict else after


def _granted(cluster: Granted, event: ClusterEvent) -> Forming | None:
    match event:
        case ClusterForming(generation=1, prepare_by_ms=by_ms):
            seats: dict[int, Seat] = {member.rank: Preparing(member, by_ms) for member in cluster.members}
            return Forming(cluster.life, 1, dict(sorted(seats.items())), unended=frozenset(), setbacks={})
        case _:
            return None


def _forming(cluster: Forming, event: ClusterEvent) -> Forming | Starting | None:
    seats = cluster.seats
    match event:
        case MemberEnded(lease=lease, generation=cluster.ran):
            return replace(cluster, unended=cluster.unended - {lease}) if lease in cluster.unended else None
        case ClusterForming(shrunk=shrunk) if shrunk and event.generation == cluster.generation + 1:
            return _formed_smaller(cluster, event)
        case _ if event.generation != cluster.generation:
            return None
        case MembersWanted(wanted=wanted) if all(isinstance(seats.get(one.rank), Vacant) for one in wanted):
            sought = {one.rank: Sought(one.attempt) for one in wanted}
            attempts = max(one.attempt for one in wanted)
            return _seated(replace(cluster, life=replace(cluster.life, attempts=attempts)), sought)
        case MemberJoined(member=member, prepare_by_ms=by_ms) if isinstance(seats.get(member.rank), Offered):
            return _seated(cluster, {member.rank: Preparing(member, by_ms)})
        case MemberPrepared(lease=lease, address=address, port=port) if can_prepare(seats, event):
            member = members_of(cluster)[lease]
            return _seated(cluster, {member.rank: Prepared(member, address, port, event.beat)})
        case MemberLost():
            return _vacated(cluster, event)
        case ClusterStarting(manifest=manifest, start_by_ms=by_ms) if are_prepared(cluster):
            return Starting(cluster.life, cluster.generation, manifest, by_ms, Crew.of(members_of(cluster)))
        case _:
            return None


def _starting(cluster: Starting, event: ClusterEvent, timing: Timing) -> Starting | Running | Stopping | None:
    match event:
        case MemberStarted(lease=lease) if lease in cluster.crew.members:
            return replace(cluster, crew=cluster.crew.with_started(lease))
        case ClusterReady(at_ms=at_ms):
            life = cluster.life if cluster.life.ready_ms is not None else replace(cluster.life, ready_ms=at_ms)
            return Running(life, cluster.generation, cluster.manifest, cluster.crew)
        case GenerationEnded(cause="trouble"):
            return _ended(cluster, event, timing)
        case _:
            return _crewed(cluster, event)


def _running(cluster: Running, event: ClusterEvent, timing: Timing) -> Running | Stopping | None:
    match event:
        case GenerationEnded(generation=cluster.generation, leaves=leaves) if cluster.crew.members.keys() >= {*leaves}:
            return ended_on_purpose(cluster, event, _ended(cluster, event, timing))
        case (
            LeaseResumed(generation=cluster.generation)
            | MemberEnded(generation=cluster.generation)
            | MemberLost(generation=cluster.generation)
            | CheckpointStored(generation=cluster.generation)
            | CheckpointCommitted(generation=cluster.generation)
        ):
            return _crewed(cluster, event)
        case _:
            return grown(cluster, event)


def _stopping(cluster: Stopping, event: ClusterEvent) -> Stopping | Forming | None:
    match event:
        case ClusterForming() if event.generation == cluster.generation + 1:
            return _formed_again(cluster, event)
        case MemberEnded(lease=lease, generation=cluster.generation) if lease in cluster.lingering:
            return gone(cluster, lease)
        case RetryPlanned(generation=cluster.generation, begins_ms=begins_ms) if can_retry(cluster):
            life = replace(cluster.life, retries=cluster.life.retries + 1)
            return replace(cluster, life=life, retry_at_ms=begins_ms)
        case (
            LeaseResumed(generation=cluster.generation)
            | MemberEnded(generation=cluster.generation)
            | MemberLost(generation=cluster.generation)
            | CheckpointStored(generation=cluster.generation)
            | CheckpointCommitted(generation=cluster.generation)
        ):
            return _crewed(cluster, event)
        case _:
            return prepared_or_dropped(cluster, event)


C = TypeVar("C", Starting, Running, Stopping)


def _crewed(cluster: C, event: ClusterEvent) -> C | None:
    """What may become of a member of a closed generation, whatever the others do."""
    match event:
        case MemberEnded(lease=lease, exits=exits) if lease in cluster.crew.members:
            crew = cluster.crew.with_ended(lease, exits, failed=not succeeded(exits))
            return replace(cluster, crew=crew)
        case MemberLost(lease=lease, cause=cause) if lease in cluster.crew.members:
            member = cluster.crew.members[lease]
            life = cluster.life.without(member, cluster.generation, cause)
            return replace(cluster, life=life, crew=cluster.crew.without(member, cause, event.detail))
        case LeaseResumed(lease=lease) if lease in cluster.life.doomed:
            return cluster  # Its node was lost before, and nobody knew when this was said.
        case LeaseResumed(lease=lease) if lease in cluster.crew.members:
            thaw = Thaw(incarnation=event.beat.incarnation, freeze=event.freeze)
            return replace(cluster, crew=cluster.crew.with_thaw(lease, thaw))
        case CheckpointStored(step=step, part=part) if can_store(cluster, event.lease, step):
            progress = cluster.crew.progress.with_part(step, part)
            return replace(cluster, crew=replace(cluster.crew, progress=progress))
        case CheckpointCommitted(checkpoint=checkpoint) if checkpoint.step > cluster.life.step:
            progress = cluster.crew.progress.beyond(checkpoint.step)
            life = cluster.life.with_checkpoint(checkpoint)
            return replace(cluster, life=life, crew=replace(cluster.crew, progress=progress))
        case _:
            return None


def _ended(cluster: Starting | Running, event: GenerationEnded, timing: Timing) -> Stopping:
    """Ended on purpose, it has the time too that a last checkpoint takes."""
    by_ms = event.at_ms + halt_ms_max(timing) + (FINAL_STORE_MS_MAX if event.cause != "trouble" else 0)
    return Stopping(cluster.life, cluster.generation, cluster.crew, event.lease, by_ms, cause=event.cause)


def _formed_again(cluster: Stopping, event: ClusterForming) -> Forming:
    """The next generation: the members that are left keep their ranks, the lost ones leave theirs vacant, and those who
    were prepared for it follow. Who was not yet prepared leaves: recovery never waits for growth. No rank is vacant of
    which the cluster goes on without."""
    life, crew = without_the_rest(cluster, event).life, cluster.crew
    life = _resized(life, len(crew.members) + len(crew.lost), event)
    if is_restart(cluster):
        first_cause = life.first_cause or restart_cause(cluster) or ""
        life = replace(life, restarts=life.restarts + 1, first_cause=first_cause)
    seats: dict[int, Seat] = {member.rank: Preparing(member, event.prepare_by_ms) for member in event.members}
    seats |= grown_seats(cluster, event)
    vacated = [loss for loss in crew.lost if loss.member.lease in event.replaces]
    seats |= {loss.member.rank: Vacant(loss.member.lease) for loss in vacated}
    return Forming(
        life,
        event.generation,
        dict(sorted(seats.items())),
        unended=(frozenset(crew.members) - crew.ended.keys()) | cluster.lingering,
        ran=cluster.generation,
        unended_by_ms=cluster.halt_by_ms,
        setbacks={loss.member.rank: Setback(event.at_ms, loss_sentence(loss)) for loss in vacated},
    )


def _resized(life: Life, ranks: int, event: ClusterForming) -> Life:
    """What a cluster of so many ranks has lost for good is not wished for any more; by what it was to grow still is."""
    if not event.shrunk:
        return life
    grown = max(0, life.nodes - ranks)
    return replace(life, nodes=min(life.nodes, ranks - len(event.shrunk)) + grown)


def _formed_smaller(cluster: Forming, event: ClusterForming) -> Forming | None:
    """Another generation in place of an open one, without those that it has lost; all of them prepare afresh."""
    if {member.lease for member in event.members} != members_of(cluster).keys():
        return None
    return Forming(
        _resized(cluster.life, len(cluster.seats), event),
        event.generation,
        {member.rank: Preparing(member, event.prepare_by_ms) for member in event.members},
        cluster.unended,
        setbacks={},
        ran=cluster.ran,
        unended_by_ms=cluster.unended_by_ms,
    )


def _vacated(cluster: Forming, event: MemberLost) -> Forming | None:
    """A loss while the generation forms belongs to it; how long its rank has been vacant counts from the first one."""
    member = members_of(cluster).get(event.lease)
    if member is None:
        return None
    is_fault = event.cause not in BLAMELESS
    cause = loss_sentence(Loss(member, event.cause, event.detail))
    life = cluster.life.without(member, cluster.generation, event.cause)
    if is_fault:
        life = replace(life, first_cause=life.first_cause or cause)
    setback = cluster.setbacks.get(member.rank, Setback(event.at_ms, cause))
    setback = replace(setback, failures=setback.failures + is_fault)
    return replace(
        _seated(cluster, {member.rank: Vacant(member.lease)}),
        life=life,
        unended=cluster.unended if event.cause == "gpu_fault" else cluster.unended - {member.lease},
        setbacks={**cluster.setbacks, member.rank: setback},
    )


def _ending(cluster: Ending, event: ClusterEvent, timing: Timing) -> Cluster | None:
    """What was appended before the end was known still counts; the first verdict stands."""
    after = _opened(cluster.was, event, timing)
    match after:
        case Ending(was=was):
            return replace(cluster, was=was)
        case Granted() | Forming() | Starting() | Running() | Stopping():
            return replace(cluster, was=after)
        case _:
            return after


def _released(cluster: Released, event: ClusterEvent) -> Released | Cleared | None:
    match event:
        case LeaseCleared(lease=lease) if lease in cluster.left:
            left = _without(cluster.left, lease)
            return replace(cluster, left=left) if left else Cleared()
        case _:
            return None


def _release(cluster: Open) -> Released | Cleared:
    life = cluster.life
    members = members_of(cluster)
    left = {**life.left, **{lease: Left(member, generation_of(cluster, lease)) for lease, member in members.items()}}
    return Released(life.job, left) if left else Cleared()


def _seated(cluster: Forming, seats: Mapping[int, Seat]) -> Forming:
    return replace(cluster, seats={**cluster.seats, **seats})


def _without(left: Mapping[LeaseId, Left], lease: LeaseId) -> dict[LeaseId, Left]:
    return {other: one for other, one in left.items() if other != lease}
