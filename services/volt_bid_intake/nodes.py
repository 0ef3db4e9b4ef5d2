"""What nodes offer, and the answers about it.

    Absent ──PlaceBid──▶ Offered ◀──PlaceBid, ChangeBid (offer) / WithdrawBid──▶ Withdrawn
                          └─ChangeBid─▶
    any but Absent ──DrainNode, ResumeNode──▶ itself: whoever moves leases knows which node is drained

A node belongs to the account that first offered it, and a GPU to the node that offers it now. Requests are answered
once per account and node, whatever their order: one that was answered does not count again behind a later one.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from volt.contracts.bids import (
    DRAIN_REASON_CHARS_MAX,
    DRAIN_SECONDS_MAX,
    BidAccepted,
    BidEvent,
    BidRejected,
    BidWithdrawn,
    ChangeBid,
    DrainNode,
    Gpu,
    ModelTerms,
    NodeDrainAccepted,
    NodeResumeAccepted,
    PlaceBid,
    ResumeNode,
    WithdrawBid,
)
from volt.contracts.errors import Reason, Refused
from volt.contracts.ids import digest
from volt.contracts.messages import Asked, Event, encode
from volt.contracts.units import MS_PER_SECOND
from volt_bid_intake.answers import Answers, reused
from volt_bid_intake.checks import check_at_most, check_between
from volt_bid_intake.terms import bid_problem, canonical_gpus, changed_terms, models_named

_WITHDRAWAL = "withdrawal"
"""In place of the digest of a request to withdraw: all under one id are alike."""
_RESUMPTION = "resumption"
"""The same of a request to resume."""

NodeAnswer = BidAccepted | BidRejected | BidWithdrawn | NodeDrainAccepted | NodeResumeAccepted
"""What bid-intake says of a node."""


@dataclass(frozen=True)
class Offered:
    """It is on the market, as its standing bid says."""

    standing: BidAccepted


@dataclass(frozen=True)
class Withdrawn:
    """It offers nothing; this bid was the last."""

    standing: BidAccepted


Node = Offered | Withdrawn


@dataclass
class Nodes:
    """Every node that was ever offered, which of them offers each GPU, and what was answered to whom."""

    by_id: dict[str, Node] = field(default_factory=dict)
    by_gpu: dict[str, str] = field(default_factory=dict)
    answers: dict[tuple[str, str], Answers] = field(default_factory=dict)
    """By account and node: a stranger may have been answered too."""


def evolve_node(nodes: Nodes, event: NodeAnswer) -> None:
    """Remembers an answer about a node."""
    match nodes.by_id.get(event.node), event:
        case None, BidAccepted():
            _offer(nodes, event)
            _remember(nodes, event, event.request_digest)
        case Offered(bid) | Withdrawn(bid), BidAccepted() if bid.account == event.account:
            _take_back(nodes, event.node)
            _offer(nodes, event)
            _remember(nodes, event, event.request_digest)
        case Offered(bid) | Withdrawn(bid), BidWithdrawn() if bid.account == event.account:
            _take_back(nodes, event.node)
            nodes.by_id[event.node] = Withdrawn(bid)
            _remember(nodes, event, _WITHDRAWAL)
        case Offered(bid) | Withdrawn(bid), NodeDrainAccepted() if bid.account == event.account:
            _remember(nodes, event, event.request_digest)
        case Offered(bid) | Withdrawn(bid), NodeResumeAccepted() if bid.account == event.account:
            _remember(nodes, event, _RESUMPTION)
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
        return (_rejected(command, asked, problem),)
    gpus = canonical_gpus(command)
    return (
        BidAccepted(
            account=command.account,
            node=command.node,
            request_id=command.request_id,
            at_ms=asked.at_ms,
            request_digest=request_digest,
            gpus=gpus,
            terms=command.terms,
            changed=_still_changed(nodes.by_id.get(command.node), command),
            place=command.place,
            tier=command.tier,
            runtime=command.runtime,
        ),
    )


def change_bid(nodes: Nodes, command: ChangeBid, asked: Asked) -> tuple[Event, ...] | Reason:
    """Changes the terms of an offered node, or says what is wrong with that."""
    known = nodes.by_id.get(command.node)
    if known is None or known.standing.account != command.account:
        return _not_yours(command.node)
    answers = nodes.answers[command.account, command.node]
    if answers.has(command.request_id, digest(encode(command))):
        return ()
    if answers.knows(command.request_id):
        return (_rejected(command, asked, reused(command.request_id)),)
    try:
        changed = _changed(nodes, known, command)
    except Refused as refused:
        return (_rejected(command, asked, refused.reason),)
    accepted = replace(
        known.standing,
        request_id=command.request_id,
        at_ms=asked.at_ms,
        request_digest=digest(encode(command)),
        changed=changed,
    )
    return (accepted,)


def withdraw_bid(nodes: Nodes, command: WithdrawBid, asked: Asked) -> tuple[Event, ...] | Reason:
    """Withdraws a node; or says why there is none to withdraw.

    One that offers nothing is withdrawn again: unless the answer is remembered, the same request coming late would
    withdraw a later offer.
    """
    answer = _answer(nodes, command, _WITHDRAWAL)
    if answer is not None:
        return answer
    return (BidWithdrawn(account=command.account, node=command.node, request_id=command.request_id, at_ms=asked.at_ms),)


def drain_node(nodes: Nodes, command: DrainNode, asked: Asked) -> tuple[Event, ...] | Reason:
    """Lets a node be emptied, or says what is wrong with that."""
    request_digest = digest(encode(command))
    answer = _answer(nodes, command, request_digest)
    if answer is not None:
        return answer
    try:
        check_at_most("reason", "reason_too_long", len(command.reason), DRAIN_REASON_CHARS_MAX, "characters")
        check_between("deadline_seconds", "deadline_out_of_range", command.deadline_seconds, 0, DRAIN_SECONDS_MAX)
    except Refused as refused:
        return refused.reason
    return (
        NodeDrainAccepted(
            account=command.account,
            node=command.node,
            request_id=command.request_id,
            at_ms=asked.at_ms,
            request_digest=request_digest,
            reason=command.reason,
            deadline_ms=asked.at_ms + command.deadline_seconds * MS_PER_SECOND,
        ),
    )


def resume_node(nodes: Nodes, command: ResumeNode, asked: Asked) -> tuple[Event, ...] | Reason:
    """Ends the draining of a node. One that is not drained is resumed too: the same request may come late."""
    answer = _answer(nodes, command, _RESUMPTION)
    if answer is not None:
        return answer
    resumed = NodeResumeAccepted(
        account=command.account, node=command.node, request_id=command.request_id, at_ms=asked.at_ms
    )
    return (resumed,)


def _answer(
    nodes: Nodes, command: WithdrawBid | DrainNode | ResumeNode, request_digest: str
) -> tuple[Event, ...] | Reason | None:
    """The answer to a command about a node that is another's, or that was answered before; None to any other."""
    known = nodes.by_id.get(command.node)
    if known is None or known.standing.account != command.account:
        return _not_yours(command.node)
    answers = nodes.answers[command.account, command.node]
    if answers.has(command.request_id, request_digest):
        return ()
    return reused(command.request_id) if answers.knows(command.request_id) else None


def _problem(nodes: Nodes, command: PlaceBid) -> Reason | None:
    known = nodes.by_id.get(command.node)
    if known is not None and known.standing.account != command.account:
        message = f"node {command.node} belongs to another account; give yours another name"
        return Reason(code="node_taken", message=message, field="node", seen=command.node)
    return bid_problem(command) or _taken(nodes, command.node, command.gpus)


def _taken(nodes: Nodes, node: str, gpus: tuple[Gpu, ...]) -> Reason | None:
    """The refusal of GPUs one of which another node offers."""
    for gpu in gpus:
        if nodes.by_gpu.get(gpu.uuid, node) != node:
            message = f"GPU {gpu.uuid} is offered by node {nodes.by_gpu[gpu.uuid]}; withdraw it there first"
            return Reason(code="gpu_taken", message=message, field="gpus.uuid", seen=gpu.uuid)
    return None


def _still_changed(known: Node | None, command: PlaceBid) -> tuple[ModelTerms, ...]:
    """What was changed since the last bid stands, unless the terms that a new one declares are others."""
    if known is None or known.standing.terms != command.terms:
        return ()
    models = {gpu.model for gpu in canonical_gpus(command)}
    return tuple(one for one in known.standing.changed if one.model in models)


def _changed(nodes: Nodes, known: Node, command: ChangeBid) -> tuple[ModelTerms, ...]:
    """The changed terms of each model. Raises Refused."""
    standing = known.standing
    if isinstance(known, Withdrawn):
        if not command.offer:
            message = f"node {command.node} is withdrawn; `volt bid place {command.node}` offers it again"
            raise Refused(Reason(code="node_withdrawn", message=message, field="node", seen=command.node))
        if (taken := _taken(nodes, command.node, standing.gpus)) is not None:
            raise Refused(taken)
    terms = {one.model: one.terms for one in standing.changed}
    for model in models_named(command, standing):
        count = sum(gpu.model == model for gpu in standing.gpus)
        terms[model] = changed_terms(standing.terms_of(model), command, count)
    return tuple(ModelTerms(model=model, terms=terms[model]) for model in sorted(terms))


def _rejected(command: PlaceBid | ChangeBid, asked: Asked, reason: Reason) -> BidRejected:
    return BidRejected(
        account=command.account,
        node=command.node,
        request_id=command.request_id,
        at_ms=asked.at_ms,
        request_digest=digest(encode(command)),
        reason=reason,
    )


def _not_yours(node: str) -> Reason:
    message = f"there is no node {node} of yours; `volt bid list` shows them"
    return Reason(code="not_found", message=message, field="node", seen=node)


def _offer(nodes: Nodes, event: BidAccepted) -> None:
    nodes.by_id[event.node] = Offered(event)
    nodes.by_gpu.update({gpu.uuid: event.node for gpu in event.gpus})


def _take_back(nodes: Nodes, node: str) -> None:
    match nodes.by_id[node]:
        case Offered(standing=standing):
            for gpu in standing.gpus:
                del nodes.by_gpu[gpu.uuid]
        case Withdrawn():
            pass


def _remember(nodes: Nodes, event: BidEvent, request_digest: str) -> None:
    key = (event.account, event.node)
    nodes.answers[key] = nodes.answers.get(key, Answers()).with_one(event.request_id, request_digest)
