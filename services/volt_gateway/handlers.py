"""The routes. Each turns a request into a command or a look at the views, for the account that its key belongs to."""

import asyncio
import uuid

from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery
from litestar.types import ASGIApp

from volt.contracts import http, http_market
from volt.contracts.bids import ChangeBid, DrainNode, ResumeNode, WithdrawBid
from volt.contracts.errors import Unauthorized
from volt.contracts.ids import job_id, quote_id
from volt.contracts.jobs import ScaleJob
from volt.contracts.ledger import earned, hold, pending, wallet
from volt_gateway import present
from volt_gateway.entities import on_hold, statement_ranking
from volt_gateway.gateway import Gateway
from volt_gateway.listing import live_offers, newest_jobs
from volt_gateway.market import bids_of, bids_of_node, market_of, node_of, nodes_of, queue_position
from volt_gateway.output import job_output, job_story
from volt_gateway.reliability import reliability_of
from volt_gateway.requests import (
    change_command,
    drain_command,
    job_command,
    quote_command,
    read_account,
    read_bid_change,
    read_drain_request,
    read_flag,
    read_job_request,
    read_model,
    read_number,
    read_scale_request,
    request_id,
    resume_command,
    withdraw_command,
)
from volt_gateway.streams import EventStream

BODY_SECONDS_MAX = 20.0
LISTED_JOBS = 50
SEQ_MAX = 2**53
"""Scores of rankings are doubles; the log is not that long."""

HttpRequest = Request[None, None, State]


async def authenticate(request: HttpRequest, gateway: NamedDependency[Gateway]) -> str:
    """The account that the request's key belongs to. Raises Unauthorized, Unavailable."""
    scheme, _, api_key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not api_key.strip():
        raise Unauthorized("send the API key as `Authorization: Bearer <key>`")
    return await gateway.account_of(api_key.strip())


@get(http.HEALTH_PATH)
async def health(gateway: NamedDependency[Gateway]) -> Response[http.Health]:
    """200 only while bus and views are live."""
    found = await gateway.health()
    return Response(found, status_code=200 if found.status == "ok" else 503)


@post(http.JOBS_PATH)
async def create_job(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str]
) -> Response[http.Job]:
    """201 with the job, or 202 when intake has not answered in time: the same request again asks for its answer."""
    requested = _requested(request)
    job = await gateway.submit(job_command(account, requested, read_job_request(await _body(request))))
    if job is None:
        unanswered = http.Job(id=job_id(account, requested), request_id=requested, state="requested")
        return Response(unanswered, status_code=202)
    return Response(present.job_answer(job), status_code=201)


@get(http.JOBS_PATH)
async def list_jobs(
    gateway: NamedDependency[Gateway],
    account: NamedDependency[str],
    limit: FromQuery[str | None] = None,
    before: FromQuery[str | None] = None,
) -> http.JobList:
    """The account's jobs, the newest first, a page at a time."""
    count = read_number("limit", limit, http.PAGE_JOBS_MAX) or LISTED_JOBS
    jobs = await newest_jobs(gateway.views, account, count, read_number("before", before, SEQ_MAX))
    next_before = jobs[-1].seq if len(jobs) == count else None
    return http.JobList(jobs=tuple(present.job_answer(job) for job in jobs), next_before=next_before)


@get(http.JOBS_PATH + "/{job:str}")
async def get_job(gateway: NamedDependency[Gateway], account: NamedDependency[str], job: FromPath[str]) -> http.Job:
    """The job as it is now."""
    known = await gateway.job(account, job)
    return present.job_answer(known, await queue_position(gateway.views, known))


@delete(http.JOBS_PATH + "/{job:str}", status_code=200)
async def release_job(
    gateway: NamedDependency[Gateway], account: NamedDependency[str], job: FromPath[str]
) -> Response[http.Job]:
    """200 with the job once its release is accepted, in whatever state it is; 202 when that has not come in time."""
    released = await gateway.release(account, job)
    if released is None:
        return Response(http.Job(id=job, request_id="", state="requested"), status_code=202)
    return Response(present.job_answer(released), status_code=200)


@get(http.JOBS_PATH + "/{job:str}/bill")
async def get_bill(gateway: NamedDependency[Gateway], account: NamedDependency[str], job: FromPath[str]) -> http.Bill:
    """What the job owes so far."""
    known = await gateway.job(account, job)
    (on_hold_microusd,) = await gateway.views.balances_microusd([hold(job)])
    return present.bill_answer(known, on_hold_microusd)


@get(http.JOBS_PATH + "/{job:str}/checkpoints")
async def get_checkpoints(
    gateway: NamedDependency[Gateway], account: NamedDependency[str], job: FromPath[str]
) -> http.CheckpointList:
    """What the job has committed."""
    return present.checkpoints_answer(await gateway.job(account, job))


@get(http.JOBS_PATH + "/{job:str}/logs")
async def stream_logs(
    request: HttpRequest,
    gateway: NamedDependency[Gateway],
    account: NamedDependency[str],
    job: FromPath[str],
    follow: FromQuery[str | None] = None,
) -> ASGIApp:
    """Output of the workload, from the beginning, as server-sent events."""
    known = await gateway.job(account, job)
    frames = job_output(gateway, known, _last_event(request), follow=read_flag("follow", follow, default=True))
    return EventStream(frames, gateway.stream_of(account), gateway.stopping)


@get(http.JOBS_PATH + "/{job:str}/events")
async def stream_events(
    request: HttpRequest,
    gateway: NamedDependency[Gateway],
    account: NamedDependency[str],
    job: FromPath[str],
    follow: FromQuery[str | None] = None,
) -> ASGIApp:
    """What happened to the job, from the beginning, as server-sent events."""
    known = await gateway.job(account, job)
    frames = job_story(gateway, known, _last_event(request), follow=read_flag("follow", follow, default=True))
    return EventStream(frames, gateway.stream_of(account), gateway.stopping)


@get(http.OFFERS_PATH)
async def list_offers(
    gateway: NamedDependency[Gateway],
    account: NamedDependency[str],  # noqa: ARG001  # asked for, so that only who has an account sees the market
    gpu: FromQuery[str | None] = None,
    region: FromQuery[str | None] = None,
) -> http.OfferList:
    """Live supply, the cheapest first."""
    return await live_offers(gateway.views, None if gpu is None else read_model(gpu), region)


@get(http.BALANCE_PATH)
async def get_balance(gateway: NamedDependency[Gateway], account: NamedDependency[str]) -> http.Balance:
    """The account's money."""
    names = [wallet(account), on_hold(account), pending(account), earned(account)]
    return present.balance_answer(account, *await gateway.views.balances_microusd(names))


@get(http.STATEMENT_PATH)
async def get_statement(gateway: NamedDependency[Gateway], account: NamedDependency[str]) -> http.Statement:
    """The last movements of the account's money."""
    return present.statement_answer(await gateway.views.newest(statement_ranking(account), http.STATEMENT_LINES_MAX))


@post(http.JOBS_PATH + "/{job:str}/scale", status_code=200)
async def scale_job(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str], job: FromPath[str]
) -> Response[http.Job]:
    """200 with the job once the wish for another size is accepted; 202 when that has not come in time."""
    wanted = read_scale_request(await _body(request)).count
    scaled = await gateway.scale(ScaleJob(account=account, request_id=_requested(request), job=job, count=wanted))
    if scaled is None:
        return Response(http.Job(id=job, request_id="", state="requested"), status_code=202)
    return Response(present.job_answer(scaled), status_code=200)


@post(http_market.QUOTES_PATH)
async def ask_quote(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str]
) -> Response[http_market.Quote]:
    """201 with what a job request would get now; 202 when the market has not answered in time."""
    requested = _requested(request)
    quote = await gateway.quote(quote_command(account, requested, read_job_request(await _body(request))))
    if quote is None:
        return Response(http_market.Quote(id=quote_id(account, requested)), status_code=202)
    return Response(present.quote_answer(quote), status_code=201)


@get(http_market.BIDS_PATH)
async def list_bids(gateway: NamedDependency[Gateway], account: NamedDependency[str]) -> http_market.BidList:
    """What the account's nodes offer, withdrawn ones too."""
    return await bids_of(gateway.views, account)


@post(http_market.BIDS_PATH + "/{node:str}", status_code=200)
async def change_bid(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str], node: FromPath[str]
) -> Response[http_market.BidList]:
    """200 with the node's bids once they are changed; 202 when that has not come in time."""
    body = read_bid_change(await _body(request))
    return await _bids(gateway, change_command(account, node, _requested(request), body))


@delete(http_market.BIDS_PATH + "/{node:str}", status_code=200)
async def withdraw_bid(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str], node: FromPath[str]
) -> Response[http_market.BidList]:
    """200 with the node's bids once they are withdrawn; 202 when that has not come in time."""
    return await _bids(gateway, withdraw_command(account, node, _requested(request)))


@get(http_market.NODES_PATH)
async def list_nodes(gateway: NamedDependency[Gateway], account: NamedDependency[str]) -> http_market.NodeList:
    """The account's nodes: whether they are alive, what is leased, which are drained."""
    return await nodes_of(gateway.views, account)


@post(http_market.NODES_PATH + "/{node:str}/drain", status_code=200)
async def drain_node(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str], node: FromPath[str]
) -> Response[http_market.NodeList]:
    """200 with the node once it is drained; 202 when that has not come in time."""
    body = read_drain_request(await _body(request))
    return await _nodes(gateway, drain_command(account, node, _requested(request), body))


@post(http_market.NODES_PATH + "/{node:str}/resume", status_code=200)
async def resume_node(
    request: HttpRequest, gateway: NamedDependency[Gateway], account: NamedDependency[str], node: FromPath[str]
) -> Response[http_market.NodeList]:
    """200 with the node once it is drained no more; 202 when that has not come in time."""
    return await _nodes(gateway, resume_command(account, node, _requested(request)))


@get(http_market.MARKET_PATH + "/{gpu:str}")
async def get_market(
    gateway: NamedDependency[Gateway],
    account: NamedDependency[str],  # noqa: ARG001  # asked for, so that only who has an account sees the market
    gpu: FromPath[str],
) -> http_market.Market:
    """The market of one model: best ask, depth and prices."""
    return await market_of(gateway.views, read_model(gpu))


@get(http_market.RELIABILITY_PATH)
async def get_reliability(
    gateway: NamedDependency[Gateway], account: NamedDependency[str], provider: FromQuery[str | None] = None
) -> http_market.ProviderReliability:
    """How far a provider's nodes can be relied on, and why; the account's own if none is named."""
    return await reliability_of(gateway.views, account if provider is None else read_account(provider))


ROUTES = [
    get_reliability,
    scale_job,
    ask_quote,
    list_bids,
    change_bid,
    withdraw_bid,
    list_nodes,
    drain_node,
    resume_node,
    get_market,
    health,
    create_job,
    list_jobs,
    get_job,
    release_job,
    get_bill,
    get_checkpoints,
    stream_logs,
    stream_events,
    list_offers,
    get_balance,
    get_statement,
]


def _requested(request: HttpRequest) -> str:
    """The id of the request, its sender's or a fresh one. Raises Refused."""
    return request_id(request.headers.get(http.IDEMPOTENCY_HEADER, uuid.uuid4().hex))


async def _bids(gateway: Gateway, command: ChangeBid | WithdrawBid) -> Response[http_market.BidList]:
    node = await gateway.change_node(command)
    if node is None:
        return Response(http_market.BidList(bids=()), status_code=202)
    return Response(http_market.BidList(bids=tuple(await bids_of_node(gateway.views, node))), status_code=200)


async def _nodes(gateway: Gateway, command: DrainNode | ResumeNode) -> Response[http_market.NodeList]:
    node = await gateway.change_node(command)
    if node is None:
        return Response(http_market.NodeList(nodes=()), status_code=202)
    return Response(http_market.NodeList(nodes=(await node_of(gateway.views, node),)), status_code=200)


async def _body(request: HttpRequest) -> bytes:
    """The body, whose size Litestar limits. Raises HTTPException 408 when it does not arrive."""
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.body()
    except TimeoutError as error:
        raise HTTPException(status_code=408, detail=f"the body did not arrive in {BODY_SECONDS_MAX:.0f} s") from error


def _last_event(request: HttpRequest) -> int:
    """The place in the stream that the client has seen already."""
    return read_number(http.LAST_EVENT_HEADER, request.headers.get(http.LAST_EVENT_HEADER), SEQ_MAX) or 0
