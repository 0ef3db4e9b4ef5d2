"""Bid-intake as the runtime runs it. Nothing follows from its state but the answers to commands."""

from volt.contracts.bids import ChangeBid, DrainNode, PlaceBid, ResumeNode, WithdrawBid
from volt.contracts.jobs import OpenAccount, ReleaseJob, RequestJob, RequestQuote, ScaleJob
from volt.contracts.messages import Event
from volt.contracts.subjects import ALL_ACCOUNTS, ALL_BIDS, ALL_JOBS, LOG_MARKET
from volt.runtime.engine import Definition
from volt_bid_intake.domain import State, decide, evolve, refuse


def effects(_state: State, _at_ms: int) -> tuple[Event, ...]:
    """None: every answer is given when the command is."""
    return ()


DEFINITION = Definition(
    name="bid-intake",
    reads=(ALL_ACCOUNTS, ALL_JOBS, ALL_BIDS, LOG_MARKET),
    initial=State,
    evolve=evolve,
    effects=effects,
    commands=(
        OpenAccount,
        RequestJob,
        RequestQuote,
        ReleaseJob,
        ScaleJob,
        PlaceBid,
        ChangeBid,
        WithdrawBid,
        DrainNode,
        ResumeNode,
    ),
    decide=decide,
    refuse=refuse,
)
