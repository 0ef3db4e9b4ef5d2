"""What bid-intake remembers and how it answers.

    account   Absent ──OpenAccount──▶ Opened
    job       see `jobs`
    node      see `nodes`

Whoever has an account is answered in the log; about the others a person is told, through the dead letters.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from volt.contracts.bids import (
    BidAccepted,
    BidRejected,
    BidWithdrawn,
    ChangeBid,
    DrainNode,
    NodeDrainAccepted,
    NodeResumeAccepted,
    PlaceBid,
    ResumeNode,
    WithdrawBid,
)
from volt.contracts.errors import Reason, Refused
from volt.contracts.jobs import (
    AccountOpened,
    CommandRejected,
    JobAdmitted,
    JobRejected,
    JobReleaseAccepted,
    JobScaleAccepted,
    JobScaleRejected,
    OpenAccount,
    QuoteAdmitted,
    QuoteRejected,
    ReleaseJob,
    RequestJob,
    RequestQuote,
    ScaleJob,
)
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Answer, Asked, Command, Event
from volt.contracts.subjects import sender
from volt_bid_intake.jobs import Jobs, evolve_job, place_job, release_job, request_job, request_quote, scale_job
from volt_bid_intake.nodes import Nodes, change_bid, drain_node, evolve_node, place_bid, resume_node, withdraw_bid

KEY_SHA256_CHARS = 64


@dataclass
class State:
    """Everything answered so far."""

    accounts: dict[str, AccountOpened] = field(default_factory=dict)
    jobs: Jobs = field(default_factory=dict)
    nodes: Nodes = field(default_factory=Nodes)
    answered_seq: int = 0
    answered_ms: int = 0
    """Where the last command that was answered is on `COMMANDS`, and when it was stored."""


def decide(state: State, command: Command, asked: Asked) -> tuple[Event, ...]:
    """The answer to a command; empty if it was given before. Raises Refused if nobody can be answered."""
    if _came_before(state, asked):
        return ()
    return _answering(asked, _decide(state, command, asked))


def _came_before(state: State, asked: Asked) -> bool:
    """Commands are answered in their order, so one from before the last answer was answered, or nobody could be.

    Both have to say so: a stream that is made anew counts from 1 again, and a server's clock may be set back.
    """
    return asked.seq <= state.answered_seq and asked.stored_ms <= state.answered_ms


def _answering(asked: Asked, events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(replace(event, command_seq=asked.seq, command_ms=asked.stored_ms) for event in events)


def _decide(state: State, command: Command, asked: Asked) -> tuple[Event, ...]:
    if isinstance(command, OpenAccount):
        return _open_account(state, command, asked)
    account, _ = sender(asked.subject)
    if account not in state.accounts:
        message = f"there is no account {account}; open it first"
        raise Refused(Reason(code="unknown_account", message=message, field="account", seen=account))
    answer = _answer(state, command, asked)
    return refuse(state, answer, asked) if isinstance(answer, Reason) else answer


def refuse(state: State, reason: Reason, asked: Asked) -> tuple[Event, ...]:
    """The answer to what is no command, for an account that exists. Raises Refused if there is none to tell."""
    account, _ = sender(asked.subject)
    if account not in state.accounts:
        raise Refused(reason)
    if _came_before(state, asked):
        return ()
    refusal = CommandRejected(account=account, at_ms=asked.at_ms, command_subject=asked.subject, reason=reason)
    return _answering(asked, (refusal,))


def evolve(state: State, entry: Entry) -> None:
    """Remembers an answer; and of the market, what it made of a job."""
    if isinstance(entry.event, Answer):
        state.answered_seq = max(state.answered_seq, entry.event.command_seq)
        state.answered_ms = max(state.answered_ms, entry.event.command_ms)
    match entry.event:
        case AccountOpened(account=account) as opened:
            assert account not in state.accounts, f"account {account} opened twice"
            state.accounts[account] = opened
        case CommandRejected():
            pass  # That it was answered is all there is to remember.
        case (
            JobAdmitted()
            | JobRejected()
            | JobReleaseAccepted()
            | JobScaleAccepted()
            | JobScaleRejected()
            | QuoteAdmitted()
            | QuoteRejected() as event
        ):
            evolve_job(state.jobs, event)
        case MarketCleared(gangs=gangs):
            for gang in gangs:
                place_job(state.jobs, gang)
        case BidAccepted() | BidRejected() | BidWithdrawn() | NodeDrainAccepted() | NodeResumeAccepted() as event:
            evolve_node(state.nodes, event)
        case _:
            raise AssertionError(f"bid-intake does not read {type(entry.event).__name__}")


def _answer(state: State, command: Command, asked: Asked) -> tuple[Event, ...] | Reason:
    match command:
        case RequestJob():
            return request_job(state.jobs, command, asked)
        case RequestQuote():
            return request_quote(state.jobs, command, asked)
        case ReleaseJob():
            return release_job(state.jobs, command, asked)
        case ScaleJob():
            return scale_job(state.jobs, command, asked)
        case PlaceBid():
            return place_bid(state.nodes, command, asked)
        case ChangeBid():
            return change_bid(state.nodes, command, asked)
        case WithdrawBid():
            return withdraw_bid(state.nodes, command, asked)
        case DrainNode():
            return drain_node(state.nodes, command, asked)
        case ResumeNode():
            return resume_node(state.nodes, command, asked)
        case _:
            raise AssertionError(f"bid-intake does not take {type(command).__name__}")


def _open_account(state: State, command: OpenAccount, asked: Asked) -> tuple[Event, ...]:
    known = state.accounts.get(command.account)
    if known is not None and (known.request_id, known.key_sha256) == (command.request_id, command.key_sha256):
        return ()
    if known is not None:
        message = f"account {command.account} exists; choose another name"
        reason = Reason(code="account_exists", message=message, field="account", seen=command.account)
        return refuse(state, reason, asked)
    if len(command.key_sha256) != KEY_SHA256_CHARS or not set(command.key_sha256) <= set("0123456789abcdef"):
        message = f"key_sha256 is no SHA-256; send its {KEY_SHA256_CHARS} hexadecimal digits in lower case"
        raise Refused(Reason(code="invalid_key_sha256", message=message, field="key_sha256"))
    return (
        AccountOpened(
            account=command.account, at_ms=asked.at_ms, request_id=command.request_id, key_sha256=command.key_sha256
        ),
    )
