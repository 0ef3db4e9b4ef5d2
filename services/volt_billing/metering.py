"""What is billable: sets of milliseconds, as sorted tuples of [from, to), and integer money.

billable = cover within [ready, end) of each generation; of a gang, where all of its members are covered at once
due      = floor(billable ms x GPUs x price / 3,600,000), fee = floor(due x 500 / 10,000), both cumulative
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from volt.contracts.ids import LeaseId
from volt.contracts.ledger import FEE_BASIS_POINTS
from volt.contracts.units import BASIS_POINTS, MS_PER_HOUR
from volt_billing.states import NEVER_MS, Cover, Ready, Running, Spans


class Window(NamedTuple):
    """A stretch of time in which a lease's cover counts, because its generation is ready and it is a member."""

    lease: LeaseId
    generation: int
    from_ms: int
    to_ms: int


def due_microusd(billable_ms: int, gpus: int, price_microusd_per_gpu_hour: int) -> int:
    """What so many node-milliseconds of so many GPUs cost; the remainder stays in the milliseconds."""
    return billable_ms * gpus * price_microusd_per_gpu_hour // MS_PER_HOUR


def fee_microusd(due: int) -> int:
    """The platform's part of what is due, from the provider's share."""
    return due * FEE_BASIS_POINTS // BASIS_POINTS


def windows(running: Running, until_ms: int) -> Iterator[Window]:
    """The windows of every lease up to `until_ms`, where they are not empty. An open one ends at NEVER_MS."""
    for number, ready in running.ready.items():
        for lease in sorted(ready.party):
            lost_ms = running.leases[lease].lost_ms
            to_ms = min(until_ms, ready.ended_ms, lost_ms, ready.exited.get(lease, NEVER_MS))
            if ready.ready_ms < to_ms:
                yield Window(lease, number, ready.ready_ms, to_ms)


def billable_ms(running: Running, cover: Cover, until_ms: int) -> dict[LeaseId, int]:
    """How much of each lease's time before `until_ms` is to be paid for. An instant counts once."""
    together = {
        number: _together(running, cover, number, ready)
        for number, ready in running.ready.items()
        if running.terms.is_gang
    }
    stretches: dict[LeaseId, Spans] = {}
    for window in windows(running, until_ms):
        own = cover.get(window.lease, {}).get(window.generation, ())
        counted = within(together.get(window.generation, own), window.from_ms, window.to_ms)
        for from_ms, to_ms in counted:
            stretches[window.lease] = joined(stretches.get(window.lease, ()), from_ms, to_ms)
    return {lease: length_ms(stretches.get(lease, ())) for lease in running.leases}


def joined(spans: Spans, from_ms: int, to_ms: int) -> Spans:
    """The union of `spans` and one more stretch, which may be empty."""
    if from_ms >= to_ms:
        return spans
    first = bisect_left(spans, from_ms, key=lambda span: span[1])
    behind = bisect_right(spans, to_ms, key=lambda span: span[0])
    if first < behind:
        from_ms, to_ms = min(from_ms, spans[first][0]), max(to_ms, spans[behind - 1][1])
    return (*spans[:first], (from_ms, to_ms), *spans[behind:])


def within(spans: Spans, from_ms: int, to_ms: int) -> Spans:
    """What of `spans` lies in [from_ms, to_ms)."""
    return common(spans, ((from_ms, to_ms),)) if from_ms < to_ms else ()


def common(some: Spans, others: Spans) -> Spans:
    """The intersection."""
    shared: list[tuple[int, int]] = []
    i = j = 0
    while i < len(some) and j < len(others):
        from_ms, to_ms = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if from_ms < to_ms:
            shared.append((from_ms, to_ms))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return tuple(shared)


def length_ms(spans: Spans) -> int:
    """How long all the stretches are together."""
    return sum(to_ms - from_ms for from_ms, to_ms in spans)


def _together(running: Running, cover: Cover, number: int, ready: Ready) -> Spans:
    """When each member of a gang is covered or has exited 0. A lost member covers nothing from its loss on."""
    members = []
    for lease in ready.party:
        own = within(cover.get(lease, {}).get(number, ()), 0, running.leases[lease].lost_ms)
        members.append(joined(own, ready.exited.get(lease, NEVER_MS), NEVER_MS))
    return reduce(common, members, ((0, NEVER_MS),))
