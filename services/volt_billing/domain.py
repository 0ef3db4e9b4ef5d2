"""How the log becomes billing's state. A job's states, and how they follow each other, are drawn in `states`.

Money moves by billing's own events alone; everybody else's only change what will be owed. `LOG` order decides: a gang
granted, or a cluster ready, later in the log than the end of its job counts for nothing.
"""

from collections.abc import Callable
from dataclasses import replace

from volt.contracts.bids import BidAccepted, BidRejected, BidWithdrawn, NodeDrainAccepted, NodeResumeAccepted
from volt.contracts.clusters import ClusterEvent, ClusterReleased
from volt.contracts.ids import JobId, NodeId
from volt.contracts.jobs import AccountOpened, CommandRejected, JobAdmitted, JobEvent, JobReleaseAccepted
from volt.contracts.ledger import AccountCredited, LedgerEvent, wallet
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.nodes import BeatsCovered
from volt_billing import books
from volt_billing.lives import Life
from volt_billing.looks import next_look
from volt_billing.metering import joined
from volt_billing.states import Closed, Closing, Held, JobState, Low, Metered, Offer, Requested, State, Terms, Unfunded
from volt_billing.transitions import JobMoney, changed, leased, over, paid


def evolve(state: State, entry: Entry) -> None:
    """Folds one event. Raises AssertionError where the ledger says what billing would not have said."""
    match entry.event:
        case AccountOpened(account=account):
            state.uncredited[account] = None
        case JobAdmitted(job=job) as admitted if job not in state.jobs:
            state.open_jobs[job] = len(state.jobs)
            _become(state, job, Requested(Terms.of(admitted)))
        case JobReleaseAccepted(job=job, at_ms=at_ms) | ClusterReleased(job=job, at_ms=at_ms):
            _step(state, job, lambda known: over(known, at_ms))
        case BidAccepted(node=node) as bid:
            models = {gpu.uuid: gpu.model for gpu in bid.gpus}
            asks = {model: bid.terms_of(model).ask_microusd_per_gpu_hour for model in set(models.values())}
            state.offers[node] = Offer(asks, models, is_open=True)
        case BidWithdrawn(node=node):
            _withdraw(state, node)
        case MarketCleared() as cleared:
            _clear(state, cleared)
        case ClusterEvent(job=job) as event:
            life = _life(event)
            _step(state, job, lambda known: changed(known, life))
        case BeatsCovered() as covered:
            _cover(state, covered)
        case LedgerEvent() as money:
            _account(state, money)
        case JobEvent() | CommandRejected() | BidRejected() | NodeDrainAccepted() | NodeResumeAccepted():
            pass
        case _:
            raise AssertionError(f"billing does not read {type(entry.event).__name__}")


def _step(state: State, job: JobId, step: Callable[[JobState], JobState]) -> None:
    if job in state.jobs:
        _become(state, job, step(state.jobs[job]))


def _become(state: State, job: JobId, following: JobState) -> None:
    state.jobs[job] = following
    if job in state.open_jobs:
        state.agenda.put(job, state.open_jobs[job], next_look(following))


def _withdraw(state: State, node: NodeId) -> None:
    if node in state.offers:
        state.offers[node] = replace(state.offers[node], is_open=False)


def _clear(state: State, cleared: MarketCleared) -> None:
    for gang in cleared.gangs:
        _grant(state, gang)
    for expired in cleared.expired:
        _step(state, expired.job, lambda known: over(known, cleared.at_ms))


def _grant(state: State, gang: Gang) -> None:
    known = state.jobs.get(gang.job)
    if not isinstance(known, Held | Metered | Low):
        return
    following = leased(known, gang)
    if following == known:
        return
    _become(state, gang.job, following)
    for grant in gang.grants:
        state.cover.setdefault(grant.lease, {})
        offer = state.offers.get(grant.node)
        for uuid in grant.gpus:
            if offer is not None and uuid in offer.models:
                state.last_prices_microusd[offer.models[uuid]] = gang.price_microusd_per_gpu_hour


def _life(event: ClusterEvent) -> Life:
    assert isinstance(event, Life), f"billing does not know {type(event).__name__}"
    return event


def _cover(state: State, event: BeatsCovered) -> None:
    """Adds to what is covered; below the watermark of before, nothing is added any more."""
    for span in event.spans:
        if (known := state.cover.get(span.lease)) is not None:
            from_ms = max(span.from_ms, state.complete_to_ms)
            known[span.generation] = joined(known.get(span.generation, ()), from_ms, span.to_ms)
    state.complete_to_ms = max(state.complete_to_ms, event.complete_to_ms)


def _account(state: State, event: LedgerEvent) -> None:
    if isinstance(event, AccountCredited):
        books.post(state, event, wallet(event.account))
        del state.uncredited[event.account]
        return
    assert isinstance(event, JobMoney), f"billing does not write {type(event).__name__}"
    job = event.job
    known = state.jobs[job]
    books.post(state, event, job)
    following = paid(known, event)
    _become(state, job, following)
    if isinstance(following, Closed | Unfunded):
        _forget(state, job, known)


def _forget(state: State, job: JobId, last: JobState) -> None:
    """Drops what only an open job needs. Nothing of it moves again, so its ids cannot come again either."""
    del state.open_jobs[job]
    state.agenda.drop(job)
    del state.transfer_ids[job]
    if isinstance(last, Closing):
        for lease in last.running.leases:
            del state.cover[lease]
