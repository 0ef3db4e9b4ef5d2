"""A pass: who gets which GPUs at what price, and why the others wait.

Replacements come first, the older jobs' first; then the gangs of the jobs that wait are chosen together. Each gang is
granted whole, at its own price, or not at all. A pass is a function of state and instant, so whoever folds the log up
to `through_seq` can repeat it, byte for byte.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from volt.contracts.ids import GpuUuid, JobId, NodeId, lease_id
from volt.contracts.market import Expired, Gang, Grant, MarketCleared, Quote, Reservation, Waiting
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt.contracts.units import MS_PER_SECOND
from volt_matcher.choose import choose, take
from volt_matcher.explain import Unplaced, news, reason_of
from volt_matcher.fields import PERMILLE, Competitor
from volt_matcher.lots import Lot, LotId
from volt_matcher.place import Placement, cheapest
from volt_matcher.reserve import (
    RESERVATIONS_MAX,
    START_MS_MAX,
    Sale,
    ends_before,
    is_starving,
    put_back,
    reservation_for,
    set_apart,
    standing,
)
from volt_matcher.state import FIRST_ATTEMPT, Opening, Placed, Queued, State, first_request, openings
from volt_matcher.survey import Survey

HEAD_BYTES_MAX = 1024
ITEMS_BYTES_MAX = MESSAGE_BYTES_MAX - HEAD_BYTES_MAX
"""What gangs and reasons may take of a market message, commas included."""
QUOTES_PER_PASS_MAX = 64
WEIGHT_DOUBLES_MS = 3_600_000
"""Who has waited for so long counts twice."""


def clear(state: State, at_ms: int) -> MarketCleared | None:
    """The next market message; None if there is nothing to say. What has no room in it is for the pass after it."""
    message = _Message(state, at_ms)
    vacancies, first = openings(state, at_ms)
    try:
        message.replace_members(vacancies)
        message.place_all(first)
        message.explain()
        message.reserve(at_ms)
        message.expire(at_ms)
        message.quote(at_ms)
    finally:
        state.book.give_back()
    parts = (message.gangs, message.waiting, message.expired, message.quotes, message.reservations)
    if not any(parts):
        return None
    return MarketCleared(
        through_seq=state.seq,
        at_ms=at_ms,
        gangs=tuple(message.gangs),
        waiting=tuple(message.waiting),
        expired=tuple(message.expired),
        quotes=tuple(message.quotes),
        reservations=tuple(message.reservations),
    )


@dataclass
class _Message:
    """The message as it grows."""

    state: State
    at_ms: int
    gangs: list[Gang] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    expired: list[Expired] = field(default_factory=list)
    quotes: list[Quote] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    unplaced: list[Unplaced] = field(default_factory=list)
    room_bytes: int = ITEMS_BYTES_MAX
    is_full: bool = False
    """Something had no room: it comes first in the next pass, and nothing younger may overtake it."""
    _leases: Counter[JobId] = field(default_factory=Counter)
    _sold: Counter[LotId] = field(default_factory=Counter)

    def replace_members(self, vacancies: list[Opening]) -> None:
        """One after the other. A job gets no second lease on a node before its first one there is cleared."""
        held = _held(self.state, {opening.job for opening in vacancies})
        for vacancy in vacancies:
            nodes = held[vacancy.job]
            request = replace(vacancy.request, excluded=vacancy.request.excluded.union(nodes))
            opening = vacancy._replace(request=request)
            placed = cheapest(self.state.book, request)
            if placed is None:
                self.unplaced.append(Unplaced(opening))
                continue
            take(self.state.book, placed)
            nodes.update(lot.node for lot in placed.lots)
            self._append(self._gang(opening, placed, self._sold))

    def place_all(self, first: list[Opening]) -> None:
        """Those for whom GPUs are kept, each with its own; then the others with the rest; then who ends in time."""
        reservations = standing(self.state, self.at_ms)
        owners = {one.job for one in reservations}
        if not owners:
            self.place(first)
            return
        book = self.state.book
        apart = set_apart(book, self.state.lots, reservations)
        for reservation in reservations:
            own = [one for one in apart if one.job == reservation.job]
            put_back(book, own)
            self.place([opening for opening in first if opening.job == reservation.job])
            set_apart(book, self.state.lots, [] if self._is_placed(reservation.job) else [reservation])
        self.place([opening for opening in first if opening.job not in owners])
        self._backfill([one for one in reservations if not self._is_placed(one.job)])

    def _backfill(self, reservations: list[Reservation]) -> None:
        """Lends what is kept to jobs that are sure to have ended when it is needed."""
        owners = {one.job for one in reservations}
        brief = [
            one.opening
            for one in self.unplaced
            if one.opening.attempt == FIRST_ATTEMPT
            and one.opening.job not in owners
            and not one.is_too_large
            and ends_before(one.opening.request, reservations)
        ]
        if not reservations or not brief:
            return
        names = {opening.job for opening in brief}
        self.unplaced = [one for one in self.unplaced if one.opening.job not in names]
        self._lend(reservations)
        self.place(brief)
        set_apart(self.state.book, self.state.lots, reservations)

    def _lend(self, reservations: list[Reservation]) -> None:
        """Everything that is kept is in the book again."""
        for reservation in reservations:
            for reserved in reservation.lots:
                for lot in self.state.lots.get(reserved.node, ()):
                    if lot.model == reserved.model:
                        left = len(lot.free) - self._sold[lot.key] - self.state.book.free(lot.key)
                        self.state.book.take(lot, -max(0, left))

    def _is_placed(self, job: JobId) -> bool:
        return not any(one.opening.job == job for one in self.unplaced)

    def place(self, first: list[Opening]) -> None:
        """All together; again without those whose gang no message can hold, if there are any."""
        waiting, book = list(first), self.state.book
        while True:
            plan = choose(book, [Competitor(opening.request, self._weight_permille(opening)) for opening in waiting])
            sold = Counter(self._sold)
            placed = [(opening, one) for opening, one in zip(waiting, plan, strict=True) if one is not None]
            gangs = {opening.job: self._gang(opening, one, sold) for opening, one in placed}
            too_large = {job for job, gang in gangs.items() if _size_bytes(gang) > ITEMS_BYTES_MAX}
            if not too_large:
                break
            for _, one in placed:
                take(book, one, -1)
            self.unplaced += [Unplaced(opening, is_too_large=True) for opening in waiting if opening.job in too_large]
            waiting = [opening for opening in waiting if opening.job not in too_large]
        self._sold = sold
        self.unplaced += [Unplaced(opening) for opening in waiting if opening.job not in gangs]
        for gang in gangs.values():
            self._append(gang)

    def _weight_permille(self, opening: Opening) -> int:
        """Waiting adds weight, up to twice as much."""
        job = self.state.jobs[opening.job]
        waited_ms = self.at_ms - job.since_ms if isinstance(job, Queued) else 0
        return PERMILLE + min(PERMILLE, max(0, waited_ms) * PERMILLE // WEIGHT_DOUBLES_MS)

    def reserve(self, at_ms: int) -> None:
        """Keeps GPUs for those who starve, the older first: one reservation for each model, and so many in all."""
        kept = standing(self.state, at_ms)
        models = {lot.model for one in kept for lot in one.lots}
        by_age = sorted(self.unplaced, key=lambda one: self.state.jobs[one.opening.job].admitted_seq)
        sales = tuple(self._sales(at_ms))
        for opening, is_too_large in by_age:
            job = self.state.jobs[opening.job]
            if is_too_large or not isinstance(job, Queued) or not is_starving(job, at_ms):
                continue
            if len(kept) + len(self.reservations) >= RESERVATIONS_MAX or models & opening.request.models:
                continue
            reservation = reservation_for(self.state, opening.job, opening.account, opening.request, sales)
            if reservation is not None and self._has_room(reservation):
                self.reservations.append(reservation)
                models.update(lot.model for lot in reservation.lots)

    def _sales(self, at_ms: int) -> Iterator[Sale]:
        """What this message grants is leased to whoever reads it, though not to this state."""
        for gang in self.gangs:
            job = self.state.jobs[gang.job]
            seconds, until_ms = job.spec.max_duration_seconds, job.until_ms if isinstance(job, Placed) else None
            if until_ms is None and seconds is not None:
                until_ms = at_ms + START_MS_MAX + seconds * MS_PER_SECOND
            for grant in gang.grants:
                yield Sale(LotId(grant.node, gang.model), len(grant.gpus), until_ms)

    def explain(self) -> None:
        """What is new about the jobs that wait, against the supply that the grants leave, as far as there is room."""
        by_age = sorted(self.unplaced, key=lambda one: self.state.jobs[one.opening.job].admitted_seq)
        for waiting in news(self._survey, by_age):
            if self._has_room(waiting):
                self.waiting.append(waiting)

    def expire(self, at_ms: int) -> None:
        """Those that no longer wait, having got nothing in this pass either."""
        for opening, _ in self.unplaced:
            job = self.state.jobs[opening.job]
            if isinstance(job, Queued) and job.expires_ms is not None and job.expires_ms <= at_ms:
                expired = Expired(job=opening.job, account=opening.account)
                if self._has_room(expired):
                    self.expired.append(expired)

    def quote(self, at_ms: int) -> None:
        """What those who only ask would get of what the grants leave, the older questions first."""
        by_age = sorted(self.state.quotes.items(), key=lambda one: one[1].asked_seq)
        for name, quoting in by_age[:QUOTES_PER_PASS_MAX]:
            request = first_request(quoting.spec, quoting.spec.max_price_microusd_per_gpu_hour, at_ms)
            opening = Opening(name, quoting.account, 1, FIRST_ATTEMPT, 0, request)
            placed = cheapest(self.state.book, request)
            if placed is None:
                quote = Quote(quote=name, account=quoting.account, waiting=reason_of(self._survey, opening))
            else:
                gang = self._gang(opening, placed, Counter(self._sold))
                quote = Quote(quote=name, account=quoting.account, gang=gang)
            if not self._has_room(quote):
                return  # It is answered in the next message.
            self.quotes.append(quote)

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self.state)

    def _has_room(self, item: Waiting | Expired | Quote | Reservation) -> bool:
        """Whether there is room for the item, which it then takes."""
        size_bytes = _size_bytes(item)
        if size_bytes > self.room_bytes:
            return False
        self.room_bytes -= size_bytes
        return True

    def _append(self, gang: Gang) -> None:
        size_bytes = _size_bytes(gang)
        self.is_full = self.is_full or size_bytes > self.room_bytes
        if not self.is_full:
            self.room_bytes -= size_bytes
            self.gangs.append(gang)
            self._leases[gang.job] += len(gang.grants)

    def _gang(self, opening: Opening, placed: Placement, sold: Counter[LotId]) -> Gang:
        job = self.state.jobs.get(opening.job)
        granted = (job.leases_granted if isinstance(job, Placed) else 0) + self._leases[opening.job]
        return Gang(
            job=opening.job,
            account=opening.account,
            generation=opening.generation,
            attempt=opening.attempt,
            grants=tuple(
                Grant(
                    lease=lease_id(opening.job, granted + place + 1),
                    rank=opening.rank + place,
                    node=lot.node,
                    provider=lot.provider,
                    gpus=_next_gpus(lot, placed.gpus_per_node, sold),
                )
                for place, lot in enumerate(placed.lots)
            ),
            model=placed.lots[0].model,
            price_microusd_per_gpu_hour=placed.price_microusd_per_gpu_hour,
            domain=placed.domain,
        )


def _next_gpus(lot: Lot, count: int, sold: Counter[LotId]) -> tuple[GpuUuid, ...]:
    """The lot's next GPUs, by UUID, that this pass has not sold yet."""
    start = sold[lot.key]
    sold[lot.key] += count
    assert sold[lot.key] <= len(lot.free), f"{lot.node} is sold beyond what is free"
    return lot.free[start : sold[lot.key]]


def _held(state: State, jobs: set[JobId]) -> dict[JobId, set[NodeId]]:
    """The nodes on which each of these jobs holds a lease."""
    held: dict[JobId, set[NodeId]] = {job: set() for job in jobs}
    for lease in state.leases.values() if jobs else ():
        if lease.job in held:
            held[lease.job].add(lease.node)
    return held


def _size_bytes(item: Gang | Waiting | Expired | Quote | Reservation) -> int:
    return len(encode(item)) + 1
