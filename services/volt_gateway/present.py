"""Documents as HTTP shows them: amounts as decimal strings, and nothing that is the account's secret."""

from collections.abc import Iterator, Sequence

import msgspec

from volt.contracts import http, http_market
from volt.contracts.clusters import CHECKPOINTS_KEPT
from volt.contracts.ids import AccountId
from volt.contracts.ledger import BillLine
from volt.contracts.market import Waiting
from volt.contracts.units import format_usd
from volt_gateway.entities import Job, Member, Node, Presence, Quote
from volt_gateway.health import unsold
from volt_gateway.wording import in_words


def job_answer(job: Job, queue_position: int | None = None) -> http.Job:
    """A job, without the lines of its bill."""
    return http.Job(
        id=job.job,
        request_id=job.request_id,
        state=job.state,
        requested_at_ms=job.requested_at_ms,
        shape=job.shape,
        reason=job.reason,
        waiting=_waiting(job.waiting, queue_position) if job.waiting else None,
        cap_usd_per_gpu_hour=_usd_if_known(job.cap_microusd_per_gpu_hour),
        price_usd_per_gpu_hour=_usd_if_known(job.price_microusd_per_gpu_hour),
        generation=job.generation,
        members=tuple(_member(member) for member in job.members),
        nodes_wanted=job.nodes_wanted,
        granted_at_ms=job.granted_at_ms,
        ready_at_ms=job.ready_at_ms,
        release_accepted_at_ms=job.release_accepted_at_ms,
        released_at_ms=job.released_at_ms,
        closed_at_ms=job.closed_at_ms,
        covers_to_ms=job.covers_to_ms,
        exhausted_at_ms=job.exhausted_at_ms,
        retry_at_ms=job.retry_at_ms,
        release_reason=job.release_reason,
        exit_code=job.exit_code,
        first_cause=job.first_cause,
        posted_usd=format_usd(_due_microusd(job)),
    )


def quote_answer(quote: Quote) -> http_market.Quote:
    """What the market said to a quote."""
    market = quote.market
    assert market is not None, "a quote is shown once it is answered"
    gang = market.gang
    if gang is None:
        return http_market.Quote(id=quote.quote, waiting=_waiting(market.waiting) if market.waiting else None)
    return http_market.Quote(
        id=quote.quote,
        gpu=gang.model,
        nodes=tuple(
            http_market.QuotedNode(rank=one.rank, node=one.node, provider=one.provider, gpus=len(one.gpus))
            for one in gang.grants
        ),
        price_usd_per_gpu_hour=format_usd(gang.price_microusd_per_gpu_hour),
        domain=gang.domain,
    )


def bill_answer(job: Job, on_hold_microusd: int) -> http.Bill:
    """What a job owes, lease by lease."""
    return http.Bill(
        job=job.job,
        state=job.state,
        closed=job.state == "closed",
        lines=tuple(_bill_line(line) for line in job.bill),
        due_usd=format_usd(_due_microusd(job)),
        on_hold_usd=format_usd(on_hold_microusd),
    )


def checkpoints_answer(job: Job) -> http.CheckpointList:
    """What a job has committed, the newest first."""
    newest = tuple(reversed(job.checkpoints))
    ranks = sorted(member.rank for member in job.members)
    return http.CheckpointList(
        job=job.job,
        stored=tuple(
            http.StoredCheckpoint(step=step, ranks=stored, missing=tuple(rank for rank in ranks if rank not in stored))
            for step, stored in sorted(job.stored.items(), reverse=True)
        ),
        checkpoints=tuple(
            http.Checkpoint(
                step=one.step,
                generation=one.generation,
                committed_at_ms=one.at_ms,
                ranks=one.ranks,
                size_bytes=one.size_bytes,
                kept=place < CHECKPOINTS_KEPT,
            )
            for place, one in enumerate(newest)
        ),
    )


def balance_answer(account: AccountId, wallet: int, on_hold: int, pending: int, earned: int) -> http.Balance:
    """An account's money, from micro-dollars."""
    return http.Balance(
        account=account,
        wallet_usd=format_usd(wallet),
        on_hold_usd=format_usd(on_hold),
        pending_usd=format_usd(pending),
        earned_usd=format_usd(earned),
    )


def statement_answer(lines: Sequence[bytes]) -> http.Statement:
    """The movements of a statement, which are stored as they are shown."""
    return http.Statement(lines=tuple(msgspec.json.decode(line, type=http.StatementLine) for line in lines))


def offers_of(node: Node, presence: Presence) -> Iterator[http.Offer]:
    """What a node offers, one for each model that it has."""
    off = unsold(node, presence)
    for model, terms in sorted(node.terms.items()):
        if terms.paused:
            continue
        gpus = [gpu for gpu in node.gpus if gpu.model == model]
        yield http.Offer(
            node=node.node,
            provider=node.provider,
            gpu=model,
            memory_mib=min(gpu.memory_mib for gpu in gpus),
            price_usd_per_gpu_hour=format_usd(terms.ask_microusd_per_gpu_hour),
            free=sum(gpu.uuid not in off for gpu in gpus),
            total=len(gpus),
            place=node.place,
            state=presence.state,
            reliability_permille=presence.reliability_permille,
            tier=node.tier,
            runtime=node.runtime,
        )


def _waiting(waiting: Waiting, queue_position: int | None = None) -> http.JobWaiting:
    return http.JobWaiting(
        binding=waiting.binding,
        message=waiting.message,
        infeasible=waiting.infeasible,
        funnel=waiting.funnel,
        alternatives=tuple(
            http.JobAlternative(
                change=in_words(one),
                price_usd_per_gpu_hour=format_usd(one.price_microusd_per_gpu_hour),
                gpus=one.gpus,
                nodes=one.nodes,
                max_price_usd_per_gpu_hour=_usd_if_known(one.max_price_microusd_per_gpu_hour),
                interconnect=one.interconnect,
                dropped=one.dropped,
            )
            for one in waiting.alternatives
        ),
        queue_position=queue_position,
    )


def _member(member: Member) -> http.JobMember:
    return http.JobMember(
        lease=member.lease,
        rank=member.rank,
        node=member.node,
        provider=member.provider,
        gpus=member.gpus,
        price_usd_per_gpu_hour=format_usd(member.price_microusd_per_gpu_hour),
        state=member.state,
        address=member.address,
    )


def _bill_line(line: BillLine) -> http.LeaseBill:
    return http.LeaseBill(
        lease=line.lease,
        provider=line.provider,
        gpus=line.gpus,
        price_usd_per_gpu_hour=format_usd(line.price_microusd_per_gpu_hour),
        through_ms=line.through_ms,
        billable_ms=line.billable_ms,
        due_usd=format_usd(line.due_microusd),
        fee_usd=format_usd(line.fee_microusd),
    )


def _due_microusd(job: Job) -> int:
    return sum(line.due_microusd for line in job.bill)


def _usd_if_known(amount_microusd: int | None) -> str | None:
    return None if amount_microusd is None else format_usd(amount_microusd)
