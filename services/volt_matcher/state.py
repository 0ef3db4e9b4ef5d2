"""What the matcher knows: who offers what, who waits for what, and which GPUs are held.

    job      Absent ──JobAdmitted──▶ Admitted ──JobFunded──▶ Queued ──first gang──▶ Placed
             any of them ──released, unfunded, exhausted, closed──▶ ended
    vacancy  Absent ──MembersWanted──▶ Vacancy ──MembersFunded──▶ FundedVacancy ──gang──▶ filled
             any of them ──later attempt at the rank, later generation──▶ given up
             FundedVacancy ──GrowthGivenUp──▶ Vacancy
    lease    Absent ──gang──▶ held ──LeaseCleared──▶ gone

A gang for a job that has ended, or for a vacancy that was given up, is void: it holds nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from volt.contracts.bids import BidAccepted, Gpu, Place
from volt.contracts.ids import AccountId, GpuUuid, JobId, LeaseId, NodeId
from volt.contracts.jobs import JobSpec
from volt.contracts.market import Reservation
from volt.contracts.units import MS_PER_SECOND
from volt_matcher.book import Book
from volt_matcher.lots import Lot, Request, Shape
from volt_matcher.topology import Domains

Due = Literal["window", "expires", "starves", "reserved"]
"""A lot's window opens; a job has waited out; a job has waited for long; a reservation is over."""
FIRST_ATTEMPT = 0
"""The attempt of a job's first gang; those of its vacancies count from 1, and may fill ranks of generation 1 too."""


@dataclass(frozen=True)
class Offer:
    """A node's standing bid; its GPUs by UUID, each once."""

    bid: BidAccepted
    gpus: tuple[Gpu, ...]
    domains: Domains


@dataclass(frozen=True)
class Admitted:
    """A job whose money is not on hold yet. `admitted_seq` is its age."""

    account: AccountId
    admitted_seq: int
    spec: JobSpec


@dataclass(frozen=True)
class Queued:
    """A job that waits for its first gang, at this effective cap, since its money was on hold."""

    account: AccountId
    admitted_seq: int
    spec: JobSpec
    cap_microusd_per_gpu_hour: int
    since_ms: int

    @property
    def expires_ms(self) -> int | None:
        """From when on it waits no longer; None if never."""
        wait_seconds = self.spec.max_wait_seconds
        return None if wait_seconds is None else self.since_ms + wait_seconds * MS_PER_SECOND


@dataclass(frozen=True)
class Vacancy:
    """A rank for which the provisioner wants a node, and whose money is not on hold: not yet, or no more."""

    generation: int
    attempt: int
    rank: int
    excluded: frozenset[NodeId]
    within: str
    is_growth: bool
    """Whether the cluster is to grow by it: it replaces nobody."""
    is_relief: bool
    """Whether it is to take the rank of a member whose node is drained; it replaces nobody either."""

    def funded(self, cap_microusd_per_gpu_hour: int) -> "FundedVacancy":
        """The same with money on hold."""
        return FundedVacancy(
            self.generation,
            self.attempt,
            self.rank,
            self.excluded,
            self.within,
            self.is_growth,
            self.is_relief,
            cap_microusd_per_gpu_hour,
        )

    def unfunded(self) -> "Vacancy":
        """The same without money on hold."""
        kept = self.generation, self.attempt, self.rank, self.excluded, self.within, self.is_growth, self.is_relief
        return Vacancy(*kept)


@dataclass(frozen=True)
class FundedVacancy(Vacancy):
    """A vacancy that may be filled, at this cap."""

    cap_microusd_per_gpu_hour: int


@dataclass(frozen=True)
class Placed:
    """A job that has its first gang. `home` is the domain of its required level, which whoever joins must be in."""

    account: AccountId
    admitted_seq: int
    spec: JobSpec
    home: str
    model: str
    nodes: int
    """In the generation that formed last; who is to join the next is not counted."""
    gpus_per_node: int
    leases_granted: int
    homes: Mapping[LeaseId, str] = field(default_factory=dict)
    """Where the cluster will be when it has left a drained node, its only one, for this lease."""
    vacancies: tuple[Vacancy, ...] = ()
    filled: frozenset[int] = frozenset()
    """Attempts that have been answered with a gang."""
    until_ms: int | None = None
    """By when it will have ended, once it has been ready and if it said how long it takes."""


Job = Admitted | Queued | Placed


@dataclass(frozen=True)
class Quoting:
    """A question what a request would get, which the next message answers."""

    account: AccountId
    asked_seq: int
    spec: JobSpec


@dataclass(frozen=True)
class Lease:
    """GPUs that are somebody's until the node says that it is clear of them."""

    job: JobId
    node: NodeId
    model: str
    gpus: tuple[GpuUuid, ...]
    until_ms: int | None
    """By when it will have ended, if its job said how long it takes."""


class Reason(NamedTuple):
    """Why a job was last said to wait; it is said again when this changes."""

    binding: str
    infeasible: bool


class Opening(NamedTuple):
    """Something to match: a job's first gang, or one vacancy of it. `rank` is the first that it fills."""

    job: JobId
    account: AccountId
    generation: int
    attempt: int
    rank: int
    request: Request
    is_growth: bool = False


@dataclass
class State:
    """Everything folded so far. `lots` and `book` follow from offers, claims, liveness and leases, and are kept so."""

    seq: int = 0
    changes: int = 0
    """Counts what could change the outcome of a pass."""
    settled: int = 0
    """The count at which a pass had nothing to say. A memo that a restart may lose; it is in no event."""
    settled_ms: int = 0
    """When that was."""
    offers: dict[NodeId, Offer] = field(default_factory=dict)
    places: dict[NodeId, Place] = field(default_factory=dict)
    """Where each node was when it last bid."""
    claims: dict[GpuUuid, tuple[NodeId, ...]] = field(default_factory=dict)
    """The nodes that offer a UUID, in the order of their bids; it is the first one's."""
    alive: set[tuple[AccountId, NodeId]] = field(default_factory=set)
    """By account too, since a stranger can send beats in the name of any node, under their own account."""
    reliability_permille: dict[tuple[AccountId, NodeId], int] = field(default_factory=dict)
    """Of each node that was ever alive, as it was last told."""
    quarantined: dict[tuple[AccountId, NodeId], Mapping[GpuUuid, bool]] = field(default_factory=dict)
    """The GPUs of each node that are not for sale, and whether one closes the whole node."""
    drained: set[tuple[AccountId, NodeId]] = field(default_factory=set)
    """Nodes that are emptied: they sell nothing, whatever they offer meanwhile."""
    lots: dict[NodeId, tuple[Lot, ...]] = field(default_factory=dict)
    """What each node offers, whether it can be sold now or not."""
    book: Book = field(default_factory=Book)
    """What of it can be sold now."""
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    leased_on: dict[NodeId, frozenset[GpuUuid]] = field(default_factory=dict)
    leased: set[GpuUuid] = field(default_factory=set)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    ended: set[JobId] = field(default_factory=set)
    open: set[JobId] = field(default_factory=set)
    """Jobs with something to match."""
    reasons: dict[JobId, Reason] = field(default_factory=dict)
    quotes: dict[JobId, Quoting] = field(default_factory=dict)
    reservations: dict[JobId, Reservation] = field(default_factory=dict)
    """The last of each job that waits; they count until their time is over."""
    due_ms: dict[tuple[Due, str], int] = field(default_factory=dict)
    """When time alone makes a difference, by what happens then and to whom."""


def openings(state: State, at_ms: int) -> tuple[list[Opening], list[Opening]]:
    """What is to be matched: vacancies and first gangs, the older jobs first in each."""
    vacancies, first = list[Opening](), list[Opening]()
    for _, name in sorted((state.jobs[name].admitted_seq, name) for name in state.open):
        match state.jobs[name]:
            case Queued(account=account, spec=spec, cap_microusd_per_gpu_hour=cap_microusd):
                request = first_request(spec, cap_microusd, at_ms)
                first.append(Opening(name, account, 1, FIRST_ATTEMPT, 0, request))
            case Placed() as placed:
                vacancies += [_vacant(name, placed, vacancy, at_ms) for vacancy in funded(placed)]
            case Admitted():
                raise AssertionError(f"job {name} has no money on hold")
    return vacancies, first


def funded(placed: Placed) -> tuple[FundedVacancy, ...]:
    """The vacancies that may be filled."""
    return tuple(vacancy for vacancy in placed.vacancies if isinstance(vacancy, FundedVacancy))


def is_alone(placed: Placed) -> bool:
    """Whether the cluster has one node, which can be replaced anywhere: nobody else has to be near it."""
    return placed.nodes == 1


def first_request(spec: JobSpec, cap_microusd_per_gpu_hour: int | None, at_ms: int) -> Request:
    """What a job asks for."""
    return Request(
        models=frozenset(spec.models),
        shapes=tuple(Shape(one.nodes, one.gpus_per_node) for one in spec.shapes),
        interconnect=spec.interconnect,
        cap_microusd_per_gpu_hour=cap_microusd_per_gpu_hour,
        preferred=spec.preferred_interconnect,
        preferred_percent=spec.preference_percent if spec.preferred_interconnect else 0,
        min_memory_mib=spec.min_memory_mib,
        interface=spec.interface,
        min_bandwidth_gbps=spec.min_bandwidth_gbps,
        min_reliability_permille=spec.min_reliability_permille,
        tier=spec.tier,
        runtime=spec.workload.runtime,
        regions=frozenset(spec.regions),
        regions_denied=frozenset(spec.regions_denied),
        countries=frozenset(spec.countries),
        countries_denied=frozenset(spec.countries_denied),
        providers_excluded=frozenset(spec.providers_excluded),
        at_ms=at_ms,
        duration_seconds=spec.max_duration_seconds,
    )


def _vacant(name: JobId, placed: Placed, vacancy: FundedVacancy, at_ms: int) -> Opening:
    request = replace(
        first_request(placed.spec, vacancy.cap_microusd_per_gpu_hour, at_ms),
        models=frozenset({placed.model}),
        shapes=(Shape(1, placed.gpus_per_node),),
        preferred=None,
        preferred_percent=0,
        excluded=vacancy.excluded,
        home="" if is_alone(placed) and (vacancy.rank == 0 or vacancy.is_relief) else placed.home,
        within=vacancy.within,
    )
    where = vacancy.generation, vacancy.attempt, vacancy.rank
    return Opening(name, placed.account, *where, request, vacancy.is_growth)
