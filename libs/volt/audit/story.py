"""What the log says of one job, kept as it was said, so that any of its bills can be reckoned again."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from volt.contracts.clusters import ClusterEvent, ClusterForming, ClusterReleased
from volt.contracts.ids import AccountId, JobId, LeaseId, NodeId
from volt.contracts.jobs import JobAdmitted, JobReleaseAccepted
from volt.contracts.ledger import FEE, BillLine, FundsExhausted, Transfer, earned, hold, pending
from volt.contracts.market import Gang, Grant
from volt.contracts.nodes import CoverSpan

PENDING, EARNED = pending(""), earned("")

Fact = ClusterEvent | JobReleaseAccepted | FundsExhausted


@dataclass(frozen=True)
class Leased:
    """A lease as the market granted it."""

    node: NodeId
    provider: AccountId
    gpus: int
    price_microusd_per_gpu_hour: int


@dataclass
class Story:
    """One job: who got what, what happened to it, what is covered, what was charged."""

    account: AccountId
    is_gang: bool
    cap_microusd_per_gpu_hour: int | None = None
    """None until it is funded."""
    leases: dict[LeaseId, Leased] = field(default_factory=dict)
    facts: list[tuple[int, Fact]] = field(default_factory=list)
    """With their sequences."""
    cover: dict[tuple[LeaseId, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By lease and generation, in order and apart."""
    lines: dict[LeaseId, BillLine] = field(default_factory=dict)
    """The last that was posted of each lease."""
    paid_microusd: dict[AccountId, int] = field(default_factory=lambda: defaultdict(int))
    earned_microusd: dict[AccountId, int] = field(default_factory=lambda: defaultdict(int))
    fee_microusd: int = 0
    funded_microusd: int = 0
    """What went from the wallet on hold, less what came back from there."""
    generation: int = 1
    """The last that formed."""
    is_over: bool = False
    is_unfunded: bool = False
    closed_seq: int = 0
    """Of its `JobClosed`; 0 until then."""
    facts_billed: int = 0
    """How many facts the last bill was reckoned from, once it is closed."""

    @classmethod
    def of(cls, event: JobAdmitted) -> "Story":
        return cls(event.account, event.spec.is_gang)

    def grant(self, gang: Gang) -> None:
        """Takes a gang's leases. One for a generation that another has followed is void."""
        if gang.generation < self.generation:
            return
        self.leases |= {grant.lease: _leased(gang, grant) for grant in gang.grants}

    def learn(self, seq: int, fact: Fact) -> None:
        """Takes a fact."""
        self.facts.append((seq, fact))
        self.is_over |= isinstance(fact, JobReleaseAccepted | ClusterReleased | FundsExhausted)
        if isinstance(fact, ClusterForming):
            self.generation = fact.generation

    def see(self, span: CoverSpan, complete_to_ms: int) -> None:
        """Takes cover, as far as it is not below what was complete before."""
        stretches = self.cover[span.lease, span.generation]
        stretches.append((max(span.from_ms, complete_to_ms), span.to_ms))
        if len(stretches) > 1 and stretches[-1][0] <= stretches[-2][1]:
            stretches[:] = merged(stretches)

    def move(self, job: JobId, transfer: Transfer) -> None:
        """Takes a transfer that one of the job's own events made."""
        sign, other = (1, transfer.credit) if transfer.debit == hold(job) else (-1, transfer.debit)
        amount_microusd = sign * transfer.amount_microusd
        if transfer.credit.startswith(EARNED):
            self.earned_microusd[transfer.credit.removeprefix(EARNED)] += transfer.amount_microusd
        elif other.startswith(PENDING):
            self.paid_microusd[other.removeprefix(PENDING)] += amount_microusd
        elif other == FEE:
            self.fee_microusd += amount_microusd
        else:
            self.funded_microusd -= amount_microusd

    def readings(self, since_seq: int) -> Iterator[int]:
        """How many facts a writer can have known that had read up to `since_seq` or further, the likeliest first."""
        known = len(self.facts)
        yield known
        while known and self.facts[known - 1][0] > since_seq:
            known -= 1
            yield known


def merged(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same instants, in order and apart."""
    apart: list[tuple[int, int]] = []
    for from_ms, to_ms in sorted(stretches):
        if apart and from_ms <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], to_ms))
        elif from_ms < to_ms:
            apart.append((from_ms, to_ms))
    return apart


def _leased(gang: Gang, grant: Grant) -> Leased:
    return Leased(grant.node, grant.provider, len(grant.gpus), gang.price_microusd_per_gpu_hour)
