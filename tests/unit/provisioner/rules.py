"""What must be so of any log that the provisioner has written, checked from the log alone."""

from collections import Counter
from collections.abc import Sequence

from volt.contracts.clusters import (
    ClusterEvent,
    ClusterForming,
    ClusterReleased,
    ClusterStarting,
    GenerationEnded,
    LeaseCleared,
    Member,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberPrepared,
    MembersWanted,
)
from volt.contracts.jobs import JobReleaseAccepted
from volt.contracts.ledger import FundsExhausted
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared


def check(log: Sequence[Entry]) -> None:
    """All the rules, of one job's log."""
    events = [entry.event for entry in log if isinstance(entry.event, ClusterEvent)]
    generations_count_up_by_one(events)
    each_loss_is_answered_at_most_once(events)
    attempts_are_never_reused(events)
    the_end_is_final(events)
    a_generation_starts_whole_and_alone(events)
    only_what_is_lost_or_released_is_cleared(events)
    no_void_gang_is_used(log)


def generations_count_up_by_one(events: Sequence[ClusterEvent]) -> None:
    formed = [event.generation for event in events if isinstance(event, ClusterForming)]
    assert formed == list(range(1, len(formed) + 1))
    ended = [event.generation for event in events if isinstance(event, GenerationEnded)]
    assert ended == list(range(ended[0], ended[0] + len(ended)) if ended else [])
    assert len(formed) - 1 <= len(ended) <= len(formed)


def each_loss_is_answered_at_most_once(events: Sequence[ClusterEvent]) -> None:
    lost = Counter(event.lease for event in events if isinstance(event, MemberLost))
    named = Counter(lease for event in events if isinstance(event, ClusterForming) for lease in event.replaces)
    wanted = Counter(one.replaces for event in events if isinstance(event, MembersWanted) for one in event.wanted)
    for counted in (lost, named, wanted):
        assert max(counted.values(), default=1) == 1
    assert named.keys() | wanted.keys() <= lost.keys()


def every_loss_is_answered(events: Sequence[ClusterEvent]) -> None:
    """At rest: by a replacement that is wanted in its generation, or by the end of the cluster."""
    if any(isinstance(event, ClusterReleased) for event in events):
        return
    lost = {event.lease for event in events if isinstance(event, MemberLost)}
    assert lost == {one.replaces for event in events if isinstance(event, MembersWanted) for one in event.wanted}


def attempts_are_never_reused(events: Sequence[ClusterEvent]) -> None:
    attempts = [one.attempt for event in events if isinstance(event, MembersWanted) for one in event.wanted]
    assert attempts == list(range(1, len(attempts) + 1))


def the_end_is_final(events: Sequence[ClusterEvent]) -> None:
    names = [type(event).__name__ for event in events]
    if "ClusterReleased" in names:
        after = names[names.index("ClusterReleased") + 1 :]
        assert set(after) <= {"LeaseCleared"}


def a_generation_starts_whole_and_alone(events: Sequence[ClusterEvent]) -> None:
    """Every rank is filled and prepared, and every member of the generation before has ended or is lost."""
    members: dict[str, Member] = {}
    before: set[str] = set()
    gone: set[tuple[str, int]] = set()
    prepared: set[tuple[str, int]] = set()
    for event in events:
        match event:
            case ClusterForming():
                before = set(members)
                members = {member.lease: member for member in event.members}
            case MemberJoined(member=member):
                members[member.lease] = member
            case MemberLost(lease=lease):
                members.pop(lease, None)
                before.discard(lease)
            case MemberEnded(lease=lease, generation=generation):
                gone.add((lease, generation))
            case MemberPrepared(lease=lease, generation=generation):
                prepared.add((lease, generation))
            case ClusterStarting(manifest=manifest, generation=generation):
                by_rank = sorted(members.values(), key=lambda member: member.rank)
                assert [(node.node_rank, node.node) for node in manifest.nodes] == [
                    (member.rank, member.node) for member in by_rank
                ]
                assert [member.rank for member in by_rank] == list(range(len(by_rank)))
                assert {(lease, generation) for lease in members} <= prepared
                assert {(lease, generation - 1) for lease in before} <= gone


def only_what_is_lost_or_released_is_cleared(events: Sequence[ClusterEvent]) -> None:
    lost: set[str] = set()
    cleared: set[str] = set()
    is_released = False
    for event in events:
        match event:
            case MemberLost(lease=lease):
                lost.add(lease)
            case ClusterReleased():
                is_released = True
            case LeaseCleared(lease=lease):
                assert is_released or lease in lost
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
