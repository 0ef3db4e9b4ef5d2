"""What nodes offer, and the answers about it.

    Absent ──PlaceBid──▶ Offered ◀──PlaceBid / WithdrawBid──▶ Withdrawn

A node belongs to the account that first offered it, and a GPU to the node that offers it now. Requests are answered
once per account and node, whatever their order: one that was answered does not count again behind a later one.
"""

from dataclasses import dataclass, field

from volt.contracts.bids import BidAccepted, BidEvent, BidRejected, BidWithdrawn, PlaceBid, WithdrawBid
from volt.contracts.errors import Reason
from volt.contracts.ids import digest
from volt.contracts.messages import Asked, Event, encode
from volt_bid_intake.answers import Answers, reused
from volt_bid_intake.rules import bid_problem, canonical_gpus

_WITHDRAWAL = "withdrawal"
"""In place of the digest of a request to withdraw: all under one id are alike."""


@dataclass(frozen=True)
class Offered:
    """It is on the market with these GPUs."""

    account: str
    uuids: tuple[str, ...]


@dataclass(frozen=True)
class Withdrawn:
    """It offers nothing."""

    account: str


Node = Offered | Withdrawn


@dataclass
class Nodes:
    """Every node that was ever offered, which of them offers each GPU, and what was answered to whom."""

    by_id: dict[str, Node] = field(default_factory=dict)
    by_gpu: dict[str, str] = field(default_factory=dict)
    answers: dict[tuple[str, str], Answers] = field(default_factory=dict)
    """By account and node: a stranger may have been answered too."""


def evolve_node(nodes: Nodes, event: BidAccepted | BidRejected | BidWithdrawn) -> None:
    """Remembers an answer about a node."""
    match nodes.by_id.get(event.node), event:
        case None, BidAccepted(gpus=gpus):
            _offer(nodes, event, tuple(gpu.uuid for gpu in gpus))
            _remember(nodes, event, event.request_digest)
        case Offered(account) | Withdrawn(account), BidAccepted(gpus=gpus) if account == event.account:
            _take_back(nodes, event.node)
            _offer(nodes, event, tuple(gpu.uuid for gpu in gpus))
            _remember(nodes, event, event.request_digest)
        case Offered(account) | Withdrawn(account), BidWithdrawn() if account == event.account:
            _take_back(nodes, event.node)
            nodes.by_id[event.node] = Withdrawn(account)
            _remember(nodes, event, _WITHDRAWAL)
        case _, BidRejected():
            _remember(nodes, event, event.request_digest)
        case node, _:
            raise AssertionError(f"{type(event).__name__} of {event.account} about {event.node}, which is {node}")


def place_bid(nodes: Nodes, command: PlaceBid, asked: Asked) -> tuple[Event, ...]:
    """Accepts a bid, or says what is wrong with it."""
    request_digest = digest(encode(command))
    answers = nodes.answers.get((command.account, command.node), Answers())
    if answers.has(command.request_id, request_digest):
        return ()
    problem = reused(command.request_id) if answers.knows(command.request_id) else _problem(nodes, command)
    if problem is not None:
        return (
            BidRejected(
                account=command.account,
                node=command.node,
                request_id=command.request_id,
                at_ms=asked.at_ms,
                request_digest=request_digest,
                reason=problem,
            ),
        )
    return (
        BidAccepted(
            account=command.account,
            node=command.node,
            request_id=command.request_id,
            at_ms=asked.at_ms,
            request_digest=request_digest,
            gpus=canonical_gpus(command),
            ask_microusd_per_gpu_hour=command.ask_microusd_per_gpu_hour,
            place=command.place,
        ),
    )


def withdraw_bid(nodes: Nodes, command: WithdrawBid, asked: Asked) -> tuple[Event, ...] | Reason:
    """Withdraws a node; or says why there is none to withdraw.

    One that offers nothing is withdrawn again: unless the answer is remembered, the same request coming late would
    withdraw a later offer.
    """
    known = nodes.by_id.get(command.node)
    if known is None or known.account != command.account:
        message = f"there is no node {command.node} of yours; `volt offers` lists them"
        return Reason(code="not_found", message=message, field="node", seen=command.node)
    answers = nodes.answers[command.account, command.node]
    if answers.has(command.request_id, _WITHDRAWAL):
        return ()
    if answers.knows(command.request_id):
        return reused(command.request_id)
    return (BidWithdrawn(account=command.account, node=command.node, request_id=command.request_id, at_ms=asked.at_ms),)


def _problem(nodes: Nodes, command: PlaceBid) -> Reason | None:
    known = nodes.by_id.get(command.node)
    if known is not None and known.account != command.account:
        message = f"node {command.node} belongs to another account; give yours another name"
        return Reason(code="node_taken", message=message, field="node", seen=command.node)
    if (problem := bid_problem(command)) is not None:
        return problem
    for gpu in command.gpus:
        if nodes.by_gpu.get(gpu.uuid, command.node) != command.node:
            message = f"GPU {gpu.uuid} is offered by node {nodes.by_gpu[gpu.uuid]}; withdraw it there first"
            return Reason(code="gpu_taken", message=message, field="gpus.uuid", seen=gpu.uuid)
    return None


def _offer(nodes: Nodes, event: BidAccepted, uuids: tuple[str, ...]) -> None:
    nodes.by_id[event.node] = Offered(event.account, uuids)
    nodes.by_gpu.update(dict.fromkeys(uuids, event.node))


def _take_back(nodes: Nodes, node: str) -> None:
    match nodes.by_id[node]:
        case Offered(uuids=uuids):
            for uuid in uuids:
                del nodes.by_gpu[uuid]
        case Withdrawn():
            pass


def _remember(nodes: Nodes, event: BidEvent, request_digest: str) -> None:
    key = (event.account, event.node)
    nodes.answers[key] = nodes.answers.get(key, Answers()).with_one(event.request_id, request_digest)
