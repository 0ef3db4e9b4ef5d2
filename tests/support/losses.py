"""What the log of a job must say of its losses, whoever caused them."""

from collections.abc import Sequence

from volt.contracts.clusters import ClusterForming, LeaseCleared, MemberLost, MembersWanted, Wanted
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Event


def assert_each_loss_has_one_replacement(events: Sequence[Event]) -> None:
    """Each lost lease is named by one wanted rank, each of those is granted once, and no generation is left out."""
    lost = [event.lease for event in events if isinstance(event, MemberLost)]
    wanted: list[Wanted] = [one for event in events if isinstance(event, MembersWanted) for one in event.wanted]
    assert sorted(lost) == sorted(one.replaces or "" for one in wanted)
    answered = [gang.attempt for gang in gangs(events) if gang.attempt > 0]  # 0 is the first gang's.
    assert sorted(answered) == sorted(one.attempt for one in wanted)
    generations = [event.generation for event in events if isinstance(event, ClusterForming)]
    assert generations == list(range(1, len(generations) + 1))


def all_cleared(events: Sequence[Event]) -> bool:
    """Whether every lease that was granted was given back by its node."""
    granted = {grant.lease for gang in gangs(events) for grant in gang.grants}
    return granted == {event.lease for event in events if isinstance(event, LeaseCleared)}


def gangs(events: Sequence[Event]) -> list[Gang]:
    return [gang for event in events if isinstance(event, MarketCleared) for gang in event.gangs]
