"""How one state of a job follows another, as drawn in `states`: the end, a gang, the cluster's life, and money.

What others say may come at any time and is passed over where it means nothing; the ledger is billing's own, so that an
event of it that does not fit the state is a defect. The end of a job may be folded before an event that billing had
appended without knowing it: a job that is closing takes those too.
"""

from dataclasses import replace
from typing import assert_never

from volt.contracts.clusters import ClusterReady
from volt.contracts.ledger import (
    ChargesPosted,
    FundsExhausted,
    FundsLow,
    HoldAdjusted,
    JobClosed,
    JobFunded,
    JobUnfunded,
    MembersFunded,
    hold,
)
from volt.contracts.market import Gang
from volt_billing.holds import covers_to_ms
from volt_billing.lives import Life, granted, lived
from volt_billing.states import (
    Closed,
    Closing,
    Dropped,
    Held,
    JobState,
    Low,
    Metered,
    Requested,
    Running,
    Unfunded,
)

HoldMoney = MembersFunded | HoldAdjusted | FundsLow
RunningMoney = HoldMoney | ChargesPosted
JobMoney = RunningMoney | JobFunded | JobUnfunded | FundsExhausted | JobClosed


def over(known: JobState, at_ms: int) -> JobState:
    """Over at `at_ms`, or before."""
    match known:
        case Requested(terms):
            return Dropped(terms, 0)
        case Held(terms, _, funded_microusd):
            return Dropped(terms, funded_microusd)
        case Metered(running) | Low(running):
            return Closing(running, at_ms)
        case Closing(running, ended_ms):
            return Closing(running, min(ended_ms, at_ms))
        case Dropped() | Closed() | Unfunded():
            return known
        case _:
            assert_never(known)


def leased(known: JobState, gang: Gang) -> JobState:
    """With the leases of a gang, which is void unless money is held and the job is not over.

    It is void too if it answers what a generation wanted that another has followed.
    """
    match known:
        case Held(terms, cap_microusd, funded_microusd):
            return Metered(granted(Running(terms, cap_microusd, funded_microusd, movements=1), gang))
        case Metered(running) | Low(running) if gang.generation >= running.generation:
            return replace(known, running=granted(running, gang))
        case Metered() | Low():
            return known
        case Requested() | Closing() | Dropped() | Closed() | Unfunded():
            return known
        case _:
            assert_never(known)


def changed(known: JobState, event: Life) -> JobState:
    """After an event of its cluster. A job that is over does not become ready."""
    match known:
        case Closing(running) if not isinstance(event, ClusterReady):
            return replace(known, running=lived(running, event))
        case Metered(running) | Low(running):
            return replace(known, running=lived(running, event))
        case Requested() | Held() | Closing() | Dropped() | Closed() | Unfunded():
            return known
        case _:
            assert_never(known)


def paid(known: JobState, event: JobMoney) -> JobState:
    """After an event of the ledger. Raises AssertionError for one that this state does not call for."""
    match known, event:
        case Requested(terms), JobFunded(cap_microusd_per_gpu_hour=cap_microusd):
            return Held(terms, cap_microusd, _put_on_hold(event))
        case Dropped(terms), JobFunded():
            return Dropped(terms, _put_on_hold(event))
        case Requested() | Dropped(), JobUnfunded():
            return Unfunded()
        case Metered(running) | Low(running), HoldAdjusted():
            return Metered(_accounted(running, event))
        case Metered(running) | Low(running), FundsLow(exhausted_at_ms=exhausted_at_ms):
            return Low(_accounted(running, event), exhausted_at_ms)
        case Metered() | Low() | Closing(), MembersFunded() | HoldAdjusted() | FundsLow() | ChargesPosted():
            return replace(known, running=_accounted(known.running, event))
        case Low() | Closing(), FundsExhausted(exhausted_at_ms=exhausted_at_ms):
            return over(known, exhausted_at_ms)
        case Closing() | Dropped(), JobClosed():
            return Closed()
        case _:
            raise AssertionError(f"{type(event).__name__} of {event.job}, which is {type(known).__name__}")


def _accounted(running: Running, event: RunningMoney) -> Running:
    match event:
        case ChargesPosted(lines=lines):
            posted = {line.lease: replace(running.leases[line.lease], line=line) for line in lines}
            to_ms = max([running.posted_to_ms, *(line.through_ms for line in lines)])
            return replace(running, leases={**running.leases, **posted}, posted_to_ms=to_ms)
        case MembersFunded(attempts=attempts):
            wanted, growth = (
                {attempt: number for attempt, number in asked.items() if attempt not in attempts}
                for asked in (running.wanted, running.growth)
            )
            return replace(_funded(running, event), wanted=wanted, growth=growth)
        case HoldAdjusted():
            return replace(_funded(running, event), is_settled=True)
        case FundsLow():
            return _funded(running, event)
        case _:
            assert_never(event)


def _funded(running: Running, event: HoldMoney) -> Running:
    funded_microusd = running.funded_microusd + _put_on_hold(event)
    return replace(
        running,
        funded_microusd=funded_microusd,
        movements=running.movements + len(event.transfers),
        covers_to_ms=covers_to_ms(running, funded_microusd),
    )


def _put_on_hold(event: JobFunded | HoldMoney) -> int:
    """What the event puts on hold, less what it takes off."""
    on_hold = hold(event.job)
    return sum(
        transfer.amount_microusd if transfer.credit == on_hold else -transfer.amount_microusd
        for transfer in event.transfers
    )
