"""What the audits say."""

from dataclasses import dataclass
from typing import Literal

from volt.contracts.ids import AccountId, JobId, LeaseId, NodeId

Code = Literal[
    "transfer_not_positive",
    "transfer_repeated",
    "transfer_misplaced",
    "balance_negative",
    "credit_unasked",
    "job_unknown",
    "granted_unfunded",
    "price_above_cap",
    "lease_unknown",
    "terms_wrong",
    "billable_wrong",
    "charged_without_cover",
    "charged_early",
    "due_wrong",
    "fee_wrong",
    "line_missing",
    "posted_wrong",
    "earned_wrong",
    "exhaustion_wrong",
    "closed_before_end",
    "hold_left",
    "after_close",
]

Stage = Literal["open", "ended", "closed", "unfunded"]
"""`ended`: over, and its last bill still waits for cover."""


MarketCode = Literal[
    "pass_out_of_order",
    "job_unknown",
    "granted_unfunded",
    "granted_after_end",
    "granted_twice",
    "not_wanted",
    "gang_not_whole",
    "ranks_wrong",
    "lease_misnumbered",
    "node_repeated",
    "node_not_offered",
    "node_incomplete",
    "gpu_quarantined",
    "node_drained",
    "node_excluded",
    "gpu_not_offered",
    "gpu_of_another_node",
    "gpu_leased_twice",
    "model_wrong",
    "memory_short",
    "interface_wrong",
    "bandwidth_short",
    "reliability_low",
    "tier_wrong",
    "runtime_wrong",
    "terms_broken",
    "place_wrong",
    "apart",
    "domain_wrong",
    "price_wrong",
    "price_above_cap",
    "reserved_sold",
]


@dataclass(frozen=True)
class MarketFinding:
    """A rule of the market that a pass broke, at a place in the log. `about` is a job or a lease."""

    code: MarketCode
    seq: int
    about: str
    message: str


@dataclass(frozen=True)
class MarketReport:
    """The whole market. What is void was granted and counts for nothing."""

    passes: int
    gangs: int
    leases: int
    void: int
    """Gangs that came behind the end of their job, or of what they were wanted for."""
    held: int
    """Leases that are not cleared yet."""
    findings: tuple[MarketFinding, ...]

    @property
    def is_kept(self) -> bool:
        """Whether every rule was."""
        return not self.findings


@dataclass(frozen=True)
class Finding:
    """Something that is not as it must be, at a place in the log. `about` is a job, a lease or a ledger account."""

    code: Code
    seq: int
    about: str
    message: str


@dataclass(frozen=True)
class LeaseBill:
    """What a lease owes, reckoned from the log; of a job that is not closed, up to where cover is complete."""

    lease: LeaseId
    node: NodeId
    provider: AccountId
    gpus: int
    price_microusd_per_gpu_hour: int
    covered_ms: int
    """Time within [ready, end) that the node's own heartbeats cover, whatever the other members do."""
    billable_ms: int
    due_microusd: int
    posted_microusd: int
    """What the ledger has charged for it so far."""


@dataclass(frozen=True)
class JobBill:
    """A job's leases, and what has moved for it so far."""

    job: JobId
    account: AccountId
    stage: Stage
    leases: tuple[LeaseBill, ...]
    charged_microusd: int
    """The sum of its posted lines."""
    paid_microusd: int
    """What its providers got."""
    fee_microusd: int
    held_microusd: int

    @property
    def covered_ms(self) -> int:
        return sum(lease.covered_ms for lease in self.leases)


@dataclass(frozen=True)
class LedgerReport:
    """The whole ledger. `issued_microusd` is all that ever came in; it is in the accounts, or something is wrong."""

    jobs: tuple[JobBill, ...]
    balances_microusd: dict[str, int]
    """Of every account that was given or has given anything; those that money comes from are negative."""
    issued_microusd: int
    findings: tuple[Finding, ...]

    @property
    def is_balanced(self) -> bool:
        """Whether nothing is wrong: each sum is right, each bill is what the log says it must be."""
        return not self.findings

    @property
    def charged_microusd(self) -> int:
        return sum(job.charged_microusd for job in self.jobs)

    @property
    def paid_microusd(self) -> int:
        return sum(job.paid_microusd for job in self.jobs)

    @property
    def fee_microusd(self) -> int:
        return sum(job.fee_microusd for job in self.jobs)

    @property
    def covered_ms(self) -> int:
        return sum(job.covered_ms for job in self.jobs)
