"""A job as people see it, moved by the events of five writers whose order only `LOG` decides.

    admitted ─JobFunded▶ funded ─Waiting▶ waiting ─Gang▶ preparing ─ClusterReady▶ ready
        │                  └───────────────Gang────────────▲
        └─JobUnfunded▶ unfunded
    ready ─GenerationEnded▶ recovering ─ClusterReady▶ ready
      ├───GenerationEnded, to grow or shrink▶ scaling ─ClusterReady▶ ready
      └───GenerationEnded, for a drained node▶ moving ─ClusterReady▶ ready

    any of these but unfunded ─JobReleaseAccepted, ClusterReleased▶ released ─JobClosed▶ closed
    funded, waiting ─Expired▶ expired ─JobClosed▶ closed
    rejected: the request was refused, there is no job

A cluster that was never ready goes on preparing when its generation ends. What comes after the end of a job is
remembered (the first cause, the bill) and changes its state only to closed. A ready cluster may have members that are
not a part of it yet: those by which it grows.
"""

from collections.abc import Collection

from msgspec.structs import replace

from volt.contracts import clusters, jobs, ledger
from volt.contracts.errors import Reason
from volt.contracts.http import CHECKPOINTS_PER_JOB_MAX, JobShape, JobState, MemberState
from volt.contracts.market import Gang, Waiting
from volt.contracts.units import format_usd
from volt_gateway.entities import JOBS_ENDED, Checkpoint, Job, Member
from volt_gateway.timeline import loss_words

REFUSED_PER_JOB_MAX = 4
_CHANGING: dict[clusters.EndCause, JobState] = {
    "trouble": "recovering",
    "growth": "scaling",
    "shrink": "scaling",
    "drain": "moving",
}
"""What a ready cluster is while its next generation forms, by why the last one ended."""
STORED_STEPS_MAX = 16


def requested(event: jobs.JobAdmitted | jobs.JobRejected, seq: int) -> Job:
    """The job that the first answer to its request makes."""
    admitted = isinstance(event, jobs.JobAdmitted)
    return Job(
        job=event.job,
        account=event.account,
        request_id=event.request_id,
        request_digest=event.request_digest,
        seq=seq,
        state="admitted" if admitted else "rejected",
        requested_at_ms=event.at_ms,
        shape=_shape(event.spec) if isinstance(event, jobs.JobAdmitted) else None,
        reason=event.reason if isinstance(event, jobs.JobRejected) else None,
    )


def refused(job: Job, event: jobs.JobRejected) -> Job:
    """Another request came under the same id. The job stays as it is."""
    return replace(job, refused=(*job.refused, (event.request_digest, event.reason))[-REFUSED_PER_JOB_MAX:])


def release_accepted(job: Job, event: jobs.JobReleaseAccepted) -> Job:
    return replace(job, state=_unless_ended(job, "released"), release_accepted_at_ms=event.at_ms, waiting=None)


def expired(job: Job) -> Job:
    """It waited for as long as it would."""
    return replace(job, state="expired", first_cause="no cluster came in the time that it would wait")


def scaling_answered(job: Job, event: jobs.JobScaleAccepted | jobs.JobScaleRejected) -> Job:
    """The answer to a wish for another size; the last few are kept, each with the reason of a refusal."""
    match event:
        case jobs.JobScaleAccepted(nodes=nodes):
            job, reason = replace(job, nodes_wanted=nodes), None
        case jobs.JobScaleRejected(reason=reason):
            pass
    return replace(job, scalings=(*job.scalings, (event.request_digest, reason))[-REFUSED_PER_JOB_MAX:])


def kept_waiting(job: Job, waiting: Waiting) -> Job:
    state: JobState = "waiting" if job.state == "funded" else job.state
    return replace(job, state=state, waiting=waiting)


def granted(job: Job, gang: Gang, at_ms: int) -> Job:
    """A gang that counts: the job's first, or new members of a later generation."""
    price_microusd = gang.price_microusd_per_gpu_hour
    members = job.members
    for grant in gang.grants:
        member = Member(
            lease=grant.lease,
            rank=grant.rank,
            node=grant.node,
            provider=grant.provider,
            gpus=grant.gpus,
            price_microusd_per_gpu_hour=price_microusd,
            state="granted",
        )
        members = _with_member(members, member)
    job = replace(job, members=members, waiting=None)
    if job.granted_at_ms is not None:
        return job
    return replace(job, state="preparing", granted_at_ms=at_ms, price_microusd_per_gpu_hour=price_microusd)


def clustered(job: Job, event: clusters.ClusterEvent) -> Job:
    """The job after an event of its cluster. What an older generation still says does not concern the present one."""
    match event:
        case clusters.ClusterForming(generation=generation, members=members, replaces=replaces):
            is_planned = job.state in ("scaling", "moving") and not (replaces or event.shrunk)
            state = job.state if is_planned else _unless_ended(job, _forming(job))
            return replace(
                job,
                state=state,
                generation=generation,
                members=tuple(_formed(job, m) for m in members),
                retry_at_ms=None,
                nodes_wanted=None if event.shrunk else job.nodes_wanted,
                stored={},
            )
        case clusters.ClusterReady(at_ms=at_ms):
            running = tuple(m if m.state in ("ended", "cleared") else replace(m, state="started") for m in job.members)
            first_ms = at_ms if job.ready_at_ms is None else job.ready_at_ms
            state = _unless_ended(job, "ready")
            return replace(
                job, state=state, ready_at_ms=first_ms, members=running, waiting=None, first_cause=_unless_over(job)
            )
        case clusters.GenerationEnded(generation=job.generation, cause=cause, leaves=leaves):
            return _generation_ended(job, cause, leaves)
        case clusters.CheckpointCommitted(checkpoint=checkpoint, at_ms=at_ms):
            committed = Checkpoint(
                step=checkpoint.step,
                generation=checkpoint.generation,
                at_ms=at_ms,
                ranks=len(checkpoint.parts),
                size_bytes=sum(part.size_bytes for part in checkpoint.parts),
            )
            return replace(
                job,
                checkpoints=(*job.checkpoints, committed)[-CHECKPOINTS_PER_JOB_MAX:],
                stored={step: ranks for step, ranks in job.stored.items() if step > checkpoint.step},
            )
        case clusters.CheckpointStored(generation=job.generation, step=step, part=part):
            stored = {**job.stored, step: tuple(sorted({*job.stored.get(step, ()), part.rank}))}
            return replace(job, stored={one: stored[one] for one in sorted(stored)[-STORED_STEPS_MAX:]})
        case clusters.RetryPlanned(generation=job.generation, detail=detail, begins_ms=begins_ms):
            return replace(job, first_cause=detail, retry_at_ms=begins_ms)
        case clusters.ClusterReleased():
            return replace(
                job,
                state=_unless_ended(job, "released"),
                waiting=None,
                released_at_ms=event.at_ms,
                release_reason=event.reason,
                exit_code=event.exit_code,
                first_cause=event.first_cause,
            )
        case _:
            return _with_members(job, event)


def paid(job: Job, event: ledger.LedgerEvent) -> Job:
    """The job after an event of the ledger that is about it."""
    match event:
        case ledger.JobFunded(cap_microusd_per_gpu_hour=cap_microusd):
            state: JobState = "funded" if job.state == "admitted" else job.state
            return replace(job, state=state, cap_microusd_per_gpu_hour=cap_microusd)
        case ledger.JobUnfunded():
            return replace(job, state=_unless_ended(job, "unfunded"), reason=_unfunded(event))
        case ledger.HoldAdjusted(covers_to_ms=covers_to_ms):
            return replace(job, covers_to_ms=covers_to_ms)
        case ledger.FundsLow(exhausted_at_ms=exhausted_at_ms):
            return replace(job, covers_to_ms=exhausted_at_ms)
        case ledger.FundsExhausted(exhausted_at_ms=exhausted_at_ms):
            return replace(job, exhausted_at_ms=exhausted_at_ms)
        case ledger.ChargesPosted(lines=lines):
            return replace(job, bill=_merged(job.bill, lines))
        case ledger.JobClosed(lines=lines, at_ms=at_ms):
            return replace(job, state="closed", closed_at_ms=at_ms, waiting=None, bill=_merged(job.bill, lines))
        case _:
            return job


def _with_members(job: Job, event: clusters.ClusterEvent) -> Job:
    """The job after an event about some of its members."""
    match event:
        case clusters.MemberJoined(member=member):
            return replace(job, members=_with_member(job.members, _preparing(member)))
        case clusters.MemberPrepared(lease=lease, address=address, generation=generation):
            is_told = generation in (job.generation, job.generation + 1)  # The next one is that of whom it grows by.
            return _with_state(job, lease, "prepared", address) if is_told else job
        case clusters.MemberStarted(lease=lease, generation=job.generation):
            return _with_state(job, lease, "started")
        case clusters.MemberEnded(lease=lease, generation=job.generation):
            return _with_state(job, lease, "ended")
        case clusters.MemberLost(lease=lease):
            return replace(_without(job, (lease,)), first_cause=job.first_cause or loss_words(event))
        case clusters.MemberDropped(lease=lease):
            return _without(job, (lease,))
        case clusters.GrowthGivenUp(leases=leases, cause=cause):
            return replace(_without(job, leases), nodes_wanted=None if cause == "failed" else job.nodes_wanted)
        case clusters.LeaseCleared(lease=lease):
            return _with_state(job, lease, "cleared")
        case _:
            return job


def _unless_ended(job: Job, state: JobState) -> JobState:
    return job.state if job.state in JOBS_ENDED else state


def _unless_over(job: Job) -> str:
    """What a cluster that is ready again went through is history; what ended it stays."""
    return job.first_cause if job.state in JOBS_ENDED else ""


def _forming(job: Job) -> JobState:
    return "preparing" if job.ready_at_ms is None else "recovering"


def _generation_ended(job: Job, cause: clusters.EndCause, leaves: tuple[str, ...]) -> Job:
    """Who is prepared beside a generation that was ready is so for the next one; of any other it is of no use."""
    if job.state != "ready":
        members = tuple(replace(one, state="preparing") if one.state == "prepared" else one for one in job.members)
        return replace(job, state=_unless_ended(job, _forming(job)), members=members)
    return replace(_without(job, leaves), state=_CHANGING[cause])


def _formed(job: Job, member: clusters.Member) -> Member:
    """A member of a new generation; one by which the cluster grew is prepared already."""
    known = next((one for one in job.members if one.lease == member.lease and one.state == "prepared"), None)
    return _preparing(member) if known is None else replace(known, rank=member.rank)


def _without(job: Job, leases: Collection[str]) -> Job:
    return replace(job, members=tuple(one for one in job.members if one.lease not in leases))


def _preparing(member: clusters.Member) -> Member:
    return Member(
        lease=member.lease,
        rank=member.rank,
        node=member.node,
        provider=member.provider,
        gpus=member.gpus,
        price_microusd_per_gpu_hour=member.price_microusd_per_gpu_hour,
        state="preparing",
    )


def _with_member(members: tuple[Member, ...], member: Member) -> tuple[Member, ...]:
    others = [one for one in members if one.lease != member.lease]
    return tuple(sorted([*others, member], key=lambda one: (one.rank, one.lease)))


def _with_state(job: Job, lease: str, state: MemberState, address: str = "") -> Job:
    members = tuple(
        replace(one, state=state, address=address or one.address) if one.lease == lease else one for one in job.members
    )
    return replace(job, members=members)


def _merged(bill: tuple[ledger.BillLine, ...], lines: tuple[ledger.BillLine, ...]) -> tuple[ledger.BillLine, ...]:
    by_lease = {line.lease: line for line in bill} | {line.lease: line for line in lines}
    return tuple(by_lease.values())


def _unfunded(event: ledger.JobUnfunded) -> Reason:
    needed, balance = format_usd(event.needed_microusd, 2), format_usd(event.balance_microusd, 2)
    message = f"the first hour needs ${needed} on hold and the wallet has ${balance}; add funds or ask for less"
    return Reason(code="insufficient_funds", message=message, field="wallet", seen=balance)


def _shape(spec: jobs.JobSpec) -> JobShape:
    cap_microusd = spec.max_price_microusd_per_gpu_hour
    return JobShape(
        models=spec.models,
        gpus=spec.gpus,
        nodes=spec.shapes[0].nodes if len(spec.shapes) == 1 else None,
        kind=spec.workload.kind,
        command=spec.workload.command,
        processes_per_node=spec.workload.processes_per_node,
        image=spec.workload.image,
        on_loss=spec.recovery.on_loss,
        min_nodes=spec.recovery.min_nodes,
        retries=spec.recovery.retries,
        env_names=tuple(sorted(spec.workload.env)),
        interconnect=spec.interconnect,
        preferred_interconnect=spec.preferred_interconnect,
        preference_percent=spec.preference_percent,
        min_bandwidth_gbps=spec.min_bandwidth_gbps,
        interface=spec.interface,
        regions=spec.regions,
        regions_denied=spec.regions_denied,
        countries=spec.countries,
        countries_denied=spec.countries_denied,
        min_memory_mib=spec.min_memory_mib,
        min_reliability_permille=spec.min_reliability_permille,
        tier=spec.tier,
        providers_excluded=spec.providers_excluded,
        max_wait_seconds=spec.max_wait_seconds,
        max_price_usd_per_gpu_hour=None if cap_microusd is None else format_usd(cap_microusd),
        max_duration_seconds=spec.max_duration_seconds,
    )
