"""How much is set aside for a job, and until when it lasts.

A hold is used up by ready time as if all of it were covered, so that what heartbeats turn out to cover, and how late
the monitor says so, can only leave something over. Needs are rounded up, what is used up is never rounded down.
"""

from collections import defaultdict
from typing import NamedTuple

from volt.contracts.ids import LeaseId
from volt.contracts.units import MS_PER_HOUR, MS_PER_SECOND
from volt_billing.metering import joined, windows
from volt_billing.states import NEVER_MS, Running, Spans, State, Terms

DEFAULT_CAP_MICROUSD_PER_GPU_HOUR = 5_000_000
CAP_FACTOR = 2
RENEWAL_MS = 3_600 * MS_PER_SECOND
RENEWAL_MS_MIN = 60 * MS_PER_SECOND
RENEWAL_MARGIN_MS = 600 * MS_PER_SECOND
"""How long before a hold is used up it is renewed, or the buyer told that it cannot be."""
DEADLINE_GRACE_MS = 5 * MS_PER_SECOND
"""How long a job whose hold lasts to its deadline may take to end by itself before it is called exhausted."""


class TopUp(NamedTuple):
    """A renewal: what the wallet can give, and until when the hold then lasts."""

    amount_microusd: int
    covers_to_ms: int
    is_full: bool


def effective_cap(state: State, terms: Terms) -> int:
    """Micro-dollars per GPU-hour: the job's own cap, else twice the market price, else twice the lowest ask."""
    if terms.own_cap_microusd_per_gpu_hour is not None:
        return terms.own_cap_microusd_per_gpu_hour
    known = state.last_prices_microusd
    prices = [known[model] for model in terms.models if model in known]
    asks = [
        ask_microusd
        for offer in state.offers.values()
        for model, ask_microusd in offer.asks_microusd_per_gpu_hour.items()
        if offer.is_open and model in terms.models
    ]
    basis = min(prices, default=min(asks, default=None))
    return DEFAULT_CAP_MICROUSD_PER_GPU_HOUR if basis is None else CAP_FACTOR * basis


def cost_microusd(period_ms: int, rate_microusd_per_hour: int) -> int:
    """What a period comes to, rounded up."""
    return -(-period_ms * rate_microusd_per_hour // MS_PER_HOUR)


def covers_to_ms(running: Running, funded_microusd: int) -> int:
    """The first instant that this much does not pay for; NEVER_MS if nothing runs that could use it up."""
    left, rate, last_ms = funded_microusd * MS_PER_HOUR, 0, 0
    for at_ms, change in sorted(_rate_changes(running).items()):
        used = rate * (at_ms - last_ms)
        if used > left:
            return last_ms + left // rate
        left, rate, last_ms = left - used, rate + change, at_ms
    return NEVER_MS


def lasts_to_ms(running: Running, funded_microusd: int, at_ms: int) -> int:
    """`covers_to_ms`, or while nothing runs: as if all live leases ran from `at_ms` on."""
    known_ms, rate = covers_to_ms(running, funded_microusd), running.live_rate_microusd_per_hour
    if known_ms != NEVER_MS:
        return known_ms
    left_microusd = funded_microusd - used_microusd(running, at_ms)
    return at_ms + left_microusd * MS_PER_HOUR // rate if rate else at_ms


def used_microusd(running: Running, until_ms: int) -> int:
    """What ready time before `until_ms` would cost if it were all covered, rounded up."""
    used = sum(change * max(0, until_ms - at_ms) for at_ms, change in _rate_changes(running).items())
    return -(-used // MS_PER_HOUR)


def spare_microusd(running: Running, at_ms: int) -> int:
    """What is held beyond a first period of all live leases at their true prices; negative if that much lacks."""
    left_microusd = running.funded_microusd - used_microusd(running, at_ms)
    return left_microusd - cost_microusd(running.terms.first_period_ms, running.live_rate_microusd_per_hour)


def wanted_microusd(running: Running, at_ms: int, ranks: int) -> int:
    """What lacks for a first period of the live leases and of so many more members at the cap; at least 0."""
    at_cap_microusd_per_hour = ranks * running.gpus_per_node * running.cap_microusd_per_gpu_hour
    needed_microusd = cost_microusd(running.terms.first_period_ms, at_cap_microusd_per_hour)
    return max(0, needed_microusd - spare_microusd(running, at_ms))


def renewal_due_ms(running: Running) -> int:
    """When the hold is to be renewed. One that lasts as long as the job may is left to end with it."""
    if running.covers_to_ms < running.deadline_ms:
        return running.covers_to_ms - RENEWAL_MARGIN_MS
    return exhausted_ms(running)


def exhausted_ms(running: Running) -> int:
    """When the job is told that the hold is used up, which is at `covers_to_ms` or a little later."""
    grace_ms = DEADLINE_GRACE_MS if running.covers_to_ms >= running.deadline_ms else 0
    return running.covers_to_ms + grace_ms


def renewal(running: Running, wallet_microusd: int, at_ms: int) -> TopUp:
    """Another period for what runs now, as far as the wallet allows."""
    from_ms = max(running.covers_to_ms, at_ms)
    step_ms = max(RENEWAL_MS_MIN, min(RENEWAL_MS, running.deadline_ms - from_ms))
    return _top_up(running, wallet_microusd, from_ms + step_ms)


def arrears(running: Running, wallet_microusd: int, ended_ms: int) -> TopUp | None:
    """What lacks for the time up to the end of a job that was over before its hold was renewed; None if nothing."""
    return _top_up(running, wallet_microusd, ended_ms) if running.covers_to_ms < ended_ms else None


def _top_up(running: Running, wallet_microusd: int, to_ms: int) -> TopUp:
    lacking_microusd = used_microusd(running, to_ms) - running.funded_microusd
    amount_microusd = min(lacking_microusd, wallet_microusd)
    lasts_ms = covers_to_ms(running, running.funded_microusd + amount_microusd)
    return TopUp(amount_microusd, lasts_ms, amount_microusd == lacking_microusd)


def _rate_changes(running: Running) -> dict[int, int]:
    """By how many micro-dollars per hour the rate changes at each instant, were there no gap in cover."""
    stretches: dict[LeaseId, Spans] = {}
    for window in windows(running, NEVER_MS):
        stretches[window.lease] = joined(stretches.get(window.lease, ()), window.from_ms, window.to_ms)
    changes: dict[int, int] = defaultdict(int)
    for lease, spans in stretches.items():
        rate = running.leases[lease].rate_microusd_per_hour
        for from_ms, to_ms in spans:
            changes[from_ms] += rate
            changes[to_ms] -= rate
    return changes
