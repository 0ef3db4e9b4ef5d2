"""What travels over HTTP about the market: bids and their changes, quotes, depth and prices. Written as `http` is."""

from typing import Annotated

import msgspec

from volt.contracts.bids import Place, Runtime, Tier
from volt.contracts.http import Answer, Count, JobWaiting, NodeState, Request
from volt.contracts.reliability import Mishap

BIDS_PATH = "/v1/bids"
NODES_PATH = "/v1/nodes"
MARKET_PATH = "/v1/market"
QUOTES_PATH = "/v1/quotes"
BIDS_MAX = 500
DEPTH_LEVELS_MAX = 100
PRICES_MAX = 100
RELIABILITY_PATH = "/v1/reliability"
NODES_RATED_MAX = 500
MISHAPS_MAX = 32
"""Those of one node that are shown, the last ones; older ones count all the same."""

Instant = Annotated[int, msgspec.Meta(ge=0, le=100_000_000_000_000)]
"""Milliseconds since 1970."""


class BidChange(Request, frozen=True, kw_only=True):
    """The body of `POST /v1/bids/{node}`: what is to be another than it is. `offer` puts a withdrawn node back.

    A `max_duration` of `none`, and an instant of 0, take that term away.
    """

    gpu: str | None = None
    """Of which model; None: of every one."""
    offer: bool = False
    price_usd_per_gpu_hour: str | None = None
    gpus_min: Count | None = None
    max_duration: str | None = None
    available_from_ms: Instant | None = None
    available_until_ms: Instant | None = None
    paused: bool | None = None


class QuotedNode(Answer, frozen=True, kw_only=True):
    """A node that a request would get."""

    rank: int
    node: str
    provider: str
    gpus: int


class Quote(Answer, frozen=True, kw_only=True):
    """What a request would get now: nodes at a price, or why none. Nothing is held for it."""

    id: str
    gpu: str = ""
    nodes: tuple[QuotedNode, ...] = ()
    price_usd_per_gpu_hour: str | None = None
    domain: str = ""
    waiting: JobWaiting | None = None


class QuarantinedGpu(Answer, frozen=True, kw_only=True):
    """A GPU that is not sold, since when and why. One that `closes_node` keeps all of its node off the market."""

    gpu: str
    why: str
    since_ms: int
    closes_node: bool


class Bid(Answer, frozen=True, kw_only=True):
    """What one of the account's nodes offers of one model. `net` is what is left of the price after the fee."""

    node: str
    gpu: str
    price_usd_per_gpu_hour: str
    net_usd_per_gpu_hour: str
    free: int
    total: int
    gpus_min: int
    max_duration_seconds: int | None
    available_from_ms: int | None
    available_until_ms: int | None
    paused: bool
    withdrawn: bool
    state: NodeState
    reliability_permille: int
    tier: Tier
    place: Place
    runtime: Runtime = "process"
    reason: str = ""
    """Why it is lost, if it is."""
    quarantined: tuple[QuarantinedGpu, ...] = ()


class BidList(Answer, frozen=True, kw_only=True):
    """The account's nodes, by name."""

    bids: tuple[Bid, ...]


class DrainRequest(Request, frozen=True, kw_only=True):
    """The body of `POST /v1/nodes/{node}/drain`. `deadline` is a duration by which it is empty; `0s` is at once."""

    reason: str = ""
    deadline: str | None = None


class ProviderNode(Answer, frozen=True, kw_only=True):
    """One of the account's own nodes. `drain_by_ms`: by when it is to be empty, if it is drained."""

    node: str
    state: NodeState
    gpus: int
    leased: int
    """How many of its GPUs are leased."""
    leases: tuple[str, ...]
    withdrawn: bool
    drain_by_ms: int | None = None
    drain_reason: str = ""


class NodeList(Answer, frozen=True, kw_only=True):
    """The account's nodes, by name."""

    nodes: tuple[ProviderNode, ...]


class DepthLevel(Answer, frozen=True, kw_only=True):
    """How many GPUs are free at one price."""

    price_usd_per_gpu_hour: str
    free: int
    nodes: int


class PricePoint(Answer, frozen=True, kw_only=True):
    """A grant: so many GPUs at this price."""

    at_ms: int
    price_usd_per_gpu_hour: str
    gpus: int


class Market(Answer, frozen=True, kw_only=True):
    """The market of one model: its best ask, its depth by price, and its last clearing prices, the newest first."""

    gpu: str
    best_ask_usd_per_gpu_hour: str | None
    free: int
    total: int
    waiting: int
    """How many jobs wait for it."""
    depth: tuple[DepthLevel, ...]
    prices: tuple[PricePoint, ...]


class WeighedMishap(Answer, frozen=True, kw_only=True):
    """Something that counts against a node: what it costs when new, and how much of that is left at this age."""

    kind: Mishap
    what: str
    at_ms: int
    age_ms: int
    cost_ms: int
    weight_permille: int


class NodeReliability(Answer, frozen=True, kw_only=True):
    """How far a node can be relied on: `good_ms` is its time alive and `bad_ms` its mishaps' costs, as they weigh now.

    `mishaps` are the last ones, the newest first.
    """

    node: str
    reliability_permille: int
    alive: bool
    good_ms: int
    bad_ms: int
    mishaps: tuple[WeighedMishap, ...]


class ProviderReliability(Answer, frozen=True, kw_only=True):
    """How far a provider's nodes can be relied on together, and each of them, by the formula of docs/reliability.md."""

    provider: str
    at_ms: int
    """The stream's time of the last event that is in it."""
    reliability_permille: int
    good_ms: int
    bad_ms: int
    nodes: tuple[NodeReliability, ...]
