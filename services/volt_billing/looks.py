"""When a job next calls for something that `effects` would append."""

from typing import assert_never

from volt_billing import holds, postings
from volt_billing.agenda import Look
from volt_billing.states import (
    NEVER_MS,
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

AT_ONCE = Look(0, NEVER_MS)
NEVER = Look(NEVER_MS, NEVER_MS)


def next_look(known: JobState) -> Look:
    """Not later than the state calls for something; it may turn out to be nothing yet."""
    match known:
        case Requested() | Dropped() | Low():
            return AT_ONCE  # What a low job can do depends on a wallet that others fill.
        case Held() | Closed() | Unfunded():
            return NEVER
        case Metered(running):
            return _while_metered(running)
        case Closing(running, ended_ms):
            is_owing = running.covers_to_ms < ended_ms
            return AT_ONCE if is_owing else Look(NEVER_MS, postings.settled_ms(known))
        case _:
            assert_never(known)


def _while_metered(running: Running) -> Look:
    if not running.is_settled or running.wanted or running.growth:
        return AT_ONCE  # Whether there is money to grow depends on a wallet that others fill.
    return Look(holds.renewal_due_ms(running), postings.next_posting_ms(running))
