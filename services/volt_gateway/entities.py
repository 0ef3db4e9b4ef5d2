"""What the views hold: one document for each thing that people ask about, and rankings of them.

key        the account that an HTTP key belongs to, under the key's SHA-256
account    when it was opened, and which of its commands were refused
job        a buyer's job, from the answer to its request to its bill
node       what a node offers, and which of its GPUs are leased
fleet      whether the losses of nodes are held
presence   whether a node's beats arrive, and which of its GPUs have failed, as said by the account that its agent
           speaks for
history    what that account's nodes, or one of them, can be relied on for
"""

from typing import TypeAlias

import msgspec

from volt.contracts.bids import Gpu, Place, Runtime, Terms, Tier
from volt.contracts.clusters import ReleaseReason
from volt.contracts.errors import Reason
from volt.contracts.http import (
    EVENTS_PER_JOB_MAX,
    STATEMENT_LINES_MAX,
    JobShape,
    JobState,
    MemberState,
    NodeState,
)
from volt.contracts.http_market import PRICES_MAX
from volt.contracts.ledger import BillLine
from volt.contracts.market import Quote as MarketQuote
from volt.contracts.market import Waiting
from volt.contracts.nodes import LostCause
from volt.contracts.reliability import Mishap, Record

ALL_OFFERS = "offers"
FLEET_DOC = "fleet"

JOBS_ENDED: frozenset[JobState] = frozenset({"rejected", "unfunded", "expired", "released", "closed"})
"""States out of which a job comes to no cluster any more."""


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Base of what is stored as one value."""


class Key(Document, frozen=True, kw_only=True):
    account: str


class Account(Document, frozen=True, kw_only=True):
    """`refused` holds the last refusals, each with the sequence of its command on `COMMANDS`."""

    opened_at_ms: int | None = None
    refused: tuple[tuple[int, Reason], ...] = ()


class Quarantined(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that is not sold, and why; one that `closes_node` keeps all of its node from being sold."""

    gpu: str
    why: str
    since_ms: int
    closes_node: bool = False


class Presence(Document, frozen=True, kw_only=True):
    state: NodeState
    reliability_permille: int = 1_000
    lost_by: LostCause | None = None
    quarantined: tuple[Quarantined, ...] = ()


class Fleet(Document, frozen=True, kw_only=True):
    """All nodes together. `held_at_ms` is None while losses are said as they are found."""

    held_at_ms: int | None = None
    silent: int = 0
    watched: int = 0


class PastMishap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that counts against a node."""

    kind: Mishap
    at_ms: int
    what: str = ""


class History(Document, frozen=True, kw_only=True):
    """Of a node, with the last of what went wrong, or of a provider."""

    record: Record = Record()
    mishaps: tuple[PastMishap, ...] = ()


class Quote(Document, frozen=True, kw_only=True):
    """The answers to a quote: intake's, and then the market's."""

    quote: str
    account: str
    request_digest: str
    reason: Reason | None = None
    refused: tuple[tuple[str, Reason], ...] = ()
    market: MarketQuote | None = None


class Node(Document, frozen=True, kw_only=True):
    """A node, by the account that offers it. `leased` has the GPUs of each lease that is not cleared yet."""

    node: str
    provider: str = ""
    offered: bool = False
    gpus: tuple[Gpu, ...] = ()
    terms: dict[str, Terms] = {}
    """By model."""
    place: Place = Place()
    tier: Tier = "community"
    runtime: Runtime = "process"
    drain_by_ms: int | None = None
    """By when it is to be empty, if it is drained."""
    drain_reason: str = ""
    leased: dict[str, tuple[str, ...]] = {}
    answered: tuple[tuple[str, Reason | None], ...] = ()
    """The last requests about it that its provider was answered, each with the reason of a refusal."""


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of a job's cluster, by the lease that makes it one."""

    lease: str
    rank: int
    node: str
    provider: str
    gpus: tuple[str, ...]
    price_microusd_per_gpu_hour: int
    state: MemberState
    address: str = ""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint."""

    step: int
    generation: int
    at_ms: int
    ranks: int
    size_bytes: int


class Job(Document, frozen=True, kw_only=True):
    """A job. `seq` is where the log first speaks of it; `refused` holds later requests under the same id."""

    job: str
    account: str
    request_id: str
    request_digest: str
    seq: int
    state: JobState
    requested_at_ms: int
    shape: JobShape | None = None
    reason: Reason | None = None
    refused: tuple[tuple[str, Reason], ...] = ()
    waiting: Waiting | None = None
    cap_microusd_per_gpu_hour: int | None = None
    price_microusd_per_gpu_hour: int | None = None
    generation: int = 0
    members: tuple[Member, ...] = ()
    nodes_wanted: int | None = None
    granted_at_ms: int | None = None
    ready_at_ms: int | None = None
    release_accepted_at_ms: int | None = None
    released_at_ms: int | None = None
    closed_at_ms: int | None = None
    covers_to_ms: int | None = None
    exhausted_at_ms: int | None = None
    retry_at_ms: int | None = None
    release_reason: ReleaseReason | None = None
    exit_code: int | None = None
    first_cause: str = ""
    bill: tuple[BillLine, ...] = ()
    scalings: tuple[tuple[str, Reason | None], ...] = ()
    """The last wishes for another size that were answered, each with the reason of a refusal."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """The last that were committed, oldest first."""
    stored: dict[int, tuple[int, ...]] = {}
    """Steps of the present generation that are not committed, and which ranks have stored them."""

    @property
    def takes_grants(self) -> bool:
        """Whether a gang still counts: one later in the log than the job's end or exhaustion is void."""
        return self.state not in JOBS_ENDED and self.exhausted_at_ms is None


Stored: TypeAlias = Key | Account | Fleet | Presence | History | Node | Job | Quote


def key_doc(sha256: str) -> str:
    return f"key:{sha256}"


def account_doc(account: str) -> str:
    return f"account:{account}"


def presence_doc(account: str, node: str) -> str:
    return f"presence:{account}:{node}"


def history_doc(account: str, node: str = "") -> str:
    """Of the account's node; of all its nodes together if none is named."""
    return f"history:{account}:{node}"


def node_doc(node: str) -> str:
    return f"node:{node}"


def job_doc(job: str) -> str:
    return f"job:{job}"


def quote_doc(quote: str) -> str:
    return f"quote:{quote}"


def bids_ranking(account: str) -> str:
    """The nodes that an account has offered."""
    return f"bids:{account}"


def nodes_ranking(account: str) -> str:
    """The nodes in whose name an account has beaten."""
    return f"nodes:{account}"


def queue_ranking(model: str) -> str:
    """The jobs that wait for this model, the oldest first."""
    return f"queue:{model}"


def prices_ranking(model: str) -> str:
    """The grants of this model, by sequence: the last `PRICES_MAX`."""
    return f"prices:{model}"


def jobs_ranking(account: str) -> str:
    """An account's jobs, by where the log first speaks of them."""
    return f"jobs:{account}"


def offers_ranking(model: str) -> str:
    """Live nodes that offer this model, by price. `ALL_OFFERS` ranks those of every model."""
    return f"offers:{model}"


def events_ranking(job: str) -> str:
    """What happened to a job, by sequence: the last `EVENTS_PER_JOB_MAX`."""
    return f"events:{job}"


def statement_ranking(account: str) -> str:
    """Movements of an account's money, by sequence: the last `STATEMENT_LINES_MAX`."""
    return f"statement:{account}"


def kept_max(ranking: str) -> int | None:
    """How many of the last places a ranking keeps; None: all of them."""
    bounds = {"events": EVENTS_PER_JOB_MAX, "statement": STATEMENT_LINES_MAX, "prices": PRICES_MAX}
    return bounds.get(ranking.partition(":")[0])


def on_hold(account: str) -> str:
    """The sum of an account's holds, kept beside the ledger accounts."""
    return f"on_hold/{account}"
