"""What must be so of any log that the provisioner has written, checked from the log alone."""

from collections import Counter
from collections.abc import Mapping, Sequence

from volt.contracts.clusters import (
    CheckpointCommitted,
    CheckpointStored,
    ClusterEvent,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    GrowthGivenUp,
    LeaseCleared,
    Member,
    MemberDropped,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberPrepared,
    MembersWanted,
)
from volt.contracts.ids import LeaseId
from volt.contracts.jobs import JobReleaseAccepted
from volt.contracts.ledger import FundsExhausted
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeLost
from volt.contracts.timing import FINAL_STORE_MS_MAX, Timing
from volt_provisioner.lifecycle import halt_ms_max


def check(log: Sequence[Entry], timing: Timing) -> None:
    """All the rules, of one job's log."""
    events = [entry.event for entry in log if isinstance(entry.event, ClusterEvent)]
    generations_count_up_by_one(events)
    each_loss_is_answered_at_most_once(events)
    attempts_are_never_reused(events)
    the_end_is_final(events)
    growth_replaces_nothing_and_everything_else_does(events)
    a_generation_starts_whole_and_alone(log, timing)
    only_a_member_is_trouble(events)
    only_what_has_ended_is_cleared(log)
    no_void_gang_is_used(log)
    a_commit_is_whole_newer_and_of_the_last_generation(events)


def generations_count_up_by_one(events: Sequence[ClusterEvent]) -> None:
    formed = [event.generation for event in events if isinstance(event, ClusterForming)]
    assert formed == list(range(1, len(formed) + 1))
    ended = [event.generation for event in events if isinstance(event, GenerationEnded)]
    assert ended == sorted(set(ended))
    # A generation that is open forms anew without those that it has lost, and so ends none.
    again = [event for event in events if isinstance(event, ClusterForming) and event.generation - 1 not in {0, *ended}]
    assert all(event.shrunk for event in again)
    assert len(formed) - 1 <= len(ended) + len(again) <= len(formed)


def each_loss_is_answered_at_most_once(events: Sequence[ClusterEvent]) -> None:
    lost = Counter(event.lease for event in events if isinstance(event, MemberLost))
    named = Counter(lease for event in events if isinstance(event, ClusterForming) for lease in event.replaces)
    wanted = Counter(_replaced(events))
    shrunk = Counter(_shrunk(events))
    for counted in (lost, named, wanted, shrunk):
        assert max(counted.values(), default=1) == 1
    assert named.keys() | wanted.keys() | shrunk.keys() <= lost.keys()
    assert wanted.keys().isdisjoint(shrunk)


def every_loss_is_answered(events: Sequence[ClusterEvent]) -> None:
    """At rest: by a replacement wanted in its generation, by one that forms smaller, or by the end of the cluster."""
    if any(isinstance(event, ClusterReleased) for event in events):
        return
    lost = {event.lease for event in events if isinstance(event, MemberLost)}
    assert lost == {*_replaced(events), *_shrunk(events)}


def growth_replaces_nothing_and_everything_else_does(events: Sequence[ClusterEvent]) -> None:
    """What is wanted while a generation runs is to grow by, above its own ranks; else it replaces a lost lease."""
    running: int | None = None
    ranks: set[int] = set()
    for event in events:
        match event:
            case ClusterForming(members=members):
                ranks = {member.rank for member in members}
            case MemberJoined(generation=generation, member=member) if generation != (running or 0) + 1:
                ranks.add(member.rank)
            case ClusterReady(generation=generation):
                running = generation
            case GenerationEnded():
                running = None
            case MembersWanted(generation=generation, wanted=wanted) if running is not None:
                assert generation == running
                assert all(one.replaces is None and one.rank not in ranks for one in wanted)
            case MembersWanted(wanted=wanted):
                assert all(one.replaces is not None for one in wanted)


def attempts_are_never_reused(events: Sequence[ClusterEvent]) -> None:
    attempts = [one.attempt for event in events if isinstance(event, MembersWanted) for one in event.wanted]
    assert attempts == list(range(1, len(attempts) + 1))


def the_end_is_final(events: Sequence[ClusterEvent]) -> None:
    names = [type(event).__name__ for event in events]
    if "ClusterReleased" in names:
        after = names[names.index("ClusterReleased") + 1 :]
        assert set(after) <= {"LeaseCleared"}


def a_generation_starts_whole_and_alone(log: Sequence[Entry], timing: Timing) -> None:
    """Every rank is filled and prepared, and every member of the generation before has ended or is lost.

    Nobody waits for ever for one that leaves: its node is lost or clear, or had the time that it may take.
    """
    members: dict[LeaseId, Member] = {}
    leavers = _Leavers(timing)
    prepared: set[tuple[LeaseId, int]] = set()
    for entry in log:
        ran = leavers.ran
        leavers.see(entry.event, members)
        match entry.event:
            case ClusterForming() as event:
                members = {member.lease: member for member in event.members}
            case MemberJoined(member=member, generation=generation) if generation == _open_generation(log, entry.seq):
                members[member.lease] = member
            case MemberLost(lease=lease) | LeaseCleared(lease=lease):
                members.pop(lease, None)
            case MemberPrepared(lease=lease, generation=generation):
                prepared.add((lease, generation))
            case ClusterStarting(manifest=manifest, generation=generation, at_ms=at_ms):
                by_rank = sorted(members.values(), key=lambda member: member.rank)
                assert [(node.node_rank, node.node) for node in manifest.nodes] == [
                    (member.rank, member.node) for member in by_rank
                ]
                assert [member.rank for member in by_rank] == list(range(len(by_rank)))
                assert {(lease, generation) for lease in members} <= prepared
                assert {(lease, ran) for lease in leavers.awaited(at_ms)} <= leavers.gone


class _Leavers:
    """Who may still run the generation before, and for how long it is waited for if it is no member any more."""

    def __init__(self, timing: Timing) -> None:
        self.gone: set[tuple[LeaseId, int]] = set()
        self._timing = timing
        self._before: set[LeaseId] = set()
        self._lingering: set[LeaseId] = set()
        """Lost to a fault of a GPU, and perhaps still running on their node, which lives."""
        self._until_ms: dict[LeaseId, int] = {}
        self._nodes: dict[LeaseId, str] = {}
        self._lost_nodes: set[str] = set()
        self._ended_by_ms = 0
        self._is_started = False
        self.ran = 0
        """The last generation that was started."""

    def awaited(self, at_ms: int) -> set[LeaseId]:
        return {lease for lease in self._before if self._until_ms.get(lease, at_ms) >= at_ms}

    def see(self, event: Event, members: Mapping[LeaseId, Member]) -> None:
        """`members` are those before the event."""
        match event:
            case MarketCleared(gangs=gangs):
                self._nodes |= {grant.lease: grant.node for gang in gangs for grant in gang.grants}
            case NodeLost(node=node):
                self._lost_nodes.add(node)
                self._before -= {lease for lease in self._until_ms if self._nodes[lease] == node}
            case ClusterStarting(generation=generation):
                self._is_started, self.ran = True, generation
            case GenerationEnded(leaves=leaves, at_ms=at_ms, cause=cause):
                self._ended_by_ms = at_ms + halt_ms_max(self._timing)
                self._ended_by_ms += FINAL_STORE_MS_MAX if cause != "trouble" else 0
                self._until_ms |= dict.fromkeys(leaves, self._ended_by_ms)
            case ClusterForming() if self._is_started:
                self._until_ms |= dict.fromkeys(self._lingering, self._ended_by_ms)
                ran = {*members, *self._lingering}
                self._before = {lease for lease in ran if not self._is_beyond(lease)}
                self._lingering, self._is_started = set(), False
            case MemberEnded(lease=lease, generation=generation):
                self.gone.add((lease, generation))
            case MemberLost(lease=lease, cause="gpu_fault") if lease in self._before:
                self._until_ms[lease] = self._ended_by_ms
            case MemberLost(lease=lease, cause="gpu_fault") if lease in members and self._is_started:
                self._lingering.add(lease)
            case MemberLost(lease=lease) | LeaseCleared(lease=lease):
                self._before.discard(lease)
                self._lingering.discard(lease)

    def _is_beyond(self, lease: LeaseId) -> bool:
        return lease in self._until_ms and self._nodes[lease] in self._lost_nodes


def only_a_member_is_trouble(events: Sequence[ClusterEvent]) -> None:
    """Who is only to join never ends a generation, and who ends it on purpose names nobody."""
    generations: dict[int, set[LeaseId]] = {}
    for event in events:
        match event:
            case ClusterForming(generation=generation, members=members):
                generations[generation] = {member.lease for member in members}
            case MemberJoined(generation=generation, member=member) if generation in generations:
                generations[generation].add(member.lease)
            case GenerationEnded(cause="trouble", generation=generation, lease=lease, leaves=leaves):
                assert lease in generations[generation]
                assert not leaves
            case GenerationEnded(generation=generation, lease=lease, leaves=leaves, drains=drains, cause=cause):
                assert lease is None
                assert (cause == "shrink") == bool(leaves)
                assert (cause == "drain") == bool(drains)
                assert set(leaves) < generations[generation]
                assert set(drains) <= generations[generation]
            case MemberDropped(lease=lease, generation=generation):
                assert generation not in generations
                assert all(lease not in members for members in generations.values())


def only_what_has_ended_is_cleared(log: Sequence[Entry]) -> None:
    """A lease that is lost, dropped, given up or left; that did not join when a generation formed; or was released."""
    granted: set[LeaseId] = set()
    ended: set[LeaseId] = set()
    cleared: set[LeaseId] = set()
    is_released = False
    for entry in log:
        match entry.event:
            case MarketCleared(gangs=gangs):
                granted |= {grant.lease for gang in gangs for grant in gang.grants}
            case MemberLost(lease=lease) | MemberDropped(lease=lease):
                ended.add(lease)
            case GrowthGivenUp(leases=leases) | GenerationEnded(leaves=leases):
                ended |= {*leases}
            case ClusterForming(members=members):
                ended |= granted - {member.lease for member in members}
            case ClusterReleased():
                is_released = True
            case LeaseCleared(lease=lease):
                assert is_released or lease in ended
                assert lease not in cleared
                cleared.add(lease)


def no_void_gang_is_used(log: Sequence[Entry]) -> None:
    """A gang behind the release, the end or the exhaustion of its job gives nobody a lease."""
    is_over = False
    void: set[str] = set()
    for entry in log:
        match entry.event:
            case JobReleaseAccepted() | FundsExhausted() | ClusterReleased():
                is_over = True
            case MarketCleared(gangs=gangs) if is_over:
                void |= {grant.lease for gang in gangs for grant in gang.grants}
            case ClusterForming(members=members):
                assert void.isdisjoint(member.lease for member in members)
            case MemberJoined(member=member):
                assert member.lease not in void
            case LeaseCleared(lease=lease):
                assert lease not in void


def a_commit_is_whole_newer_and_of_the_last_generation(events: Sequence[ClusterEvent]) -> None:
    """Each commit has the part of every rank that its generation started with, stored in it before; steps rise."""
    formed, ranks, step = 0, 0, -1
    stored: dict[tuple[int, int], CheckpointStored] = {}
    for event in events:
        match event:
            case ClusterForming(generation=generation):
                formed, stored = generation, {}
            case ClusterStarting(manifest=manifest):
                ranks = len(manifest.nodes)
            case CheckpointStored(generation=generation, part=part):
                assert generation == formed
                assert event.step > step
                assert (part.rank, event.step) not in stored
                stored[part.rank, event.step] = event
            case CheckpointCommitted(generation=generation, checkpoint=checkpoint):
                assert generation == checkpoint.generation == formed
                assert checkpoint.step > step
                step = checkpoint.step
                assert [part.rank for part in checkpoint.parts] == list(range(ranks))
                assert all(stored[part.rank, step].part == part for part in checkpoint.parts)


def _replaced(events: Sequence[ClusterEvent]) -> list[LeaseId]:
    wanted = (one for event in events if isinstance(event, MembersWanted) for one in event.wanted)
    return [one.replaces for one in wanted if one.replaces is not None]


def _shrunk(events: Sequence[ClusterEvent]) -> list[LeaseId]:
    return [lease for event in events if isinstance(event, ClusterForming) for lease in event.shrunk]


def _open_generation(log: Sequence[Entry], seq: int) -> int:
    """The last generation that had formed there."""
    return max(entry.event.generation for entry in log[:seq] if isinstance(entry.event, ClusterForming))
