"""What a buyer asks for, as a command (`RequestJob`, as people write it) and as admitted (`JobSpec`, canonical)."""

from typing import Literal

from volt.contracts.bids import Runtime, Tier
from volt.contracts.errors import Reason
from volt.contracts.gpus import Interface
from volt.contracts.ids import AccountId, JobId, RequestId
from volt.contracts.messages import Answer, Command, Value
from volt.contracts.subjects import log_account, log_job

WorkloadKind = Literal["ddp", "fsdp", "ray", "service", "sweep", "batch", "inference"]
Level = Literal["nvlink", "fabric", "site", "region", "any"]
"""How near nodes are to each other; `nvlink` is one node whose GPUs reach each other over it."""
OnLoss = Literal["replace", "shrink", "stop"]
"""A lost member is replaced; or the others go on without it; or the cluster ends."""

GANG_KINDS: frozenset[WorkloadKind] = frozenset({"ddp", "fsdp"})
"""Kinds whose ranks start and stop together; the others let unaffected members run on."""

NODES_MAX = 256
GPUS_PER_NODE_MAX = 16
GPUS_PER_NODE_UNASKED_MAX = 8
"""How many GPUs a node of a job has at most when the request does not say how many nodes."""
SHAPES_MAX = 16
MODELS_MAX = 8
REGIONS_MAX = 32
COUNTRIES_MAX = 64
PROVIDERS_EXCLUDED_MAX = 64
PREFERENCE_PERCENT = 10
"""How much dearer a preferred level may be by default before it is given up."""
PREFERENCE_PERCENT_MAX = 100
RETRIES_MAX = 100
WAIT_SECONDS_MAX = 30 * 24 * 3600
RELIABILITY_PERMILLE_MAX = 1_000
PROCESSES_PER_NODE_MAX = 256
ENV_VARS_MAX = 256
ENV_BYTES_MAX = 32 * 1024
COMMAND_ARGS_MAX = 256
COMMAND_BYTES_MAX = 32 * 1024
IMAGE_CHARS_MAX = 512
SPEC_BYTES_MAX = 96 * 1024
"""An admitted request as JSON: it has to fit, with its manifest, into what nodes and events carry."""

RESERVED_ENV_PREFIX = "VOLT_"
RESERVED_ENV_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"}
    | {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
)
"""What the cluster itself tells every process."""


class Workload(Value, frozen=True, kw_only=True):
    """The processes to run. One with an `image` goes only to nodes that run images, one without only to others."""

    kind: WorkloadKind = "ddp"
    command: tuple[str, ...]
    image: str = ""
    env: dict[str, str] = {}
    processes_per_node: int | None = None
    """None: one per GPU for gang kinds, else one."""

    @property
    def runtime(self) -> Runtime:
        """What a node must have to run it."""
        return "docker" if self.image else "process"


class Constraints(Value, frozen=True, kw_only=True):
    """What a node must be to serve the job. Empty means no such constraint."""

    interconnect: Level | None = None
    """The level at which the nodes must be together. None: the workload kind's default."""
    preferred_interconnect: Level | None = None
    """A nearer level that is worth `preference_percent` of the price."""
    preference_percent: int = PREFERENCE_PERCENT
    min_bandwidth_gbps: int = 0
    interface: Interface | None = None
    regions: tuple[str, ...] = ()
    regions_denied: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    countries_denied: tuple[str, ...] = ()
    min_memory_mib: int = 0
    min_reliability_permille: int = 0
    tier: Tier | None = None
    providers_excluded: tuple[AccountId, ...] = ()


class Recovery(Value, frozen=True, kw_only=True):
    """What shall become of a cluster that has been ready and loses a member."""

    on_loss: OnLoss = "replace"
    min_nodes: int = 1
    """With `shrink`: the fewest nodes that it goes on with. With fewer left it ends."""
    retries: int = 0
    """How often it begins again after its workload has failed, out of memory or otherwise."""


class RequestJob(Command, frozen=True, kw_only=True):
    """Asks for a cluster. Prices are micro-dollars per GPU-hour; `max_price` None is no cap."""

    account: AccountId
    request_id: RequestId
    gpu: str | tuple[str, ...]
    count: int
    nodes: int | None = None
    """None: whatever number clears cheapest."""
    workload: Workload
    constraints: Constraints = Constraints()
    recovery: Recovery = Recovery()
    max_price_microusd_per_gpu_hour: int | None = None
    max_duration_seconds: int | None = None
    max_wait_seconds: int | None = None
    """How long to wait for a gang; 0 is for an answer now, None for as long as it takes."""


class ReleaseJob(Command, frozen=True, kw_only=True):
    """Ends a job in whatever state it is; its bill stops at the accepted release."""

    account: AccountId
    request_id: RequestId
    job: JobId


class Shape(Value, frozen=True, kw_only=True):
    """So many nodes with so many GPUs each."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


class RequestQuote(Command, frozen=True, kw_only=True):
    """Asks what a job request would get now. Nothing is held, nothing is granted."""

    request: RequestJob

    @property
    def account(self) -> AccountId:
        return self.request.account


class ScaleJob(Command, frozen=True, kw_only=True):
    """Makes a running cluster larger or smaller: so many GPUs in all, on nodes of the size that it has."""

    account: AccountId
    request_id: RequestId
    job: JobId
    count: int


class JobSpec(Value, frozen=True, kw_only=True):
    """An admitted request: canonical models, definite shapes of as many GPUs each, the preferred one first.

    The gang is of one of the models and has one of the shapes.
    """

    models: tuple[str, ...]
    shapes: tuple[Shape, ...]
    workload: Workload
    recovery: Recovery = Recovery()
    interconnect: Level
    preferred_interconnect: Level | None = None
    preference_percent: int = PREFERENCE_PERCENT
    min_bandwidth_gbps: int = 0
    interface: Interface | None = None
    regions: tuple[str, ...] = ()
    regions_denied: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    countries_denied: tuple[str, ...] = ()
    min_memory_mib: int = 0
    min_reliability_permille: int = 0
    tier: Tier | None = None
    providers_excluded: tuple[AccountId, ...] = ()
    max_price_microusd_per_gpu_hour: int | None = None
    max_duration_seconds: int | None = None
    max_wait_seconds: int | None = None

    @property
    def gpus(self) -> int:
        return self.shapes[0].gpus

    @property
    def is_gang(self) -> bool:
        return self.workload.kind in GANG_KINDS

    def processes_on(self, gpus: int) -> int:
        """Processes on a node with so many GPUs: as asked, else one per GPU for gang kinds and one for the others."""
        if self.workload.processes_per_node is not None:
            return self.workload.processes_per_node
        return gpus if self.is_gang else 1


class JobEvent(Answer, frozen=True, kw_only=True):
    """An event of `log.job.<account>.<job>`, written by bid-intake."""

    account: AccountId
    job: JobId
    request_id: RequestId
    at_ms: int

    def subject(self) -> str:
        return log_job(self.account, self.job)


class JobAdmitted(JobEvent, frozen=True, kw_only=True):
    """The request is well formed, canonical and allowed. `request_digest` tells retries from impostors."""

    request_digest: str
    spec: JobSpec


class JobRejected(JobEvent, frozen=True, kw_only=True):
    """The request is refused; the job does not exist. Also the answer to a reused request id."""

    request_digest: str
    reason: Reason


class JobReleaseAccepted(JobEvent, frozen=True, kw_only=True):
    """The buyer wants it ended; billing stops at `at_ms`."""


class JobScaleAccepted(JobEvent, frozen=True, kw_only=True):
    """The buyer wants so many nodes; the last wish counts. It may be the size that the cluster has."""

    request_digest: str
    nodes: int


class JobScaleRejected(JobEvent, frozen=True, kw_only=True):
    """The wish is refused; the job stays as it is."""

    request_digest: str
    reason: Reason


class QuoteAdmitted(JobEvent, frozen=True, kw_only=True):
    """The market shall say what this would get; `job` names the quote, and there is no job of that name."""

    request_digest: str
    spec: JobSpec


class QuoteRejected(JobEvent, frozen=True, kw_only=True):
    """There is nothing to quote: such a request would be refused."""

    request_digest: str
    reason: Reason


class AccountEvent(Answer, frozen=True, kw_only=True):
    """An event of `log.account.<account>`, written by bid-intake."""

    account: AccountId
    at_ms: int

    def subject(self) -> str:
        return log_account(self.account)


class OpenAccount(Command, frozen=True, kw_only=True):
    """Opens an account. The HTTP key itself never travels: only its SHA-256, in hex."""

    account: AccountId
    request_id: RequestId
    key_sha256: str


class AccountOpened(AccountEvent, frozen=True, kw_only=True):
    """The account exists; billing gives it its first credit."""

    request_id: RequestId
    key_sha256: str


class CommandRejected(AccountEvent, frozen=True, kw_only=True):
    """A command of this account that could not even be read, or names what it may not."""

    command_subject: str
    reason: Reason
