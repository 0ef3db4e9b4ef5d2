"""Reservations: what frees up is kept for a gang that has waited for long, so that nobody starves.

A job that would fit if nothing were leased, and has waited for `RESERVE_AFTER_MS`, gets so many GPUs of so many lots
of one domain set apart: those that will be free soonest, leases without a known end last. Whatever of them is free, or
becomes free, is sold to nobody else, except to jobs that are sure to have ended when the last of it is. A reservation
ends with its grant, its job, or its time; the job may then get another, on other lots.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from volt.contracts.market import Reservation, ReservedLot
from volt.contracts.units import MS_PER_SECOND
from volt_matcher.book import Book
from volt_matcher.feasible import is_excluded, suits
from volt_matcher.lots import Lot, LotId, Request, Shape, level_of, shapes_allowed
from volt_matcher.price import is_affordable
from volt_matcher.state import Queued, State

RESERVE_AFTER_MS = 300_000
RESERVATION_MS_MAX = 3_600_000
"""How long GPUs are kept while nobody knows when the rest will be free."""
GRACE_MS = 600_000
"""How long a reservation outlasts the instant at which the last of it should be free."""
START_MS_MAX = 120_000
"""How long a job may take from its grant to being ready, which is when its duration begins."""
RESERVATIONS_MAX = 8
NEVER_MS = 1 << 62


class Apart(NamedTuple):
    """GPUs of a lot that are free and kept for a job."""

    job: str
    lot: Lot
    gpus: int


class Sale(NamedTuple):
    """GPUs of a lot that the pass itself has granted, and by when they will be free again; None if nobody knows."""

    lot: LotId
    gpus: int
    until_ms: int | None


def is_starving(job: Queued, at_ms: int) -> bool:
    """Whether it has waited for long enough to get a reservation."""
    return at_ms - job.since_ms >= RESERVE_AFTER_MS


def standing(state: State, at_ms: int) -> list[Reservation]:
    """The reservations that count at this time, the oldest first."""
    return [one for one in state.reservations.values() if at_ms < one.until_ms]


def reservation_for(
    state: State, name: str, account: str, request: Request, sales: Iterable[Sale]
) -> Reservation | None:
    """The lots to keep for a request, or None if it could never have enough of them."""
    search = _Search(state, request, sales)
    candidates = [one for shape in shapes_allowed(request) for one in search.candidates(shape)]
    if not candidates:
        return None
    best = min(candidates, key=lambda one: one[:4])
    at_ms = request.at_ms
    is_known = best.free_ms < NEVER_MS
    return Reservation(
        job=name,
        account=account,
        lots=tuple(ReservedLot(node=lot.node, model=lot.model, gpus=best.gpus) for lot in best.lots),
        free_ms=max(best.free_ms, at_ms) if is_known else None,
        until_ms=max(best.free_ms, at_ms) + GRACE_MS if is_known else at_ms + RESERVATION_MS_MAX,
    )


def set_apart(book: Book, lots: Mapping[str, tuple[Lot, ...]], reservations: Iterable[Reservation]) -> list[Apart]:
    """Takes what is free of reserved lots out of the book, and returns what that was."""
    apart = []
    for reservation in reservations:
        for reserved in reservation.lots:
            lot = next((one for one in lots.get(reserved.node, ()) if one.model == reserved.model), None)
            gpus = min(reserved.gpus, book.free(lot.key)) if lot is not None else 0
            if lot is not None and gpus:
                book.take(lot, gpus)
                apart.append(Apart(reservation.job, lot, gpus))
    return apart


def put_back(book: Book, apart: Iterable[Apart]) -> None:
    """What was set apart can be sold again."""
    for one in apart:
        book.take(one.lot, -one.gpus)


def ends_before(request: Request, reservations: Iterable[Reservation]) -> bool:
    """Whether a job placed now is sure to have ended before anything reserved is needed."""
    if request.duration_seconds is None:
        return False
    end_ms = request.at_ms + START_MS_MAX + request.duration_seconds * MS_PER_SECOND
    return all(one.free_ms is not None and end_ms <= one.free_ms for one in reservations)


class _Candidate(NamedTuple):
    """A set of lots: when the last is free, what they cost, and which they are."""

    free_ms: int
    cost_microusd: int
    nodes: tuple[str, ...]
    gpus: int
    lots: tuple[Lot, ...]


class _Search:
    """Looks for lots to keep for a request, leaving out the nodes of which something is kept for others."""

    def __init__(self, state: State, request: Request, sales: Iterable[Sale]) -> None:
        self._request = request
        self._sold = Counter[LotId]()
        self._ends: dict[LotId, list[tuple[int, int]]] = {}
        """Of each lot: when GPUs of it become free, and how many."""
        for lease in state.leases.values():
            self._until(lease.until_ms, LotId(lease.node, lease.model), len(lease.gpus))
        for sale in sales:
            self._sold[sale.lot] += sale.gpus
            self._until(sale.until_ms, sale.lot, sale.gpus)
        kept = {lot.node for one in standing(state, request.at_ms) for lot in one.lots}
        self._lots = [lot for node, lots in state.lots.items() if node not in kept for lot in lots]

    def _until(self, until_ms: int | None, lot: LotId, gpus: int) -> None:
        self._ends.setdefault(lot, []).append((NEVER_MS if until_ms is None else until_ms, gpus))

    def candidates(self, shape: Shape) -> Iterator[_Candidate]:
        """In each domain of the required level, the lots that will be free soonest."""
        level, gpus = level_of(self._request, shape.nodes), shape.gpus_per_node
        domains: dict[tuple[str, str], list[tuple[int, int, str, Lot]]] = {}
        for lot in self._lots:
            domain = lot.domains[level]
            if domain and lot.total >= gpus and self._could_serve(lot, gpus):
                entry = (self._free_ms(lot, gpus), lot.ask_microusd_per_gpu_hour, lot.node, lot)
                domains.setdefault((lot.model, domain), []).append(entry)
        for found in domains.values():
            if len(found) >= shape.nodes:
                chosen = sorted(found, key=lambda one: one[:3])[: shape.nodes]
                yield _Candidate(
                    free_ms=max(one[0] for one in chosen),
                    cost_microusd=sum(one[1] for one in chosen) * gpus,
                    nodes=tuple(one[2] for one in chosen),
                    gpus=gpus,
                    lots=tuple(one[3] for one in chosen),
                )

    def _could_serve(self, lot: Lot, gpus: int) -> bool:
        """Whether it would, if nothing of it were leased."""
        return (
            is_affordable(lot.ask_microusd_per_gpu_hour, self._request.cap_microusd_per_gpu_hour)
            and not is_excluded(lot, self._request)
            and suits(lot, self._request, gpus)
        )

    def _free_ms(self, lot: Lot, gpus: int) -> int:
        """When so many of its GPUs will be free, as far as the ends of leases are known; 0 if they are now."""
        free = len(lot.free) - self._sold[lot.key]
        if free >= gpus:
            return 0
        for end_ms, count in sorted(self._ends.get(lot.key, ())):
            free += count
            if free >= gpus:
                return end_ms
        return NEVER_MS
