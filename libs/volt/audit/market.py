"""Proves the market from the log alone: every lease, every gang, every price.

    >>> report = audit_market(entries)
    >>> report.is_kept, report.held
    (True, 0)

It shares nothing with the matcher, and does not ask whether a pass was the best one (`volt market verify` repeats it):
it asks whether what was granted was there, was free, was what the job asked for, and cost what it had to. A pass is
judged by what it knew, which is the log up to its `through_seq`; whether a gang is void, by where it stands in the log.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from volt.audit.demand import Demand, First
from volt.audit.kept import breaches_of_reservations
from volt.audit.report import MarketFinding, MarketReport
from volt.audit.rules import (
    Breach,
    breaches_of_gang,
    breaches_of_node,
    first_of,
    is_alone,
    nodes_repeated,
    sold_of,
)
from volt.audit.supply import Supply
from volt.contracts.bids import BidAccepted, BidWithdrawn, NodeDrainAccepted, NodeResumeAccepted
from volt.contracts.clusters import ClusterForming, ClusterReleased, LeaseCleared, MembersWanted
from volt.contracts.ids import GpuUuid, JobId, LeaseId, NodeId, lease_id
from volt.contracts.jobs import JobAdmitted, JobReleaseAccepted, Shape
from volt.contracts.ledger import FundsExhausted, JobClosed, JobFunded, JobUnfunded, MembersFunded
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared, Reservation
from volt.contracts.nodes import NodeEvent

JobEnd = JobReleaseAccepted | ClusterReleased | FundsExhausted | JobUnfunded | JobClosed
Input = (
    (BidAccepted | BidWithdrawn | NodeDrainAccepted | NodeResumeAccepted | NodeEvent | JobAdmitted | JobFunded)
    | (MembersWanted | MembersFunded | ClusterForming | LeaseCleared)
    | JobEnd
)


def audit_market(entries: Iterable[Entry]) -> MarketReport:
    """Follows the log from its beginning, in order, as far as it goes."""
    auditor = _Auditor()
    for entry in entries:
        auditor.read(entry)
    return auditor.report()


@dataclass
class _Pass:
    """What one pass has granted so far: what follows in its message has to be right beside it."""

    leases: Counter[JobId] = field(default_factory=Counter)
    answered: set[tuple[JobId, int]] = field(default_factory=set)
    sold: dict[GpuUuid, LeaseId] = field(default_factory=dict)
    nodes: set[tuple[JobId, NodeId]] = field(default_factory=set)

    def add(self, gang: Gang) -> None:
        self.leases[gang.job] += len(gang.grants)
        self.answered.add((gang.job, gang.attempt))
        self.sold |= {uuid: grant.lease for grant in gang.grants for uuid in grant.gpus}
        self.nodes |= {(gang.job, grant.node) for grant in gang.grants}


class _Auditor:
    def __init__(self) -> None:
        self._findings: list[MarketFinding] = []
        self._supply = Supply()
        self._demands: dict[JobId, Demand] = {}
        self._reservations: dict[JobId, Reservation] = {}
        self._ahead: list[tuple[int, Input]] = []
        """What came since the last pass, and may have come after the next one was decided."""
        self._pass_seq = 0
        self._passes = self._gangs = self._leases = self._void = 0

    def read(self, entry: Entry) -> None:
        """Takes in one entry, and notes what is wrong with it."""
        if isinstance(entry.event, MarketCleared):
            self._judge_pass(entry.seq, entry.event)
        elif isinstance(entry.event, Input):
            self._ahead.append((entry.seq, entry.event))

    def report(self) -> MarketReport:
        """What is known at the end."""
        self._fold_ahead()
        return MarketReport(
            passes=self._passes,
            gangs=self._gangs,
            leases=self._leases,
            void=self._void,
            held=len(self._supply.leases),
            findings=tuple(self._findings),
        )

    def _judge_pass(self, seq: int, cleared: MarketCleared) -> None:
        through_seq, passed = cleared.through_seq, _Pass()
        if not self._pass_seq <= through_seq < seq:
            self._note(seq, ("pass_out_of_order", "market", f"knew the log up to {through_seq}"))
        self._passes, self._pass_seq = self._passes + 1, seq
        self._fold_ahead(through_seq)
        for breach in breaches_of_reservations(self._supply, self._demands, self._reservations.values(), cleared):
            self._note(seq, breach)
        for gang in cleared.gangs:
            for breach in self._breaches(gang, passed, cleared.at_ms):
                self._note(seq, breach)
            passed.add(gang)
        sold = [sold_of(self._supply, gang) for gang in cleared.gangs]
        self._fold_ahead()
        for gang, of_gang in zip(cleared.gangs, sold, strict=True):
            if gang.job in self._demands:
                self._grant(self._demands[gang.job], gang, first=first_of(self._demands[gang.job], gang, of_gang))
        self._conclude(cleared)

    def _note(self, seq: int, breach: Breach) -> None:
        code, about, message = breach
        self._findings.append(MarketFinding(code, seq, about, message))

    def _breaches(self, gang: Gang, passed: _Pass, at_ms: int) -> Iterator[Breach]:
        demand = self._demands.get(gang.job)
        if demand is None or demand.account != gang.account or not gang.grants:
            yield "job_unknown", gang.job, f"{gang.account} has no such job, or it is granted nothing"
            return
        if demand.is_over:
            yield "granted_after_end", gang.job, "the job was over when the pass began"
        cap_microusd = demand.cap_microusd_per_gpu_hour
        if gang.attempt == 0:
            yield from _breaches_of_first(demand, gang)
        else:
            yield from _breaches_of_later(demand, gang)
            vacancy = demand.wants(gang)
            cap_microusd = vacancy.cap_microusd_per_gpu_hour if vacancy is not None else None
        if cap_microusd is None:
            yield "granted_unfunded", gang.job, "no money was on hold for it"
        if (gang.job, gang.attempt) in passed.answered:
            yield "granted_twice", gang.job, f"attempt {gang.attempt} is granted twice in one pass"
        yield from self._breaches_of_leases(demand, gang, passed)
        for grant in gang.grants:
            yield from breaches_of_node(self._supply, demand.spec, grant, at_ms)
        yield from breaches_of_gang(demand, gang, sold_of(self._supply, gang), cap_microusd)

    def _breaches_of_leases(self, demand: Demand, gang: Gang, passed: _Pass) -> Iterator[Breach]:
        before = demand.leases + passed.leases[gang.job]
        names = [lease_id(gang.job, before + place) for place in range(1, len(gang.grants) + 1)]
        granted = [grant.lease for grant in gang.grants]
        if granted != names:
            yield "lease_misnumbered", gang.job, f"got {', '.join(granted)}; the next were {', '.join(names)}"
        for uuid, lease in sorted((uuid, one.lease) for one in gang.grants for uuid in one.gpus):
            if uuid in passed.sold:
                yield "gpu_leased_twice", lease, f"{uuid} is in {passed.sold[uuid]} of the same pass"
        again = {node for job, node in passed.nodes if job == gang.job} & {grant.node for grant in gang.grants}
        for node in sorted(nodes_repeated(self._supply, gang) | again):
            yield "node_repeated", gang.job, f"{node} is granted to it twice"

    def _grant(self, demand: Demand, gang: Gang, first: First) -> None:
        """Whatever is wrong with it: it is what was granted."""
        self._gangs += 1
        self._leases += len(gang.grants)
        demand.leases += len(gang.grants)
        if demand.is_void(gang) or (gang.attempt == 0 and demand.first is not None):
            self._void += 1
            return
        if demand.relieves(gang):
            demand.homes[gang.grants[0].lease] = first.home
        elif is_alone(demand, gang) or demand.first is None:
            demand.first = first
        if gang.attempt == 0:
            demand.size = len(gang.grants)
        else:
            demand.filled.add(gang.attempt)
            del demand.vacancies[gang.grants[0].rank]
        for grant in gang.grants:
            self._supply.lease(gang.job, grant)
        self._reservations.pop(gang.job, None)

    def _conclude(self, cleared: MarketCleared) -> None:
        for expired in cleared.expired:
            self._end(expired.job)
        for reservation in cleared.reservations:
            demand = self._demands.get(reservation.job)
            if demand is not None and demand.first is None and not demand.is_over:
                self._reservations[reservation.job] = reservation

    def _fold_ahead(self, through_seq: int | None = None) -> None:
        """Takes in what is up to there; all of it if not told."""
        later = []
        for seq, event in self._ahead:
            if through_seq is None or seq <= through_seq:
                self._fold(event)
            else:
                later.append((seq, event))
        self._ahead = later

    def _fold(self, event: Input) -> None:
        match event:
            case BidAccepted() | BidWithdrawn():
                self._supply.bid(event)
            case NodeDrainAccepted() | NodeResumeAccepted():
                self._supply.drain(event)
            case NodeEvent():
                self._supply.see(event)
            case LeaseCleared(lease=lease):
                self._supply.clear(lease)
            case JobAdmitted(job=job):
                self._demands.setdefault(job, Demand.of(event))
            case JobReleaseAccepted() | ClusterReleased() | FundsExhausted() | JobUnfunded() | JobClosed():
                self._end(event.job)
            case JobFunded() | MembersWanted() | MembersFunded() | ClusterForming() if event.job in self._demands:
                self._demands[event.job].learn(event)

    def _end(self, job: JobId) -> None:
        self._reservations.pop(job, None)
        if job in self._demands:
            self._demands[job].is_over = True


def _breaches_of_first(demand: Demand, gang: Gang) -> Iterator[Breach]:
    sizes = {len(grant.gpus) for grant in gang.grants}
    shapes = {Shape(nodes=len(gang.grants), gpus_per_node=size) for size in sizes}
    if len(shapes) != 1 or not shapes <= set(demand.spec.shapes):
        yield "gang_not_whole", gang.job, f"has {len(gang.grants)} nodes with {sorted(sizes)} GPUs: no shape of the job"
    if [grant.rank for grant in gang.grants] != list(range(len(gang.grants))) or gang.generation != 1:
        yield "ranks_wrong", gang.job, "its ranks do not count from 0, or its generation is not the first"
    if demand.first is not None:
        yield "granted_twice", gang.job, "the job had its first gang"


def _breaches_of_later(demand: Demand, gang: Gang) -> Iterator[Breach]:
    vacancy, first = demand.wants(gang), demand.first
    if first is not None and [len(grant.gpus) for grant in gang.grants] != [first.gpus_per_node]:
        yield "gang_not_whole", gang.job, f"is not one node with {first.gpus_per_node} GPUs, like the others"
    if gang.attempt in demand.filled:
        yield "granted_twice", gang.job, f"attempt {gang.attempt} was answered before"
    elif vacancy is None:
        yield "not_wanted", gang.job, f"nobody wants rank {gang.grants[0].rank} by attempt {gang.attempt}"
    elif gang.grants[0].node in vacancy.excluded:
        yield "node_excluded", gang.job, f"{gang.grants[0].node} is one that it was not to get"
