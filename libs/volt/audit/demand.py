"""What each job asked for, what it was funded for, and what it was granted: as the log says it."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from volt.contracts.clusters import ClusterForming, MembersWanted
from volt.contracts.ids import AccountId, LeaseId, NodeId
from volt.contracts.jobs import JobAdmitted, JobSpec
from volt.contracts.ledger import JobFunded, MembersFunded
from volt.contracts.market import Gang

Attempt = tuple[int, int]
"""A generation and an attempt: what a member is wanted by, and granted for."""


@dataclass(frozen=True)
class Vacancy:
    """A rank for which a member is wanted; without a cap no money is on hold for it yet."""

    attempt: Attempt
    excluded: frozenset[NodeId]
    is_relief: bool
    """Whether it is to take the rank of a member whose node is drained."""
    cap_microusd_per_gpu_hour: int | None = None


class First(NamedTuple):
    """What a job's first gang makes of its later ones: the model, the size of its nodes, and where they are."""

    model: str
    gpus_per_node: int
    home: str
    """The domain of the level that the job requires. Empty if it is unknown, or if none is required."""


@dataclass
class Demand:
    """One job."""

    account: AccountId
    spec: JobSpec
    cap_microusd_per_gpu_hour: int | None = None
    is_over: bool = False
    first: First | None = None
    size: int = 0
    """Its nodes, in the generation that formed last; whoever is to join the next is not counted."""
    leases: int = 0
    """Granted so far; what was void is counted too, as its numbers stay used."""
    vacancies: dict[int, Vacancy] = field(default_factory=dict)
    """By rank; the last that was wanted there."""
    homes: dict[LeaseId, str] = field(default_factory=dict)
    """Where it will be when it has left a drained node, its only one, for this lease."""
    filled: set[int] = field(default_factory=set)
    """Attempts that were granted, and not in vain."""

    @classmethod
    def of(cls, event: JobAdmitted) -> "Demand":
        return cls(event.account, event.spec)

    def learn(self, event: JobFunded | MembersWanted | MembersFunded | ClusterForming) -> None:
        match event:
            case JobFunded(cap_microusd_per_gpu_hour=cap_microusd) if self.cap_microusd_per_gpu_hour is None:
                self.cap_microusd_per_gpu_hour = cap_microusd
            case JobFunded():
                pass  # The first counts.
            case MembersWanted():
                self._want(event)
            case MembersFunded():
                self._fund_members(event)
            case ClusterForming(generation=generation, members=members, replaces=replaces):
                # What an earlier generation wanted, and did not get, is wanted no more.
                kept = {rank: one for rank, one in self.vacancies.items() if one.attempt[0] >= generation}
                self.vacancies = kept
                self.size = len(members) + len(replaces) or self.size
                if len(members) == 1 and self.first is not None and members[0].lease in self.homes:
                    self.first = self.first._replace(home=self.homes[members[0].lease])
                self.homes = {}

    def wants(self, gang: Gang) -> Vacancy | None:
        """The vacancy that the gang answers."""
        found = self.vacancies.get(gang.grants[0].rank)
        return found if found is not None and found.attempt == (gang.generation, gang.attempt) else None

    def relieves(self, gang: Gang) -> bool:
        """Whether the gang is to take the place of the one node that the cluster has."""
        vacancy = self.wants(gang) if gang.attempt else None
        return self.size <= 1 and len(gang.grants) == 1 and vacancy is not None and vacancy.is_relief

    def is_void(self, gang: Gang) -> bool:
        """Whether the gang came behind the end of what it is for."""
        return self.is_over or (gang.attempt > 0 and self.wants(gang) is None)

    def _want(self, event: MembersWanted) -> None:
        """The latest attempt at a rank counts; one that is said again may exclude more."""
        for one in event.wanted:
            known, excluded = self.vacancies.get(one.rank), frozenset(event.excluded)
            attempt = (event.generation, one.attempt)
            if self.first is None or one.attempt in self.filled:
                continue
            if known is None or known.attempt[1] < one.attempt:
                self.vacancies[one.rank] = Vacancy(attempt, excluded, one.relieves is not None)
            elif known.attempt[1] == one.attempt:
                same = known if known.attempt == attempt else Vacancy(attempt, excluded, one.relieves is not None)
                self.vacancies[one.rank] = replace(same, excluded=excluded)

    def _fund_members(self, event: MembersFunded) -> None:
        for rank, vacancy in self.vacancies.items():
            generation, attempt = vacancy.attempt
            if generation == event.generation and attempt in event.attempts:
                cap_microusd = event.cap_microusd_per_gpu_hour
                self.vacancies[rank] = replace(vacancy, cap_microusd_per_gpu_hour=cap_microusd)
