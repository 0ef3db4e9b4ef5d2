"""A pass: who gets which GPUs at what price, and why the others wait.

One walk over what is to be matched, older jobs first; each gang is granted whole, at its own price, or not at all.
A pass is a function of state and instant, so whoever folds the log up to `through_seq` can repeat it, byte for byte.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from volt.contracts.ids import lease_id
from volt.contracts.market import Gang, Grant, MarketCleared, Waiting
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt_matcher.book import Book
from volt_matcher.explain import TOO_LARGE, explain
from volt_matcher.feasible import Shortfall
from volt_matcher.place import Placement
from volt_matcher.state import Opening, Placed, Reason, State, openings

HEAD_BYTES_MAX = 1024
ITEMS_BYTES_MAX = MESSAGE_BYTES_MAX - HEAD_BYTES_MAX
"""What gangs and reasons may take of a market message, commas included."""
REASONS_PER_PASS_MAX = 32
"""Reasons are dear to find, and grants should not wait for them."""


class _Granted(NamedTuple):
    gangs: tuple[Gang, ...]
    unplaced: tuple[Opening, ...]


def clear(state: State, at_ms: int) -> MarketCleared | None:
    """The next market message; None if there is nothing to say. What has no room in it is for the pass after it."""
    book = Book(state.nodes, ((lease.job, lease.node) for lease in state.leases.values()))
    granted = _grant(state, book)
    waiting = tuple(_reasons(state, book, granted))
    if not granted.gangs and not waiting:
        return None
    return MarketCleared(through_seq=state.seq, at_ms=at_ms, gangs=granted.gangs, waiting=waiting)


def _grant(state: State, book: Book) -> _Granted:
    gangs, unplaced, room_bytes = list[Gang](), list[Opening](), ITEMS_BYTES_MAX
    leases: Counter[str] = Counter()
    for wanted in openings(state):
        opening = _apart(wanted, book)
        placed = book.fit(opening.request)
        if isinstance(placed, Shortfall):
            unplaced.append(opening)
            continue
        gang = _gang(opening, placed, _leases_granted(state, opening) + leases[opening.job])
        size_bytes = _size_bytes(gang)
        if size_bytes > ITEMS_BYTES_MAX:
            unplaced.append(opening)
            continue
        if size_bytes > room_bytes:
            break  # It comes first in the next pass; nothing younger may overtake it.
        gangs.append(gang)
        room_bytes -= size_bytes
        leases[opening.job] += len(gang.grants)
        book.take(opening.job, placed)
    return _Granted(tuple(gangs), tuple(unplaced))


def _apart(opening: Opening, book: Book) -> Opening:
    """A job gets no second lease on a node before its first one there is cleared."""
    request = opening.request
    return opening._replace(request=replace(request, excluded=request.excluded | book.held_by(opening.job)))


def _gang(opening: Opening, placed: Placement, leases_granted: int) -> Gang:
    grants = tuple(
        Grant(
            lease=lease_id(opening.job, leases_granted + place + 1),
            rank=opening.rank + place,
            node=seat.node.id,
            provider=seat.node.provider,
            gpus=seat.gpus,
        )
        for place, seat in enumerate(placed.seats)
    )
    return Gang(
        job=opening.job,
        account=opening.account,
        generation=opening.generation,
        attempt=opening.attempt,
        grants=grants,
        price_microusd_per_gpu_hour=placed.price_microusd_per_gpu_hour,
        domain=placed.domain,
    )


def _leases_granted(state: State, opening: Opening) -> int:
    job = state.jobs[opening.job]
    return job.leases_granted if isinstance(job, Placed) else 0


def _reasons(state: State, book: Book, granted: _Granted) -> Iterator[Waiting]:
    """What is new about the jobs that wait, against the supply that the grants leave. One reason for each job."""
    room_bytes = ITEMS_BYTES_MAX - sum(map(_size_bytes, granted.gangs))
    everything = book.if_all_were_free()
    for opening, short, reason in islice(_news(state, book, everything, granted), REASONS_PER_PASS_MAX):
        waiting = explain(book, opening, short, reason)
        size_bytes = _size_bytes(waiting)
        if size_bytes <= room_bytes:
            room_bytes -= size_bytes
            yield waiting


def _news(state: State, book: Book, everything: Book, granted: _Granted) -> Iterator[tuple[Opening, Shortfall, Reason]]:
    """The jobs whose reason is another than they were told."""
    seen = set[str]()
    for opening in granted.unplaced:
        if opening.job in seen:
            continue
        seen.add(opening.job)
        short = _shortfall(book.fit(opening.request))
        is_infeasible = short.binding == TOO_LARGE or isinstance(everything.fit(opening.request), Shortfall)
        reason = Reason(short.binding, is_infeasible)
        if reason != state.reasons.get(opening.job):
            yield opening, short, reason


def _shortfall(outcome: Placement | Shortfall) -> Shortfall:
    """Supply only shrinks in a pass, so what fits after it and was not granted is a gang that no message can hold."""
    return outcome if isinstance(outcome, Shortfall) else Shortfall(TOO_LARGE, (), ())


def _size_bytes(item: Gang | Waiting) -> int:
    return len(encode(item)) + 1
