"""A job goes from state to state as drawn and not otherwise; the books refuse what may not be."""

import pytest

from tests.unit.billing.builders import (
    BUYER,
    DOLLAR,
    JOB,
    START_MS,
    World,
    admitted,
    ended,
    forming,
    gang,
    generation,
    generation_ended,
    joined,
    lost,
    opened,
    ready,
    release_accepted,
    released,
    running,
    started,
    wanted,
)
from volt.contracts.ledger import (
    FEE,
    AccountCredited,
    ChargesPosted,
    FundsExhausted,
    FundsLow,
    HoldAdjusted,
    JobClosed,
    JobFunded,
    JobUnfunded,
    LedgerEvent,
    MembersFunded,
    Transfer,
    hold,
    wallet,
)
from volt.contracts.messages import Event
from volt_billing.states import State

MONEY: dict[str, LedgerEvent] = {
    "JobFunded": JobFunded(account=BUYER, at_ms=START_MS, job=JOB, cap_microusd_per_gpu_hour=1),
    "JobUnfunded": JobUnfunded(account=BUYER, at_ms=START_MS, job=JOB, needed_microusd=1, balance_microusd=0),
    "MembersFunded": MembersFunded(
        account=BUYER, at_ms=START_MS, job=JOB, generation=1, attempts=(), cap_microusd_per_gpu_hour=1
    ),
    "HoldAdjusted": HoldAdjusted(account=BUYER, at_ms=START_MS, job=JOB, covers_to_ms=0),
    "FundsLow": FundsLow(account=BUYER, at_ms=START_MS, job=JOB, exhausted_at_ms=START_MS),
    "FundsExhausted": FundsExhausted(account=BUYER, at_ms=START_MS, job=JOB, exhausted_at_ms=START_MS),
    "ChargesPosted": ChargesPosted(account=BUYER, at_ms=START_MS, job=JOB, lines=()),
    "JobClosed": JobClosed(account=BUYER, at_ms=START_MS, job=JOB, lines=()),
}
WAYS: dict[str, list[str | Event]] = {
    "Requested": [],
    "Held": ["JobFunded"],
    "Unfunded": ["JobUnfunded"],
    "Dropped": [release_accepted(START_MS)],
    "Metered": ["JobFunded", gang("a", price=1)],
    "Low": ["JobFunded", gang("a", price=1), "FundsLow"],
    "Closing": ["JobFunded", gang("a", price=1), release_accepted(START_MS)],
    "Closed": [release_accepted(START_MS), "JobClosed"],
}
"""How a job comes into each state."""
TABLE: dict[str, dict[str, str]] = {
    "Requested": {"JobFunded": "Held", "JobUnfunded": "Unfunded"},
    "Held": {},
    "Unfunded": {},
    "Dropped": {"JobFunded": "Dropped", "JobUnfunded": "Unfunded", "JobClosed": "Closed"},
    "Metered": {
        "HoldAdjusted": "Metered",
        "FundsLow": "Low",
        "MembersFunded": "Metered",
        "ChargesPosted": "Metered",
    },
    "Low": {
        "HoldAdjusted": "Metered",
        "FundsLow": "Low",
        "MembersFunded": "Low",
        "ChargesPosted": "Low",
        "FundsExhausted": "Closing",
    },
    "Closing": {
        "HoldAdjusted": "Closing",
        "FundsLow": "Closing",
        "MembersFunded": "Closing",
        "ChargesPosted": "Closing",
        "FundsExhausted": "Closing",
        "JobClosed": "Closed",
    },
    "Closed": {},
}
OTHERS: list[Event] = [
    release_accepted(START_MS),
    released(1, at_ms=START_MS),
    gang("a", price=1),
    *generation(1, "a", ready_ms=START_MS),
    forming(2, "b", at_ms=START_MS),
    wanted(2, 1, at_ms=START_MS),
    joined(3, "z", at_ms=START_MS),
    started(3, "z", at_ms=START_MS),
    ready(3, at_ms=START_MS),
    ended(3, "z", 0, at_ms=START_MS),
    lost(3, "z", at_ms=START_MS),
    generation_ended(4, "z", at_ms=START_MS),
    admitted(),
]


def world_in(state: str) -> World:
    """A world whose one job is in this state, and where billing does not act."""
    world = World()
    world.append(opened(), admitted(), *(MONEY[one] if isinstance(one, str) else one for one in WAYS[state]))
    world.read()
    assert name_of(world.state) == state
    return world


def name_of(state: State) -> str:
    return type(state.jobs[JOB]).__name__


@pytest.mark.parametrize("event", MONEY)
@pytest.mark.parametrize("state", WAYS)
def test_the_ledger_moves_a_job_as_the_table_says_and_stops_at_anything_else(state: str, event: str) -> None:
    world = world_in(state)
    world.append(MONEY[event])
    if event in TABLE[state]:
        world.read()
        assert name_of(world.state) == TABLE[state][event]
    else:
        with pytest.raises(AssertionError, match=event):
            world.read()


@pytest.mark.parametrize("state", WAYS)
def test_what_others_say_is_taken_in_every_state(state: str) -> None:
    for event in OTHERS:
        world = world_in(state)
        world.append(event, event)
        world.read()
        unmoved = state in ("Unfunded", "Dropped", "Closed")
        assert not unmoved or name_of(world.state) == state


def test_an_unknown_job_is_nobodys() -> None:
    world = World()
    world.append(*OTHERS[:-1])
    world.read()
    assert world.state.jobs == {}


def moving(*transfers: Transfer) -> HoldAdjusted:
    return HoldAdjusted(account=BUYER, at_ms=START_MS, job=JOB, covers_to_ms=0, transfers=transfers)


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(id="x", debit=wallet(BUYER), credit=hold(JOB), amount_microusd=0),
        Transfer(id="x", debit=wallet(BUYER), credit=hold(JOB), amount_microusd=-1),
        Transfer(id="x", debit=hold(JOB), credit=wallet(BUYER), amount_microusd=DOLLAR + 1),
        Transfer(id="x", debit=FEE, credit=wallet(BUYER), amount_microusd=1),
        Transfer(id=f"{JOB}/hold/0", debit=wallet(BUYER), credit=hold(JOB), amount_microusd=1),
    ],
)
def test_a_transfer_that_may_not_be_stops_the_ledger(transfer: Transfer) -> None:
    world = running("a")
    world.append(moving(transfer))
    with pytest.raises(AssertionError):
        world.read()


def test_a_second_credit_stops_the_ledger() -> None:
    world = World()
    world.say(opened())
    world.append(AccountCredited(account=BUYER, at_ms=START_MS))
    with pytest.raises(LookupError):
        world.read()
