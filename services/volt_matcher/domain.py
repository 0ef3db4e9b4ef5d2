"""How the matcher's state follows from the log. What the states are is drawn in `state.py`.

An event that comes late (money for a job that has ended, a vacancy that has been superseded) changes nothing. Only a
market message that contradicts the market itself is impossible.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from volt.contracts.bids import BidAccepted, BidRejected, BidWithdrawn, NodeDrainAccepted, NodeResumeAccepted
from volt.contracts.clusters import (
    ClusterEvent,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    GrowthGivenUp,
    LeaseCleared,
    MembersWanted,
)
from volt.contracts.ids import JobId, LeaseId
from volt.contracts.jobs import JobAdmitted, JobEvent, JobReleaseAccepted, JobSpec, QuoteAdmitted
from volt.contracts.ledger import FundsExhausted, JobClosed, JobFunded, JobUnfunded, LedgerEvent, MembersFunded
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.nodes import NodeEvent
from volt.contracts.units import MS_PER_SECOND
from volt_matcher import supply
from volt_matcher.reserve import RESERVE_AFTER_MS, START_MS_MAX
from volt_matcher.state import (
    FIRST_ATTEMPT,
    Admitted,
    Placed,
    Queued,
    Quoting,
    Reason,
    State,
    Vacancy,
    funded,
    is_alone,
)
from volt_matcher.topology import domains_of, is_within, node_domain, shared, tightest


def evolve(state: State, entry: Entry) -> None:
    """Takes in one event."""
    state.seq = entry.seq
    match entry.event:
        case BidAccepted() as bid:
            supply.offer(state, bid)
        case BidWithdrawn(node=node):
            supply.withdraw(state, node)
        case NodeDrainAccepted() | NodeResumeAccepted() as event:
            supply.drain(state, event)
        case NodeEvent() as seen:
            supply.see(state, seen)
        case LeaseCleared(lease=lease):
            supply.free(state, lease)
        case MarketCleared() as cleared:
            _clear(state, cleared)
        case JobEvent() | ClusterEvent() | LedgerEvent() as event:
            _evolve_job(state, entry.seq, event)
        case BidRejected():
            pass  # The bid before it stands.
        case other:
            raise AssertionError(f"the matcher does not read {type(other).__name__}")


def _evolve_job(state: State, seq: int, event: JobEvent | ClusterEvent | LedgerEvent) -> None:
    match event:
        case JobAdmitted(job=job) if job not in state.ended:
            state.jobs.setdefault(job, Admitted(event.account, seq, event.spec))
        case QuoteAdmitted(job=quote):
            state.quotes[quote] = Quoting(event.account, seq, event.spec)
            state.changes += 1
        case JobFunded():
            _queue(state, event)
        case MembersWanted():
            _want(state, event)
        case MembersFunded():
            _fund(state, event)
        case ClusterReady(job=job, at_ms=at_ms):
            _run(state, job, at_ms)
        case ClusterForming():
            _supersede(state, event)
        case GrowthGivenUp(job=job, attempts=attempts):
            _forgo(state, job, attempts)
        case (
            JobReleaseAccepted(job=job)
            | ClusterReleased(job=job)
            | FundsExhausted(job=job)
            | JobUnfunded(job=job)
            | JobClosed(job=job)
        ):
            _end(state, job)
        case _:
            pass  # A refusal, a step of the cluster's own life, or money that is no condition of matching.


def _queue(state: State, event: JobFunded) -> None:
    name, cap_microusd = event.job, event.cap_microusd_per_gpu_hour
    job = state.jobs.get(name)
    if isinstance(job, Admitted):
        queued = Queued(job.account, job.admitted_seq, job.spec, cap_microusd, event.at_ms)
        state.jobs[name] = queued
        state.due_ms["starves", name] = event.at_ms + RESERVE_AFTER_MS
        if queued.expires_ms is not None:
            state.due_ms["expires", name] = queued.expires_ms
        _reopen(state, name)


def _want(state: State, event: MembersWanted) -> None:
    """A rank's latest attempt is what counts; saying the same one again may move it, and asks for no new money."""
    placed = state.jobs.get(event.job)
    if not isinstance(placed, Placed):
        return
    vacancies = {vacancy.rank: vacancy for vacancy in placed.vacancies}
    for wanted in event.wanted:
        known = vacancies.get(wanted.rank)
        if wanted.attempt in placed.filled or (known and known.attempt > wanted.attempt):
            continue
        excluded = frozenset(event.excluded)
        if known and (known.generation, known.attempt) == (event.generation, wanted.attempt):
            vacancies[wanted.rank] = replace(known, excluded=excluded, within=event.within)
        else:
            vacancies[wanted.rank] = Vacancy(
                event.generation,
                wanted.attempt,
                wanted.rank,
                excluded,
                event.within,
                is_growth=wanted.replaces is None,
                is_relief=wanted.relieves is not None,
            )
    _set_vacancies(state, event.job, placed, vacancies.values())


def _fund(state: State, event: MembersFunded) -> None:
    placed = state.jobs.get(event.job)
    if not isinstance(placed, Placed):
        return

    def with_money(one: Vacancy) -> Vacancy:
        is_meant = one.generation == event.generation and one.attempt in event.attempts
        return one.funded(event.cap_microusd_per_gpu_hour) if is_meant else one

    _set_vacancies(state, event.job, placed, map(with_money, placed.vacancies))


def _supersede(state: State, event: ClusterForming) -> None:
    """A new generation says afresh what it wants, and how large it is."""
    placed = state.jobs.get(event.job)
    if isinstance(placed, Placed):
        current = [vacancy for vacancy in placed.vacancies if vacancy.generation >= event.generation]
        home = placed.homes.get(event.members[0].lease, placed.home) if len(event.members) == 1 else placed.home
        placed = replace(placed, nodes=len(event.members) + len(event.replaces), home=home, homes={})
        state.jobs[event.job] = placed
        _set_vacancies(state, event.job, placed, current)


def _forgo(state: State, name: JobId, attempts: Collection[int]) -> None:
    """What the cluster was to grow by is wanted no more. A gang that crosses with this is held until it is clear."""
    placed = state.jobs.get(name)
    if isinstance(placed, Placed):
        kept = [one.unfunded() if one.attempt in attempts else one for one in placed.vacancies]
        _set_vacancies(state, name, placed, kept)


def _set_vacancies(state: State, name: JobId, placed: Placed, vacancies: Iterable[Vacancy]) -> None:
    by_rank = tuple(sorted(vacancies, key=lambda vacancy: vacancy.rank))
    if by_rank != placed.vacancies:
        state.jobs[name] = replace(placed, vacancies=by_rank)
        _reopen(state, name)


def _clear(state: State, cleared: MarketCleared) -> None:
    for gang in cleared.gangs:
        if gang.job not in state.ended:
            _grant(state, gang, cleared.at_ms)
    for waiting in cleared.waiting:
        if waiting.job in state.open:
            state.reasons[waiting.job] = Reason(waiting.binding, waiting.infeasible)
    for expired in cleared.expired:
        _end(state, expired.job)
    for reservation in cleared.reservations:
        if reservation.job in state.open:
            state.reservations[reservation.job] = reservation
            state.due_ms["reserved", reservation.job] = reservation.until_ms
    for quote in cleared.quotes:
        state.quotes.pop(quote.quote, None)
    state.changes += 1


def _grant(state: State, gang: Gang, at_ms: int) -> None:
    """A gang for a vacancy that the provisioner has given up meanwhile is void: it holds nothing, but was numbered."""
    match state.jobs.get(gang.job):
        case Queued() as job if gang.attempt == FIRST_ATTEMPT:
            supply.hold(state, gang, _until_ms(job.spec, at_ms + START_MS_MAX))
            home = _home(state, job.spec, gang)
            _waits_no_more(state, gang.job)
            state.jobs[gang.job] = Placed(
                account=job.account,
                admitted_seq=job.admitted_seq,
                spec=job.spec,
                home=home,
                model=gang.model,
                nodes=len(gang.grants),
                gpus_per_node=len(gang.grants[0].gpus),
                leases_granted=len(gang.grants),
            )
        case Placed() as placed if gang.attempt not in {FIRST_ATTEMPT, *placed.filled}:
            answered = [one for one in placed.vacancies if _answers(gang, one)]
            if answered:
                supply.hold(state, gang, placed.until_ms or _until_ms(placed.spec, at_ms + START_MS_MAX))
            is_moved = is_alone(placed) and any(grant.rank == 0 for grant in gang.grants)
            state.jobs[gang.job] = replace(
                placed,
                home=_home(state, placed.spec, gang) if is_moved else placed.home,
                homes={**placed.homes, **_homes(state, placed, gang, answered)},
                leases_granted=placed.leases_granted + len(gang.grants),
                vacancies=tuple(one for one in placed.vacancies if one not in answered),
                filled=placed.filled.union(one.attempt for one in answered),
            )
        case other:
            raise AssertionError(f"{gang.job} was granted attempt {gang.attempt} while {other}")
    _reopen(state, gang.job)


def _homes(state: State, placed: Placed, gang: Gang, answered: Collection[Vacancy]) -> dict[LeaseId, str]:
    """Where a cluster of one node goes that is to leave it: it is there once it forms so."""
    is_relief = is_alone(placed) and any(one.is_relief for one in answered)
    return {gang.grants[0].lease: _home(state, placed.spec, gang)} if is_relief else {}


def _until_ms(spec: JobSpec, ready_ms: int) -> int | None:
    """By when a job will have ended that is ready at this time."""
    seconds = spec.max_duration_seconds
    return None if seconds is None else ready_ms + seconds * MS_PER_SECOND


def _run(state: State, name: JobId, ready_ms: int) -> None:
    """The duration of a job counts from its first being ready."""
    placed = state.jobs.get(name)
    if not isinstance(placed, Placed) or placed.until_ms is not None:
        return
    until_ms = _until_ms(placed.spec, ready_ms)
    if until_ms is not None:
        state.jobs[name] = replace(placed, until_ms=until_ms)
        held = {lease: replace(one, until_ms=until_ms) for lease, one in state.leases.items() if one.job == name}
        state.leases.update(held)


def _waits_no_more(state: State, name: JobId) -> None:
    state.reservations.pop(name, None)
    for what in ("expires", "starves", "reserved"):
        state.due_ms.pop((what, name), None)


def _answers(gang: Gang, vacancy: Vacancy) -> bool:
    return (gang.generation, gang.attempt) == (vacancy.generation, vacancy.attempt)


def _home(state: State, spec: JobSpec, gang: Gang) -> str:
    """The domain of the required level that the gang is in; empty if its nodes need not be together.

    It is the node itself of which that domain is unknown: then nobody else is known to be near it.
    """
    if spec.interconnect in ("any", "nvlink"):
        return ""
    domains = [domains_of(state.places[grant.node]) for grant in gang.grants]
    # A node may have moved since the pass. The domain that the pass found may be narrower than required.
    has_moved = tightest(domains) != gang.domain
    domain = gang.domain if has_moved else shared(domains, spec.interconnect) or gang.domain
    return domain if is_within(domain, spec.interconnect) else node_domain(gang.grants[0].node)


def _end(state: State, name: JobId) -> None:
    """Leaves the queue at once. What the job holds stays held until its nodes are clear."""
    state.ended.add(name)
    state.jobs.pop(name, None)
    _waits_no_more(state, name)
    _reopen(state, name)


def _reopen(state: State, name: JobId) -> None:
    """Says whether the job has something to match, and that it changed; what it was told before is out of date."""
    match state.jobs.get(name):
        case Queued():
            state.open.add(name)
        case Placed() as placed if funded(placed):
            state.open.add(name)
        case _:
            state.open.discard(name)
    state.reasons.pop(name, None)
    state.changes += 1
