"""The market in the views: a model's depth and prices, an account's own bids, a job's place in the queue."""

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec

from volt.contracts.http_market import (
    BIDS_MAX,
    DEPTH_LEVELS_MAX,
    PRICES_MAX,
    Bid,
    BidList,
    DepthLevel,
    Market,
    NodeList,
    PricePoint,
    ProviderNode,
    QuarantinedGpu,
)
from volt.contracts.jobs import RELIABILITY_PERMILLE_MAX
from volt.contracts.ledger import FEE_BASIS_POINTS
from volt.contracts.nodes import LostCause
from volt.contracts.units import BASIS_POINTS, format_usd
from volt_gateway.entities import (
    Job,
    Node,
    Presence,
    bids_ranking,
    node_doc,
    offers_ranking,
    presence_doc,
    prices_ranking,
    queue_ranking,
)
from volt_gateway.health import unsold
from volt_gateway.views import ViewStore

SCAN_NODES = 500
SCANNED_NODES_MAX = 20_000


_LOST_BY: dict[LostCause, str] = {
    "silent": "its heartbeats stopped",
    "left": "its agent was stopped",
    "never_beat": "no heartbeat came in time after its bid",
}


class Lot(NamedTuple):
    """What one node has of a model, at what price."""

    ask_microusd_per_gpu_hour: int
    free: int
    total: int


async def market_of(views: ViewStore, model: str) -> Market:
    """The market of one model, by its slug. Raises Unavailable."""
    lots = [lot async for lot in _lots(views, model)]
    levels = _levels(lots)
    prices = await views.newest(prices_ranking(model), PRICES_MAX)
    return Market(
        gpu=model,
        best_ask_usd_per_gpu_hour=levels[0].price_usd_per_gpu_hour if levels else None,
        free=sum(level.free for level in levels),
        total=sum(lot.total for lot in lots),
        waiting=await views.count(queue_ranking(model)),
        depth=levels[:DEPTH_LEVELS_MAX],
        prices=tuple(msgspec.json.decode(one.partition(b" ")[2], type=PricePoint) for one in prices),
    )


async def bids_of(views: ViewStore, account: str) -> BidList:
    """What an account's nodes offer, by name. Raises Unavailable."""
    names = [node_doc(name.decode()) for name in await views.lowest(bids_ranking(account), 0, BIDS_MAX)]
    found = await views.documents(names)
    nodes = [node for name in names if isinstance(node := found.get(name), Node) and node.provider == account]
    return BidList(bids=tuple([bid for node in nodes for bid in await bids_of_node(views, node)]))


async def bids_of_node(views: ViewStore, node: Node) -> list[Bid]:
    """What a node offers, one for each model. Raises Unavailable."""
    name = presence_doc(node.provider, node.node)
    presence = (await views.documents([name])).get(name)
    return list(_bids(node, presence if isinstance(presence, Presence) else None))


async def nodes_of(views: ViewStore, account: str) -> NodeList:
    """An account's nodes, by name. Raises Unavailable."""
    names = [node_doc(name.decode()) for name in await views.lowest(bids_ranking(account), 0, BIDS_MAX)]
    found = await views.documents(names)
    nodes = [node for name in names if isinstance(node := found.get(name), Node) and node.provider == account]
    return NodeList(nodes=tuple([await node_of(views, node) for node in nodes]))


async def node_of(views: ViewStore, node: Node) -> ProviderNode:
    """A node as its provider sees it. Raises Unavailable."""
    name = presence_doc(node.provider, node.node)
    presence = (await views.documents([name])).get(name)
    return ProviderNode(
        node=node.node,
        state=presence.state if isinstance(presence, Presence) else "unknown",
        gpus=len(node.gpus),
        leased=sum(len(gpus) for gpus in node.leased.values()),
        leases=tuple(sorted(node.leased)),
        withdrawn=not node.offered,
        drain_by_ms=node.drain_by_ms,
        drain_reason=node.drain_reason,
    )


async def queue_position(views: ViewStore, job: Job) -> int | None:
    """How many jobs wait for one of its models up to this one, counting itself. Raises Unavailable."""
    if job.shape is None or job.waiting is None:
        return None
    places = [await views.place(queue_ranking(model), job.job) for model in job.shape.models]
    known = [place for place in places if place is not None]
    return max(known) + 1 if known else None


async def _lots(views: ViewStore, model: str) -> AsyncIterator[Lot]:
    """The price, the free GPUs and all GPUs of each live node that offers the model, the cheapest first."""
    for start in range(0, SCANNED_NODES_MAX, SCAN_NODES):
        names = [node_doc(name.decode()) for name in await views.lowest(offers_ranking(model), start, SCAN_NODES)]
        found = await views.documents(names)
        nodes = [node for name in names if isinstance(node := found.get(name), Node)]
        seen = await views.documents([presence_doc(node.provider, node.node) for node in nodes])
        for node in nodes:
            presence = seen.get(presence_doc(node.provider, node.node))
            if model in node.terms:
                free, total = _counts(node, presence if isinstance(presence, Presence) else None, model)
                yield Lot(node.terms[model].ask_microusd_per_gpu_hour, free, total)
        if len(names) < SCAN_NODES:
            return


def _levels(lots: Iterable[Lot]) -> tuple[DepthLevel, ...]:
    """The free GPUs of lots that are in order of their price, summed up by it."""
    levels = []
    for price_microusd, alike in groupby(lots, key=lambda lot: lot.ask_microusd_per_gpu_hour):
        free = [lot.free for lot in alike if lot.free]
        if free:
            price = format_usd(price_microusd)
            levels.append(DepthLevel(price_usd_per_gpu_hour=price, free=sum(free), nodes=len(free)))
    return tuple(levels)


def _counts(node: Node, presence: Presence | None, model: str) -> tuple[int, int]:
    """The free GPUs of the model, and all of them."""
    off = unsold(node, presence)
    gpus = [gpu.uuid for gpu in node.gpus if gpu.model == model]
    return sum(uuid not in off for uuid in gpus), len(gpus)


def _bids(node: Node, presence: Presence | None) -> Iterator[Bid]:
    for model, terms in sorted(node.terms.items()):
        free, total = _counts(node, presence, model)
        of_model = {gpu.uuid for gpu in node.gpus if gpu.model == model}
        yield Bid(
            node=node.node,
            gpu=model,
            price_usd_per_gpu_hour=format_usd(terms.ask_microusd_per_gpu_hour),
            net_usd_per_gpu_hour=format_usd(_net_microusd(terms.ask_microusd_per_gpu_hour)),
            free=free,
            total=total,
            gpus_min=terms.gpus_min,
            max_duration_seconds=terms.max_duration_seconds,
            available_from_ms=terms.available_from_ms,
            available_until_ms=terms.available_until_ms,
            paused=terms.paused,
            withdrawn=not node.offered,
            state=presence.state if presence else "unknown",
            reliability_permille=presence.reliability_permille if presence else RELIABILITY_PERMILLE_MAX,
            tier=node.tier,
            runtime=node.runtime,
            place=node.place,
            reason=_LOST_BY[presence.lost_by] if presence and presence.lost_by else "",
            quarantined=tuple(
                QuarantinedGpu(gpu=one.gpu, why=one.why, since_ms=one.since_ms, closes_node=one.closes_node)
                for one in (presence.quarantined if presence else ())
                if one.gpu in of_model
            ),
        )


def _net_microusd(price_microusd: int) -> int:
    """What the provider gets of a gross price."""
    return price_microusd - price_microusd * FEE_BASIS_POINTS // BASIS_POINTS
