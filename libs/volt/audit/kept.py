"""What is kept for a job that has waited for long is sold to nobody else, but for jobs that end before it is needed."""

from collections.abc import Iterable, Iterator, Mapping

from volt.audit.demand import Demand
from volt.audit.rules import Breach
from volt.audit.supply import Supply
from volt.contracts.ids import JobId
from volt.contracts.market import Gang, MarketCleared, Reservation, ReservedLot
from volt.contracts.units import MS_PER_SECOND


def breaches_of_reservations(
    supply: Supply, demands: Mapping[JobId, Demand], reservations: Iterable[Reservation], cleared: MarketCleared
) -> Iterator[Breach]:
    """Whether the pass kept what was reserved before it. A replacement may take it, and the job that it is for."""
    placed = {gang.job for gang in cleared.gangs}
    for one in reservations:
        if one.job in placed or cleared.at_ms >= one.until_ms:
            continue
        for lot in one.lots:
            free, sold = len(supply.free(lot.node, lot.model)), 0
            for gang, gpus in _grants_of(lot, cleared.gangs):
                if gang.attempt > 0:
                    free -= gpus
                elif not _ends_in_time(demands.get(gang.job), one, cleared.at_ms):
                    sold += gpus
            if sold > max(0, free - lot.gpus):
                yield "reserved_sold", one.job, f"{lot.gpus} GPUs of {lot.node} are kept for it; {sold} of {free} went"


def _grants_of(lot: ReservedLot, gangs: Iterable[Gang]) -> Iterator[tuple[Gang, int]]:
    for gang in gangs:
        if gang.model == lot.model:
            yield from ((gang, len(grant.gpus)) for grant in gang.grants if grant.node == lot.node)


def _ends_in_time(demand: Demand | None, reservation: Reservation, at_ms: int) -> bool:
    seconds = demand.spec.max_duration_seconds if demand is not None else None
    if seconds is None or reservation.free_ms is None:
        return False
    return at_ms + seconds * MS_PER_SECOND <= reservation.free_ms
