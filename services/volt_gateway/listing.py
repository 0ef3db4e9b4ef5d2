"""Lists out of the views: an account's jobs, and what is on offer."""

from collections.abc import Sequence

from volt.contracts.http import OFFERS_MAX, Offer, OfferList
from volt_gateway.entities import (
    ALL_OFFERS,
    Job,
    Node,
    Presence,
    job_doc,
    jobs_ranking,
    node_doc,
    offers_ranking,
    presence_doc,
)
from volt_gateway.present import offers_of
from volt_gateway.views import ViewStore

SCAN_NODES = 500
SCANNED_NODES_MAX = 20_000


async def newest_jobs(views: ViewStore, account: str, count: int, before: int | None) -> list[Job]:
    """An account's jobs, the newest first, below a place in the log. Raises Unavailable."""
    names = [job_doc(job.decode()) for job in await views.newest(jobs_ranking(account), count, before)]
    found = await views.documents(names)
    return [job for name in names if isinstance(job := found.get(name), Job)]


async def live_offers(views: ViewStore, model: str | None, region: str | None) -> OfferList:
    """What is on offer, the cheapest first, of one model and in one region if they are given. Raises Unavailable."""
    ranking = ALL_OFFERS if model is None else offers_ranking(model)
    offers: list[Offer] = []
    for start in range(0, SCANNED_NODES_MAX, SCAN_NODES):
        nodes = [node.decode() for node in await views.lowest(ranking, start, SCAN_NODES)]
        found = await _offers(views, nodes)
        offers += [one for one in found if model in (None, one.gpu) and region in (None, one.place.region)]
        if len(offers) > OFFERS_MAX:
            return OfferList(offers=tuple(offers[:OFFERS_MAX]), more=True)
        if len(nodes) < SCAN_NODES:
            return OfferList(offers=tuple(offers))
    return OfferList(offers=tuple(offers), more=True)


async def _offers(views: ViewStore, names: Sequence[str]) -> list[Offer]:
    """The offers of these nodes, in their order."""
    documents = [node_doc(name) for name in names]
    found = await views.documents(documents)
    nodes = [node for name in documents if isinstance(node := found.get(name), Node)]
    beats = await views.documents([presence_doc(node.provider, node.node) for node in nodes])
    offers: list[Offer] = []
    for node in nodes:
        presence = beats.get(presence_doc(node.provider, node.node))
        if isinstance(presence, Presence):
            offers += offers_of(node, presence)
    return offers
