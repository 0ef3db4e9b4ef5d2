"""The projection: what an event of `LOG` changes in the views.

    touched(event)          which documents it may read or change; they are loaded first
    evolve(views, entry)    changes them, and notes what else the views gain: places in rankings, movements of money

Documents are replaced whole. Rankings are sorted sets, by what their readers ask for first. Nothing here decides
anything: what the log says is shown, and what concerns no view is passed over.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from volt.contracts import bids, clusters, fleet, jobs, ledger, nodes
from volt.contracts.http import StatementLine
from volt.contracts.http_market import PricePoint
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Event, encode
from volt.contracts.subjects import (
    ALL_ACCOUNTS,
    ALL_BIDS,
    ALL_CLUSTERS,
    ALL_JOBS,
    ALL_NODES,
    LOG_FLEET,
    LOG_LEDGER,
    LOG_MARKET,
)
from volt.contracts.units import format_usd
from volt_gateway import lifecycle
from volt_gateway.entities import (
    ALL_OFFERS,
    FLEET_DOC,
    Account,
    Fleet,
    Job,
    Key,
    Node,
    Presence,
    Quote,
    Stored,
    account_doc,
    bids_ranking,
    events_ranking,
    history_doc,
    job_doc,
    jobs_ranking,
    key_doc,
    node_doc,
    nodes_ranking,
    offers_ranking,
    on_hold,
    presence_doc,
    prices_ranking,
    queue_ranking,
    quote_doc,
    statement_ranking,
)
from volt_gateway.health import remember, seen
from volt_gateway.timeline import happenings

READS = (ALL_ACCOUNTS, ALL_JOBS, ALL_BIDS, LOG_MARKET, ALL_CLUSTERS, ALL_NODES, LOG_FLEET, LOG_LEDGER)
"""All of `LOG` but cover, which no view shows."""

REFUSED_PER_ACCOUNT_MAX = 64
ANSWERED_PER_NODE_MAX = 16


@dataclass
class Views:
    """The documents that some events touch, as loaded, and what the events add to the rest of the views."""

    documents: dict[str, Stored] = field(default_factory=dict)
    ranked: dict[str, dict[str, int | None]] = field(default_factory=lambda: defaultdict(dict))
    """Changes of rankings: the score of a member, or None for one that leaves."""
    moved_microusd: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """What balances gained, by ledger account."""


def touched(event: Event) -> Iterator[str]:
    """The documents that `evolve` may read or change for this event."""
    match event:
        case jobs.AccountOpened():
            yield from (account_doc(event.account), key_doc(event.key_sha256))
        case jobs.CommandRejected():
            yield account_doc(event.account)
        case jobs.QuoteAdmitted() | jobs.QuoteRejected():
            yield quote_doc(event.job)
        case jobs.JobEvent() | clusters.ClusterEvent():
            yield job_doc(event.job)
            if isinstance(event, clusters.LeaseCleared):
                yield node_doc(event.node)
        case bids.BidEvent() | nodes.NodeEvent():
            yield from (node_doc(event.node), presence_doc(event.account, event.node))
            if isinstance(event, nodes.NodeEvent):
                yield from (history_doc(event.account), history_doc(event.account, event.node))
        case fleet.FleetEvent():
            yield FLEET_DOC
        case MarketCleared(gangs=gangs):
            yield from (job_doc(gang.job) for gang in gangs)
            yield from (job_doc(one.job) for one in event.waiting)
            yield from (job_doc(one.job) for one in event.expired)
            yield from (quote_doc(one.quote) for one in event.quotes)
            yield from (node_doc(grant.node) for gang in gangs for grant in gang.grants)
        case ledger.LedgerEvent():
            job: str | None = getattr(event, "job", None)
            if job is not None:
                yield job_doc(job)


def evolve(views: Views, entry: Entry) -> None:
    """Applies an event. Raises AssertionError if the log says what it cannot say."""
    match entry.event:
        case jobs.AccountEvent() as event:
            _account(views, event)
        case jobs.QuoteAdmitted() | jobs.QuoteRejected() as event:
            _quote(views, event)
        case jobs.JobEvent() as event:
            _request(views, event, entry.seq)
        case bids.BidEvent() as event:
            _bid(views, event)
        case nodes.NodeEvent() as event:
            _node(views, event)
        case fleet.FleetEvent() as event:
            _fleet(views, event)
        case MarketCleared() as event:
            _market(views, event, entry.seq)
        case clusters.ClusterEvent() as event:
            _cluster(views, event)
        case ledger.LedgerEvent() as event:
            _money(views, event, entry)
    for job, happening in happenings(entry):
        views.ranked[events_ranking(job)][encode(happening).decode()] = entry.seq


def _account(views: Views, event: jobs.AccountEvent) -> None:
    known = views.documents.get(account_doc(event.account))
    account = known if isinstance(known, Account) else Account()
    match event:
        case jobs.AccountOpened():
            # A key that two accounts claim stays with the first: the hash of a key is no secret.
            views.documents.setdefault(key_doc(event.key_sha256), Key(account=event.account))
            account = replace(account, opened_at_ms=event.at_ms)
        case jobs.CommandRejected():
            refused = (*account.refused, (event.command_seq, event.reason))[-REFUSED_PER_ACCOUNT_MAX:]
            account = replace(account, refused=refused)
    views.documents[account_doc(event.account)] = account


def _request(views: Views, event: jobs.JobEvent, seq: int) -> None:
    job = _job(views, event.job)
    match event:
        case jobs.JobAdmitted() | jobs.JobRejected() if job is None:
            job = lifecycle.requested(event, seq)
            views.ranked[jobs_ranking(event.account)][event.job] = seq
        case jobs.JobRejected() if job is not None:
            job = lifecycle.refused(job, event)
        case jobs.JobReleaseAccepted() if job is not None:
            job = lifecycle.release_accepted(job, event)
        case jobs.JobScaleAccepted() | jobs.JobScaleRejected() if job is not None:
            job = lifecycle.scaling_answered(job, event)
        case _:
            raise AssertionError(f"{type(event).__name__} of job {event.job}, which is {job and job.state}")
    _show(views, job)


def _quote(views: Views, event: jobs.QuoteAdmitted | jobs.QuoteRejected) -> None:
    known = views.documents.get(quote_doc(event.job))
    reason = event.reason if isinstance(event, jobs.QuoteRejected) else None
    if isinstance(known, Quote):
        refused = (*known.refused, (event.request_digest, reason))[-lifecycle.REFUSED_PER_JOB_MAX :]
        quote = replace(known, refused=tuple((one, why) for one, why in refused if why is not None))
    else:
        quote = Quote(quote=event.job, account=event.account, request_digest=event.request_digest, reason=reason)
    views.documents[quote_doc(event.job)] = quote


def _show(views: Views, job: Job) -> None:
    """The job from now on, and its place among those that wait."""
    before = _job(views, job.job)
    views.documents[job_doc(job.job)] = job
    for model in job.shape.models if job.shape else ():
        if _is_queued(before) != _is_queued(job):
            views.ranked[queue_ranking(model)][job.job] = job.seq if _is_queued(job) else None


def _is_queued(job: Job | None) -> bool:
    return job is not None and job.state in ("funded", "waiting")


def _bid(views: Views, event: bids.BidEvent) -> None:
    before = _node_of(views, event.node)
    match event:
        case bids.BidAccepted():
            node = replace(
                before,
                provider=event.account,
                offered=True,
                gpus=event.gpus,
                terms={gpu.model: event.terms_of(gpu.model) for gpu in event.gpus},
                place=event.place,
                tier=event.tier,
                runtime=event.runtime,
            )
        case bids.BidWithdrawn():
            node = replace(before, offered=False)
        case bids.NodeDrainAccepted(deadline_ms=by_ms, reason=why) if before.provider == event.account:
            node = replace(before, drain_by_ms=by_ms, drain_reason=why)
        case bids.NodeResumeAccepted() if before.provider == event.account:
            node = replace(before, drain_by_ms=None, drain_reason="")
        case bids.BidRejected() if before.provider == event.account:
            node = before
        case _:
            return
    reason = event.reason if isinstance(event, bids.BidRejected) else None
    answered = (*node.answered, (event.request_id, reason))[-ANSWERED_PER_NODE_MAX:]
    node = replace(node, answered=answered)
    views.documents[node_doc(event.node)] = node
    views.ranked[bids_ranking(event.account)][event.node] = 0
    _rank_offers(views, before, node)


def _node(views: Views, event: nodes.NodeEvent) -> None:
    remember(views.documents, event)
    views.ranked[nodes_ranking(event.account)][event.node] = 0
    before = views.documents.get(presence_doc(event.account, event.node))
    presence = seen(before if isinstance(before, Presence) else None, event)
    views.documents[presence_doc(event.account, event.node)] = presence
    node = _node_of(views, event.node)
    if node.provider == event.account:
        _rank_offers(views, node, node)


def _fleet(views: Views, event: fleet.FleetEvent) -> None:
    match event:
        case fleet.LossesHeld():
            views.documents[FLEET_DOC] = Fleet(held_at_ms=event.at_ms, silent=event.silent, watched=event.watched)
        case fleet.LossesReleased():
            views.documents[FLEET_DOC] = Fleet()


def _rank_offers(views: Views, before: Node, node: Node) -> None:
    presence = views.documents.get(presence_doc(node.provider, node.node))
    is_sold = node.offered and node.drain_by_ms is None
    is_live = is_sold and isinstance(presence, Presence) and presence.state != "lost"
    asks = {
        model: terms.ask_microusd_per_gpu_hour for model, terms in node.terms.items() if is_live and not terms.paused
    }
    views.ranked[ALL_OFFERS][node.node] = min(asks.values(), default=None)
    for model in before.terms | node.terms:
        views.ranked[offers_ranking(model)][node.node] = asks.get(model)


def _market(views: Views, event: MarketCleared, seq: int) -> None:
    for gang in event.gangs:
        job = _job(views, gang.job)
        if job is not None and job.takes_grants:
            _show(views, lifecycle.granted(job, gang, event.at_ms))
            _lease_out(views, gang, event.at_ms, seq)
    for waiting in event.waiting:
        job = _job(views, waiting.job)
        if job is not None and job.takes_grants:
            _show(views, lifecycle.kept_waiting(job, waiting))
    for expired in event.expired:
        job = _job(views, expired.job)
        if job is not None and job.takes_grants:
            _show(views, lifecycle.expired(job))
    for quote in event.quotes:
        known = views.documents.get(quote_doc(quote.quote))
        if isinstance(known, Quote):
            views.documents[quote_doc(quote.quote)] = replace(known, market=quote)


def _lease_out(views: Views, gang: Gang, at_ms: int, seq: int) -> None:
    point = PricePoint(
        at_ms=at_ms,
        price_usd_per_gpu_hour=format_usd(gang.price_microusd_per_gpu_hour),
        gpus=sum(len(grant.gpus) for grant in gang.grants),
    )
    # Two gangs of one pass may be alike in all of this, and each is a grant of its own.
    member = f"{gang.job}/{gang.attempt} ".encode() + encode(point)
    views.ranked[prices_ranking(gang.model)][member.decode()] = seq
    for grant in gang.grants:
        node = _node_of(views, grant.node)
        views.documents[node_doc(grant.node)] = replace(node, leased={**node.leased, grant.lease: grant.gpus})


def _cluster(views: Views, event: clusters.ClusterEvent) -> None:
    if isinstance(event, clusters.LeaseCleared):
        node = _node_of(views, event.node)
        leased = {lease: gpus for lease, gpus in node.leased.items() if lease != event.lease}
        views.documents[node_doc(event.node)] = replace(node, leased=leased)
    job = _job(views, event.job)
    if job is not None:
        _show(views, lifecycle.clustered(job, event))


def _money(views: Views, event: ledger.LedgerEvent, entry: Entry) -> None:
    job_id: str = getattr(event, "job", "")
    for transfer in event.transfers:
        views.moved_microusd[transfer.debit] -= transfer.amount_microusd
        views.moved_microusd[transfer.credit] += transfer.amount_microusd
        line = StatementLine(
            id=transfer.id,
            at_ms=event.at_ms,
            event=type(event).__name__,
            job=job_id,
            debit=transfer.debit,
            credit=transfer.credit,
            amount_usd=format_usd(transfer.amount_microusd),
        )
        for owner in _owners(transfer, event.account):
            views.ranked[statement_ranking(owner)][encode(line).decode()] = entry.seq
        if _kind(transfer.debit) == "hold":
            views.moved_microusd[on_hold(event.account)] -= transfer.amount_microusd
        if _kind(transfer.credit) == "hold":
            views.moved_microusd[on_hold(event.account)] += transfer.amount_microusd
    job = _job(views, job_id) if job_id else None
    if job is not None:
        _show(views, lifecycle.paid(job, event))


def _owners(transfer: ledger.Transfer, payer: str) -> set[str]:
    """The accounts whose money a transfer moves. A hold is the payer's."""
    owners = set()
    for name in (transfer.debit, transfer.credit):
        kind, _, owner = name.partition("/")
        if owner:
            owners.add(payer if kind == "hold" else owner)
    return owners


def _kind(name: str) -> str:
    return name.partition("/")[0]


def _job(views: Views, job: str) -> Job | None:
    known = views.documents.get(job_doc(job))
    return known if isinstance(known, Job) else None


def _node_of(views: Views, node: str) -> Node:
    known = views.documents.get(node_doc(node))
    return known if isinstance(known, Node) else Node(node=node)
