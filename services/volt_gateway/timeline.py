"""How the events of the log read in the story of one job. Nothing of anybody else's is told."""

from collections.abc import Iterator
from typing import NamedTuple

from volt.contracts import clusters, jobs, ledger
from volt.contracts.http import JobHappening
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Event
from volt.contracts.units import MS_PER_SECOND, format_usd


class Told(NamedTuple):
    """One sentence about a job, and the member it concerns, if it is one."""

    job: str
    message: str
    generation: int = 0
    lease: str = ""
    node: str = ""


def happenings(entry: Entry) -> Iterator[tuple[str, JobHappening]]:
    """What an event means to each job that it is about, once for each."""
    told: dict[str, Told] = {}
    for one in _told(entry.event):
        before = told.get(one.job)
        told[one.job] = one if before is None else before._replace(message=f"{before.message}; {one.message}")
    for job, one in told.items():
        yield (
            job,
            JobHappening(
                seq=entry.seq,
                at_ms=entry.at_ms,
                event=type(entry.event).__name__,
                message=one.message,
                generation=one.generation,
                lease=one.lease,
                node=one.node,
            ),
        )


def loss_words(event: clusters.MemberLost) -> str:
    """What happened to a member, with what its node said of it."""
    return f"lost {event.node}: {event.cause}" + (f" ({event.detail})" if event.detail else "")


def _told(event: Event) -> Iterator[Told]:
    match event:
        case MarketCleared():
            for gang in event.gangs:
                yield Told(gang.job, _granted(gang), gang.generation)
            for waiting in event.waiting:
                yield Told(waiting.job, f"waiting: {waiting.message}")
            for kept in event.reservations:
                gpus = sum(lot.gpus for lot in kept.lots)
                yield Told(
                    kept.job,
                    f"{_counted(gpus, 'GPU')} on {_counted(len(kept.lots), 'node')} are kept for it as they free up",
                )
            for expired in event.expired:
                yield Told(expired.job, "expired: no gang came in the time that it would wait")
        case jobs.QuoteAdmitted() | jobs.QuoteRejected():
            return
        case jobs.JobEvent():
            yield Told(event.job, _of_request(event))
        case clusters.CheckpointStored():
            return  # One of each rank and step would push out what else happened; the commit tells of all.
        case clusters.ClusterEvent():
            yield _of_cluster(event)
        case ledger.LedgerEvent():
            yield from _of_money(event)


def _granted(gang: Gang) -> str:
    gpus = sum(len(grant.gpus) for grant in gang.grants)
    nodes = ", ".join(grant.node for grant in gang.grants)
    return f"granted {_counted(gpus, 'GPU')} on {nodes} at ${_usd(gang.price_microusd_per_gpu_hour)} per GPU-hour"


def _of_request(event: jobs.JobEvent) -> str:
    match event:
        case jobs.JobAdmitted(spec=spec):
            nodes = f" on {_counted(spec.shapes[0].nodes, 'node')}" if len(spec.shapes) == 1 else ""
            return f"admitted: {spec.gpus} x {' or '.join(spec.models)}{nodes}"
        case jobs.JobRejected(reason=reason):
            return f"refused: {reason.message}"
        case jobs.JobReleaseAccepted():
            return "release accepted; the bill stops here"
        case jobs.JobScaleAccepted(nodes=nodes):
            return f"to be scaled to {_counted(nodes, 'node')}"
        case jobs.JobScaleRejected(reason=reason):
            return f"not scaled: {reason.message}"
        case _:
            raise AssertionError(f"no words for {type(event).__name__}")


def _of_cluster(event: clusters.ClusterEvent) -> Told:
    """The sentence about a cluster's event, with the member that it names."""
    lease: str = getattr(event, "lease", None) or ""
    node: str = getattr(event, "node", "")
    if isinstance(event, clusters.MemberJoined):
        lease, node = event.member.lease, event.member.node
    return Told(event.job, _cluster_words(event), event.generation, lease, node)


def _cluster_words(event: clusters.ClusterEvent) -> str:
    match event:
        case clusters.ClusterForming(members=members, replaces=replaces, shrunk=shrunk):
            kept = f"forming with {_counted(len(members), 'node')}"
            kept += f", without {', '.join(shrunk)}" if shrunk else ""
            return f"{kept}, replacing {', '.join(replaces)}" if replaces else kept
        case clusters.MembersWanted(wanted=wanted):
            return f"wants nodes for ranks {', '.join(str(one.rank) for one in wanted)}"
        case clusters.ClusterStarting(manifest=manifest):
            return f"starting {_counted(manifest.world_size, 'process', 'es')}"
        case clusters.ClusterReady():
            return "ready; it is billed from here"
        case clusters.GrowthGivenUp(ranks=ranks, cause=cause, detail=detail):
            why = f" ({detail})" if detail else ""
            return f"gives up growing by ranks {', '.join(map(str, ranks))}: {cause}{why}"
        case clusters.GenerationEnded():
            return f"the generation ends{_end_words(event)} and is billed no further"
        case clusters.CheckpointCommitted(checkpoint=checkpoint):
            return f"checkpoint of step {checkpoint.step} committed by {_counted(len(checkpoint.parts), 'rank')}"
        case clusters.RetryPlanned(retry=retry, detail=detail, begins_ms=begins_ms, at_ms=at_ms):
            wait = f"{(begins_ms - at_ms) / MS_PER_SECOND:.0f} s"
            return f"retry {retry} in {wait}, with the same nodes, which cost nothing until then: {detail}"
        case clusters.ClusterReleased(reason=reason, first_cause=cause):
            return f"released: {reason}" + (f" ({cause})" if cause else "")
        case _:
            return _member_words(event)


def _end_words(event: clusters.GenerationEnded) -> str:
    match event.cause:
        case "growth":
            return " to grow,"
        case "shrink":
            return f" to shrink, without {', '.join(event.leaves)},"
        case "drain":
            return f" to leave {_counted(len(event.drains), 'drained node')},"
        case "trouble":
            return ""


def _member_words(event: clusters.ClusterEvent) -> str:
    match event:
        case clusters.MemberJoined(member=member):
            return f"{member.node} joins as rank {member.rank}"
        case clusters.MemberPrepared(address=address):
            return f"prepared, at {address}"
        case clusters.MemberStarted():
            return "started"
        case clusters.LeaseResumed(node=node):
            return f"{node} was cut off, froze and goes on; the time between is not billed"
        case clusters.MemberEnded(exits=exits):
            return f"ended: {', '.join(_exit(one) for one in exits) or 'nobody saw how'}"
        case clusters.MemberLost():
            return loss_words(event)
        case clusters.MemberDropped(node=node, cause=cause, detail=detail):
            return f"{node} does not join: {cause}" + (f" ({detail})" if detail else "")
        case clusters.LeaseCleared(node=node):
            return f"{node} is clear"
        case _:
            raise AssertionError(f"no words for {type(event).__name__}")


def _of_money(event: ledger.LedgerEvent) -> Iterator[Told]:
    match event:
        case ledger.JobFunded(job=job, cap_microusd_per_gpu_hour=cap_microusd, transfers=transfers):
            held = sum(one.amount_microusd for one in transfers)
            yield Told(job, f"funded: ${_usd(held)} on hold; the cap is ${_usd(cap_microusd)} per GPU-hour")
        case ledger.JobUnfunded(job=job, needed_microusd=needed, balance_microusd=balance):
            yield Told(job, f"not funded: needs ${_usd(needed)} on hold, the wallet has ${_usd(balance)}")
        case ledger.MembersFunded(job=job, generation=generation):
            yield Told(job, "the wanted nodes are funded", generation)
        case ledger.HoldAdjusted(job=job, transfers=transfers):
            for one in transfers:
                held = one.credit == ledger.hold(job)
                yield Told(
                    job, f"${_usd(one.amount_microusd)} {'more is on hold' if held else 'of the hold went back'}"
                )
        case ledger.FundsLow(job=job):
            yield Told(job, "funds are low: the hold cannot be renewed in full")
        case ledger.FundsExhausted(job=job):
            yield Told(job, "funds are exhausted")
        case ledger.ChargesPosted(job=job):
            yield Told(job, f"charged ${_usd(_charged(event, job))}")
        case ledger.JobClosed(job=job):
            yield Told(job, f"closed; charged ${_usd(_charged(event, job))} at last, and the hold has ended")
        case ledger.AccountCredited():
            return
        case _:
            raise AssertionError(f"no words for {type(event).__name__}")


def _exit(one: clusters.Exit) -> str:
    if one.signal is not None:
        how = f"signal {one.signal}"
    else:
        how = "code unknown" if one.code is None else f"code {one.code}"
    return f"process {one.local_rank} {how}" + (", out of memory" if one.out_of_memory else "")


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def _charged(event: ledger.LedgerEvent, job: str) -> int:
    """What left the hold for good: all but what went back to the wallet."""
    back = ledger.wallet(event.account)
    return sum(one.amount_microusd for one in event.transfers if one.debit == ledger.hold(job) and one.credit != back)


def _usd(amount_microusd: int) -> str:
    return format_usd(amount_microusd, 4)
