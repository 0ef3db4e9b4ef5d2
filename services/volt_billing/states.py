"""What billing remembers of a job: one class per state, with the fields that are valid in it.

    Requested ──JobFunded──▶ Held ──gang──▶ Metered ◀──HoldAdjusted── Low ◀─┐
     │   │                    │                │ └────────FundsLow────▶│ └──┘ FundsLow, another instant
     │   └──JobUnfunded───────│─────────────┐  └──over─┐   ┌──over─────┘
     │                        │             │          ▼   ▼
     └──over──▶ Dropped ◀─over┘             │         Closing
                 │ └──JobUnfunded──▶ Unfunded            │
                 └──────JobClosed──────▶ Closed ◀────────┘ JobClosed

A job is over with its `JobReleaseAccepted`, `ClusterReleased` or `FundsExhausted`, whichever says the earliest instant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from volt.contracts.ids import AccountId, JobId, LeaseId, NodeId
from volt.contracts.jobs import JobAdmitted
from volt.contracts.ledger import FIRST_HOLD_SECONDS, BillLine
from volt.contracts.units import MS_PER_SECOND
from volt_billing.agenda import Agenda

NEVER_MS = 1 << 62
"""An instant that does not come: the end of what has not ended."""

Spans = tuple[tuple[int, int], ...]
"""Stretches [from, to) of time in milliseconds: in order, apart from each other, none of them empty."""

Cover = Mapping[LeaseId, Mapping[int, Spans]]
"""What heartbeats cover, of each lease in each generation."""


@dataclass(frozen=True)
class Terms:
    """What of an admitted job matters to its money."""

    account: AccountId
    models: tuple[str, ...]
    gpus: int
    is_gang: bool
    own_cap_microusd_per_gpu_hour: int | None
    duration_ms_max: int

    @classmethod
    def of(cls, event: JobAdmitted) -> "Terms":
        spec = event.spec
        seconds_max = spec.max_duration_seconds
        return cls(
            account=event.account,
            models=spec.models,
            gpus=spec.gpus,
            is_gang=spec.is_gang,
            own_cap_microusd_per_gpu_hour=spec.max_price_microusd_per_gpu_hour,
            duration_ms_max=NEVER_MS if seconds_max is None else seconds_max * MS_PER_SECOND,
        )

    @property
    def first_period_ms(self) -> int:
        """For how long money is set aside before the job runs."""
        return min(FIRST_HOLD_SECONDS * MS_PER_SECOND, self.duration_ms_max)


@dataclass(frozen=True)
class Lease:
    """A granted lease: its last posted line (all zero before the first), when it was lost, and whether it has left."""

    line: BillLine
    lost_ms: int = NEVER_MS
    has_left: bool = False
    """Its job has no use for it any more. What it owes ended with its last generation, if it ever was in one."""

    @property
    def is_live(self) -> bool:
        return self.lost_ms == NEVER_MS and not self.has_left

    @property
    def rate_microusd_per_hour(self) -> int:
        """Of all its GPUs together."""
        return self.line.gpus * self.line.price_microusd_per_gpu_hour


@dataclass(frozen=True)
class Forming:
    """A generation that is not ready. A member that is quick may have exited before the last one has started."""

    members: frozenset[LeaseId] = frozenset()
    started: frozenset[LeaseId] = frozenset()
    exited: Mapping[LeaseId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """A generation that has been ready. `exited` is when members dropped out with every exit 0."""

    party: frozenset[LeaseId]
    """The leases whose time it counts; all of a gang must be covered at once."""
    ready_ms: int
    exited: Mapping[LeaseId, int]
    ended_ms: int = NEVER_MS


@dataclass(frozen=True)
class Running:
    """What is metered: leases and generations, and the money held for them."""

    terms: Terms
    cap_microusd_per_gpu_hour: int
    funded_microusd: int
    """What was put on hold so far, less what went back to the wallet."""
    movements: int
    """How often money went between wallet and hold; it names the next movement."""
    leases: Mapping[LeaseId, Lease] = field(default_factory=dict)
    forming: Mapping[int, Forming] = field(default_factory=dict)
    ready: Mapping[int, Ready] = field(default_factory=dict)
    wanted: Mapping[int, int] = field(default_factory=dict)
    """The generation of each wanted attempt that is not funded yet, to replace a lost lease."""
    growth: Mapping[int, int] = field(default_factory=dict)
    """The same of attempts to grow, which wait until there is money."""
    generation: int = 1
    """The last one that formed. A gang for one before it is void."""
    is_settled: bool = False
    """Whether the hold follows the true prices of all leases."""
    posted_to_ms: int = 0
    covers_to_ms: int = NEVER_MS
    """The first instant that the hold does not pay for, if all ready time were covered."""
    deadline_ms: int = NEVER_MS
    """When the job will have lasted as long as it may."""

    @property
    def live_rate_microusd_per_hour(self) -> int:
        """Of all leases that are neither lost nor have left."""
        return sum(lease.rate_microusd_per_hour for lease in self.leases.values() if lease.is_live)

    @property
    def gpus_per_node(self) -> int:
        """As many as each lease of the gang has."""
        return max(lease.line.gpus for lease in self.leases.values())


@dataclass(frozen=True)
class Requested:
    """Admitted; whether there is money for it is not decided."""

    terms: Terms


@dataclass(frozen=True)
class Held:
    """A first period is on hold; the market may grant a gang."""

    terms: Terms
    cap_microusd_per_gpu_hour: int
    funded_microusd: int


@dataclass(frozen=True)
class Metered:
    """Leased, and the hold is renewed in time."""

    running: Running


@dataclass(frozen=True)
class Low:
    """Leased, and the wallet could not renew the hold in full; the buyer was told when it runs out."""

    running: Running
    exhausted_at_ms: int


@dataclass(frozen=True)
class Closing:
    """Over since `ended_ms`; the final bill waits until cover is complete."""

    running: Running
    ended_ms: int


@dataclass(frozen=True)
class Dropped:
    """Over before any gang was granted; what is held goes back."""

    terms: Terms
    funded_microusd: int


@dataclass(frozen=True)
class Closed:
    """Billed for the last time; nothing is posted or held any more."""


@dataclass(frozen=True)
class Unfunded:
    """Never had the money to start."""


JobState = Requested | Held | Metered | Low | Closing | Dropped | Closed | Unfunded


@dataclass(frozen=True)
class Offer:
    """A node's last accepted bid, kept when withdrawn: a grant that crossed the withdrawal has models too."""

    asks_microusd_per_gpu_hour: Mapping[str, int]
    """By model."""
    models: Mapping[str, str]
    """The model of each GPU, by UUID."""
    is_open: bool


@dataclass
class State:
    """Every job and every balance."""

    jobs: dict[JobId, JobState] = field(default_factory=dict)
    open_jobs: dict[JobId, int] = field(default_factory=dict)
    """Those neither closed nor unfunded, oldest first, with their numbers in the order of admission."""
    agenda: Agenda = field(default_factory=Agenda)
    uncredited: dict[AccountId, None] = field(default_factory=dict)
    balances_microusd: dict[str, int] = field(default_factory=dict)
    transfer_ids: dict[str, set[str]] = field(default_factory=dict)
    """The ids used so far, by what they are for: an open job, or an account's credit."""
    cover: dict[LeaseId, dict[int, Spans]] = field(default_factory=dict)
    """Of the leases of open jobs only."""
    complete_to_ms: int = 0
    offers: dict[NodeId, Offer] = field(default_factory=dict)
    last_prices_microusd: dict[str, int] = field(default_factory=dict)
    """The price of each model's last grant, per GPU-hour."""
