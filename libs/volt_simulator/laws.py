"""What must hold after every event, whoever fails, reckoned from the log alone.

Raises LawBroken at the first event that contradicts one.
"""

from collections import defaultdict, deque

from volt.contracts.clusters import (
    ClusterEvent,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    LeaseCleared,
    MemberEnded,
    MemberLost,
    MembersWanted,
)
from volt.contracts.fleet import LossesReleased
from volt.contracts.ids import GpuUuid, JobId, LeaseId
from volt.contracts.jobs import JobAdmitted, JobReleaseAccepted
from volt.contracts.ledger import (
    CREDIT,
    EXTERNAL,
    FundsExhausted,
    JobClosed,
    JobFunded,
    JobUnfunded,
    LedgerEvent,
    hold,
)
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.nodes import NodeAlive, NodeLost
from volt_simulator.machine import LawBroken

LOST_AT_ONCE_MAX, LOST_AT_ONCE_PERCENT_MAX = 3, 30
UNBOUNDED = frozenset({CREDIT, EXTERNAL})
"""Ledger accounts that money comes from; all others never go below zero."""


class Laws:
    """The log so far, as far as the laws are about it."""

    def __init__(self, lost_after_ms: int) -> None:
        self._surge_ms = lost_after_ms // 4
        """So close together, losses have one cause."""
        self._calm_ms = lost_after_ms
        """How long after the brake has ended all that was held may be lost."""
        self._watched: set[tuple[str, str]] = set()
        self._fallen: deque[int] = deque()
        """When nodes were last called lost for their silence."""
        self._released_ms = 0
        self.admitted: dict[JobId, JobAdmitted] = {}
        self.closed: set[JobId] = set()
        self.over: set[JobId] = set()
        """Jobs behind whose end a gang is void."""
        self.waiting: dict[JobId, str] = {}
        """Why each job that is not placed waits, as it was last told."""
        self.balances: dict[str, int] = defaultdict(int)
        self.held: dict[GpuUuid, LeaseId] = {}
        self.leases: dict[LeaseId, Gang] = {}
        """Those that are not clear."""
        self.unanswered: dict[LeaseId, JobId] = {}
        """Lost leases that nobody has replaced and whose cluster goes on."""
        self._answered: set[LeaseId] = set()
        self._expired: set[JobId] = set()
        self._transfers: set[str] = set()
        self._attempts: dict[tuple[JobId, int], int] = {}
        self._granted: set[tuple[JobId, int, int]] = set()
        """Job, generation and attempt of every gang, void ones too: nobody is answered twice."""
        self.generations: dict[JobId, int] = {}
        self._caps: dict[JobId, int] = {}
        self._ranks: dict[LeaseId, int] = {}
        self._failed: set[tuple[JobId, int]] = set()
        """Generations of which a process did not exit with 0."""

    def see(self, entry: Entry) -> None:
        """Takes in one event. Raises LawBroken."""
        match entry.event:
            case JobAdmitted(job=job) as admitted:
                self.admitted[job] = admitted
            case JobReleaseAccepted(job=job):
                self.over.add(job)
            case MarketCleared() as cleared:
                self._clear(cleared)
            case ClusterEvent() as event:
                self._cluster(event)
            case LedgerEvent() as event:
                self._money(event)
            case NodeAlive() | NodeLost() as event:
                self._node(event)
            case LossesReleased(at_ms=at_ms):
                self._released_ms = at_ms
            case _:
                pass

    def _clear(self, cleared: MarketCleared) -> None:
        for waiting in cleared.waiting:
            self.waiting[waiting.job] = waiting.message
        for expired in cleared.expired:
            _hold(expired.job not in self._expired, f"{expired.job} is told twice that it has waited out")
            self._expired.add(expired.job)
            self.over.add(expired.job)
        for gang in cleared.gangs:
            key = (gang.job, gang.generation, gang.attempt)
            _hold(key not in self._granted, f"attempt {gang.attempt} of {gang.job} is granted twice")
            self._granted.add(key)
            if not self._is_void(gang):
                self._grant(gang)

    def _is_void(self, gang: Gang) -> bool:
        """As ARCHITECTURE.md has it under *Void*."""
        if gang.job in self.over or gang.generation < self.generations.get(gang.job, 1):
            return True
        return any(self._attempts.get((gang.job, one.rank), 0) > gang.attempt for one in gang.grants if gang.attempt)

    def _grant(self, gang: Gang) -> None:
        cap_microusd = self._caps.get(gang.job)
        _hold(cap_microusd is not None, f"{gang.job} is granted and not funded")
        _hold(gang.price_microusd_per_gpu_hour <= (cap_microusd or 0), f"{gang.job} pays more than its cap")
        spec = self.admitted[gang.job].spec
        if not gang.attempt:
            shape = (len(gang.grants), len(gang.grants[0].gpus))
            wanted = {(one.nodes, one.gpus_per_node) for one in spec.shapes}
            _hold(shape in wanted, f"{gang.job} is granted in part")
        for grant in gang.grants:
            self.leases[grant.lease] = gang
            for gpu in grant.gpus:
                _hold(gpu not in self.held, f"{gpu} is leased to {self.held.get(gpu)} and {grant.lease}")
                self.held[gpu] = grant.lease

    def _node(self, event: NodeAlive | NodeLost) -> None:
        """Not many are lost at once for their silence, unless their losses were held before."""
        key = (event.account, event.node)
        if isinstance(event, NodeAlive):
            self._watched.add(key)
            return
        if event.cause == "silent":
            self._fallen.append(event.at_ms)
        while self._fallen and self._fallen[0] < event.at_ms - self._surge_ms:
            self._fallen.popleft()
        at_once_max = max(LOST_AT_ONCE_MAX, len(self._watched) * LOST_AT_ONCE_PERCENT_MAX // 100)
        was_held = event.at_ms - self._released_ms <= self._calm_ms
        _hold(was_held or len(self._fallen) <= at_once_max, f"{len(self._fallen)} nodes are lost at once")
        self._watched.discard(key)

    def _cluster(self, event: ClusterEvent) -> None:
        job = event.job
        match event:
            case ClusterForming(generation=generation):
                before = self.generations.get(job, 0)
                _hold(generation == before + 1, f"{job}: generation {generation} follows {before}")
                self.generations[job] = generation
                self._rank(event)
                for lease in event.shrunk:
                    self._answer(lease)
            case MembersWanted(wanted=wanted):
                for one in wanted:
                    self._attempts[job, one.rank] = one.attempt
                    if one.replaces is not None:
                        self._answer(one.replaces)
            case MemberLost(lease=lease):
                _hold(lease not in self.unanswered and lease not in self._answered, f"{lease} is lost twice")
                self.unanswered[lease] = job
            case ClusterReady(generation=generation):
                _hold(generation == self.generations.get(job), f"{job}: an old generation is ready")
            case _:
                self._end_some(event)

    def _rank(self, event: ClusterForming) -> None:
        """Ranks are stable. Of a cluster that goes on without a loss they close up, in their order."""
        ranks = [member.rank for member in event.members]
        before = [self._ranks.get(member.lease, member.rank) for member in event.members]
        if event.shrunk:
            _hold(ranks == list(range(len(ranks))), f"{event.job} goes on with ranks {ranks}")
            _hold(before[0] == min(before), f"{event.job} has another head than its lowest survivor")
        else:
            _hold(ranks == before, f"{event.job} had ranks {before} and has {ranks}")
        self._ranks |= {member.lease: member.rank for member in event.members}

    def _end_some(self, event: ClusterEvent) -> None:
        match event:
            case MemberEnded(job=job, generation=generation, exits=exits):
                if not exits or any(one.code != 0 for one in exits):
                    self._failed.add((job, generation))
            case ClusterReleased(job=job):
                is_failed = (job, event.generation) in self._failed
                _hold(not (is_failed and event.reason == "completed"), f"{job} has failed and is completed")
                self.over.add(job)
                self.unanswered = {lease: of for lease, of in self.unanswered.items() if of != job}
            case LeaseCleared(lease=lease):
                gang = self.leases.pop(lease, None)
                gpus = [gpu for one in gang.grants if one.lease == lease for gpu in one.gpus] if gang else []
                for gpu in gpus:
                    del self.held[gpu]
            case _:
                pass

    def _answer(self, lease: LeaseId) -> None:
        _hold(lease not in self._answered, f"{lease} is answered twice")
        _hold(lease in self.unanswered, f"{lease} is answered and not lost")
        self._answered.add(lease)
        del self.unanswered[lease]

    def _money(self, event: LedgerEvent) -> None:
        for transfer in event.transfers:
            _hold(transfer.id not in self._transfers, f"transfer {transfer.id} moves twice")
            self._transfers.add(transfer.id)
            _hold(transfer.amount_microusd > 0, f"transfer {transfer.id} moves nothing")
            self.balances[transfer.debit] -= transfer.amount_microusd
            self.balances[transfer.credit] += transfer.amount_microusd
            is_covered = transfer.debit in UNBOUNDED or self.balances[transfer.debit] >= 0
            _hold(is_covered, f"{transfer.debit} is below zero")
        match event:
            case JobFunded(job=job, cap_microusd_per_gpu_hour=cap_microusd):
                self._caps[job] = cap_microusd
            case JobUnfunded(job=job) | FundsExhausted(job=job):
                self.over.add(job)
            case JobClosed(job=job):
                self.over.add(job)
                self.closed.add(job)
                _hold(self.balances[hold(job)] == 0, f"{job} is closed and ${self.balances[hold(job)]} are on hold")
            case _:
                pass

    def settled(self) -> list[str]:
        """What has not come to its end though nobody fails any more; nothing, if all is well."""
        unsettled = [f"{lease} was lost and not answered" for lease in self.unanswered]
        unsettled += [f"{lease} of {gang.job} is not clear" for lease, gang in self.leases.items()]
        for job in self.admitted:
            if job in self.over and job not in self.closed and job in self._caps:
                unsettled.append(f"{job} is over and not closed")
            if job not in self.over:
                unsettled.append(f"{job} is not over")
        held = {account: amount for account, amount in self.balances.items() if account.startswith("hold/")}
        return unsettled + [f"{account} still has {amount}" for account, amount in held.items() if amount]


def _hold(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise LawBroken(otherwise)
