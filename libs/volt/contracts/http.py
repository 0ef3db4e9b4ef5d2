"""What travels over HTTP: the requests, the answers, and the names of both.

Amounts are decimal strings of dollars in fields named `_usd`, instants are milliseconds since 1970, durations in
requests are strings such as `1h30m`. A request refuses fields that it does not know; a reader of an answer passes
over them.
"""

from typing import Annotated, Literal

import msgspec

from volt.contracts.bids import Place, Runtime, Tier
from volt.contracts.clusters import ReleaseReason
from volt.contracts.errors import Reason
from volt.contracts.gpus import Interface
from volt.contracts.ids import AccountId
from volt.contracts.jobs import PREFERENCE_PERCENT, Level, OnLoss, WorkloadKind
from volt.contracts.market import Droppable, FilterCount

HEALTH_PATH = "/healthz"
JOBS_PATH = "/v1/jobs"
OFFERS_PATH = "/v1/offers"
BALANCE_PATH = "/v1/balance"
STATEMENT_PATH = "/v1/statement"

IDEMPOTENCY_HEADER = "Idempotency-Key"
LAST_EVENT_HEADER = "Last-Event-ID"
EVENT_STREAM = "text/event-stream"

BODY_BYTES_MAX = 1_000_000
PAGE_JOBS_MAX = 200
OFFERS_MAX = 500
STATEMENT_LINES_MAX = 500
EVENTS_PER_JOB_MAX = 500
CHECKPOINTS_PER_JOB_MAX = 100

JobState = Literal[
    "requested",
    "admitted",
    "rejected",
    "funded",
    "unfunded",
    "waiting",
    "preparing",
    "ready",
    "recovering",
    "scaling",
    "moving",
    "expired",
    "released",
    "closed",
]
MemberState = Literal["granted", "preparing", "prepared", "started", "ended", "cleared"]
NodeState = Literal["alive", "unknown", "lost"]

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
"""Wide enough for any honest number, and narrow enough to be encoded again; what is sensible is intake's to say."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what is sent."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is answered."""


class WorkloadRequest(Request, frozen=True, kw_only=True):
    """The processes to run, as in `volt.contracts.jobs.Workload`."""

    command: tuple[str, ...]
    kind: WorkloadKind = "ddp"
    image: str = ""
    env: dict[str, str] = {}
    processes_per_node: Count | None = None


class ConstraintsRequest(Request, frozen=True, kw_only=True):
    """What a node must be to serve the job. Empty means no such constraint."""

    interconnect: Level | None = None
    preferred_interconnect: Level | None = None
    preference_percent: Count = PREFERENCE_PERCENT
    min_bandwidth_gbps: Count = 0
    interface: Interface | None = None
    regions: tuple[str, ...] = ()
    regions_denied: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    countries_denied: tuple[str, ...] = ()
    min_memory_mib: Count = 0
    min_reliability_permille: Count = 0
    tier: Tier | None = None
    providers_excluded: tuple[AccountId, ...] = ()


class RecoveryRequest(Request, frozen=True, kw_only=True):
    """What shall become of a lost member, as in `volt.contracts.jobs.Recovery`."""

    on_loss: OnLoss = "replace"
    min_nodes: Count = 1
    retries: Count = 0


class JobRequest(Request, frozen=True, kw_only=True):
    """The body of `POST /v1/jobs`. No `max_price_usd_per_gpu_hour` is no cap; no `nodes` is whatever clears cheapest.

    `max_wait` is how long to wait for a cluster: a duration, or `0s` for an answer now.
    """

    gpu: str | tuple[str, ...]
    count: Count
    workload: WorkloadRequest
    nodes: Count | None = None
    constraints: ConstraintsRequest = ConstraintsRequest()
    recovery: RecoveryRequest = RecoveryRequest()
    max_price_usd_per_gpu_hour: str | None = None
    max_duration: str | None = None
    max_wait: str | None = None


class ScaleRequest(Request, frozen=True, kw_only=True):
    """The body of `POST /v1/jobs/{job}/scale`: so many GPUs in all, on nodes of the size that the cluster has."""

    count: Count


class JobMember(Answer, frozen=True, kw_only=True):
    """A node of the cluster. `address` is known once it is prepared."""

    lease: str
    rank: int
    node: str
    provider: str
    gpus: tuple[str, ...]
    price_usd_per_gpu_hour: str
    state: MemberState
    address: str = ""


class JobAlternative(Answer, frozen=True, kw_only=True):
    """A change of the request that would clear now: in words, and as what is to be asked for instead.

    None leaves that part of the request as it is; with `nodes` it is for `gpus` GPUs on so many nodes.
    """

    change: str
    price_usd_per_gpu_hour: str
    gpus: int
    nodes: int | None = None
    max_price_usd_per_gpu_hour: str | None = None
    interconnect: Level | None = None
    dropped: Droppable | None = None


class JobWaiting(Answer, frozen=True, kw_only=True):
    """Why the job, or a member of it, is not placed. `infeasible`: no such supply exists at all, leased or free."""

    binding: str
    message: str
    infeasible: bool
    funnel: tuple[FilterCount, ...] = ()
    alternatives: tuple[JobAlternative, ...] = ()
    queue_position: int | None = None
    """Its place among the jobs that wait for the same model, the oldest being 1; told of one job at a time."""


class JobShape(Answer, frozen=True, kw_only=True):
    """What was admitted. Of the environment only the names are told: the values may be secrets."""

    models: tuple[str, ...]
    gpus: int
    nodes: int | None
    """None: whatever clears cheapest."""
    kind: WorkloadKind
    command: tuple[str, ...]
    processes_per_node: int | None = None
    on_loss: OnLoss = "replace"
    min_nodes: int = 1
    retries: int = 0
    image: str
    env_names: tuple[str, ...]
    interconnect: Level
    preferred_interconnect: Level | None
    preference_percent: int
    min_bandwidth_gbps: int
    interface: Interface | None
    regions: tuple[str, ...]
    regions_denied: tuple[str, ...]
    countries: tuple[str, ...]
    countries_denied: tuple[str, ...]
    min_memory_mib: int
    min_reliability_permille: int
    tier: Tier | None
    providers_excluded: tuple[str, ...]
    max_wait_seconds: int | None
    max_price_usd_per_gpu_hour: str | None
    max_duration_seconds: int | None


class Job(Answer, frozen=True, kw_only=True):
    """A job as it is now. `requested`: it was handed over and is not answered yet.

    `cap_usd_per_gpu_hour` is the effective cap, `price_usd_per_gpu_hour` that of its first gang.
    `covers_to_ms` is when the money on hold would be used up.
    """

    id: str
    request_id: str
    state: JobState
    requested_at_ms: int | None = None
    shape: JobShape | None = None
    reason: Reason | None = None
    waiting: JobWaiting | None = None
    cap_usd_per_gpu_hour: str | None = None
    price_usd_per_gpu_hour: str | None = None
    generation: int = 0
    members: tuple[JobMember, ...] = ()
    nodes_wanted: int | None = None
    """How many nodes it shall have, by the last accepted wish for another size; None: as many as it was granted."""
    granted_at_ms: int | None = None
    ready_at_ms: int | None = None
    release_accepted_at_ms: int | None = None
    released_at_ms: int | None = None
    closed_at_ms: int | None = None
    covers_to_ms: int | None = None
    exhausted_at_ms: int | None = None
    retry_at_ms: int | None = None
    """When its workload, which has failed, begins again."""
    release_reason: ReleaseReason | None = None
    exit_code: int | None = None
    first_cause: str = ""
    posted_usd: str = "0.000000"
    """What was posted so far, and so left the hold."""


class JobList(Answer, frozen=True, kw_only=True):
    """A page of the account's jobs, the newest first. `next_before` asks for the page after it, if there is one."""

    jobs: tuple[Job, ...]
    next_before: int | None = None


class LeaseBill(Answer, frozen=True, kw_only=True):
    """What one lease owes up to `through_ms`. `fee_usd` is the platform's part of `due_usd`."""

    lease: str
    provider: str
    gpus: int
    price_usd_per_gpu_hour: str
    through_ms: int
    billable_ms: int
    due_usd: str
    fee_usd: str


class Bill(Answer, frozen=True, kw_only=True):
    """What a job owes so far; final once `closed`."""

    job: str
    state: JobState
    closed: bool
    lines: tuple[LeaseBill, ...]
    due_usd: str
    on_hold_usd: str


class Checkpoint(Answer, frozen=True, kw_only=True):
    """A step that every rank of a generation has stored. Only one that is `kept` can be resumed from."""

    step: int
    generation: int
    committed_at_ms: int
    ranks: int
    size_bytes: int
    kept: bool


class StoredCheckpoint(Answer, frozen=True, kw_only=True):
    """A step that only some ranks have stored: it is not committed until the `missing` ones have, too."""

    step: int
    ranks: tuple[int, ...]
    missing: tuple[int, ...]


class CheckpointList(Answer, frozen=True, kw_only=True):
    """The last committed checkpoints of a job, and what waits to be, the newest first."""

    job: str
    checkpoints: tuple[Checkpoint, ...]
    stored: tuple[StoredCheckpoint, ...] = ()


class Offer(Answer, frozen=True, kw_only=True):
    """GPUs of one model on one node. `free` counts those that nobody leases now."""

    node: str
    provider: str
    gpu: str
    memory_mib: int
    price_usd_per_gpu_hour: str
    free: int
    total: int
    place: Place
    state: NodeState
    reliability_permille: int = 1_000
    tier: Tier = "community"
    runtime: Runtime = "process"


class OfferList(Answer, frozen=True, kw_only=True):
    """Live supply, the cheapest first. `more`: there is more than one answer holds."""

    offers: tuple[Offer, ...]
    more: bool = False


class Balance(Answer, frozen=True, kw_only=True):
    """An account's money. `pending_usd` was posted for its nodes' work and is not settled yet, `earned_usd` is."""

    account: str
    wallet_usd: str
    on_hold_usd: str
    pending_usd: str
    earned_usd: str


class StatementLine(Answer, frozen=True, kw_only=True):
    """One movement of the account's money; `event` says what it was for."""

    id: str
    at_ms: int
    event: str
    job: str
    debit: str
    credit: str
    amount_usd: str


class Statement(Answer, frozen=True, kw_only=True):
    """The last movements of the account's money, the newest first."""

    lines: tuple[StatementLine, ...]


class JobHappening(Answer, frozen=True, kw_only=True):
    """Something that happened to a job. `seq` is its place in the log, `event` the name of the event there."""

    seq: int
    at_ms: int
    event: str
    message: str
    generation: int = 0
    lease: str = ""
    node: str = ""


class OutputLine(Answer, frozen=True, kw_only=True):
    """One line that a process of the workload wrote."""

    generation: int
    rank: int
    stream: str
    text: str


class Output(Answer, frozen=True, kw_only=True):
    """Lines of one node, in order."""

    at_ms: int
    node: str
    node_rank: int
    lines: tuple[OutputLine, ...]


class Health(Answer, frozen=True, kw_only=True):
    """Whether the parts that the gateway needs answer: `ok`, or the code of what is wrong with each."""

    status: Literal["ok", "unavailable"]
    bus: str
    views: str
    seq: int = 0
    """Where in the log the views are."""
    losses_held: str = ""
    """Why no silent node is called lost at present; empty while losses are said as they are found."""


class ErrorBody(Answer, frozen=True, kw_only=True):
    """What was wrong, the value seen, and what could be written instead. Every answer of 400 and up but health's."""

    code: str
    message: str
    field: str = ""
    seen: str = ""
    choices: tuple[str, ...] = ()
