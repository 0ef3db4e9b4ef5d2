"""Why a cluster ends: exits read as a shell reads them, and the first cause told in a sentence."""

from collections.abc import Sequence

from volt.contracts.clusters import DropCause, Exit, LossCause, Member, RetryCause
from volt.contracts.ids import LeaseId
from volt.contracts.jobs import OnLoss
from volt_provisioner.crew import Growth, Loss, Setback, Vacant
from volt_provisioner.states import Forming, Granted, Life, Open, Running, Starting, Stopping, Verdict, movers

RETRY_MS_MIN = 1_000
RETRY_MS_MAX = 300_000
"""How long a workload that has failed waits to begin again: each time twice as long, from the one to the other."""
RESTARTS_MAX = 3
"""Restarts without progress, which is a newer committed checkpoint."""
EXIT_OF_SIGNAL = 128
"""A shell says 128 + n of a process that signal n ended."""
ENDING_SIGNALS = frozenset({2, 9, 15})
"""INT, KILL and TERM: how a process ends whose neighbour failed."""

BLAMELESS: frozenset[LossCause] = frozenset({"node_lost", "gpu_fault", "drained"})
"""Losses that say nothing of how well the workload and the node do."""

_LOSSES: dict[LossCause, str] = {
    "node_lost": "the node was lost",
    "gpu_fault": "a GPU of the node failed",
    "prepare_failed": "the node could not prepare",
    "prepare_overdue": "the node was not prepared in time",
    "start_failed": "the node could not start its processes",
    "start_overdue": "the node did not start its processes in time",
    "halt_overdue": "the node did not end its processes in time",
    "drained": "the node was drained, and no other had taken its place in time",
}


def succeeded(exits: Sequence[Exit]) -> bool:
    """Whether every process was seen to exit with 0."""
    return bool(exits) and all(one.code == 0 for one in exits)


def loss_sentence(loss: Loss) -> str:
    return member_sentence(loss.member, loss.cause, loss.detail)


def member_sentence(member: Member, cause: LossCause | DropCause, detail: str) -> str:
    """What happened to a member."""
    return f"rank {member.rank} on node {member.node}: {_LOSSES[cause]}" + (f": {detail}" if detail else "")


def verdict_of(cluster: Open) -> Verdict | None:
    """How the cluster ends, once its state says so; a loss that is in the log already is recorded first."""
    match cluster:
        case Granted():
            return None
        case _ if cluster.life.doomed:
            return None
        case Forming():
            return _verdict_of_forming(cluster)
        case Starting() | Running():
            return _verdict_of_running(cluster)
        case Stopping():
            return _verdict_of_stopping(cluster)


def _verdict_of_forming(cluster: Forming) -> Verdict | None:
    """The end of a cluster one of whose ranks no node can prepare, or that does not go on without what it has lost."""
    vacant = [rank for rank, seat in cluster.seats.items() if isinstance(seat, Vacant)]
    if vacant and not goes_on(cluster.life, len(cluster.seats) - len(vacant)):
        return Verdict("member_lost", first_cause=cluster.life.first_cause or cluster.setbacks[vacant[0]].cause)
    if all(setback.failures <= RESTARTS_MAX for setback in cluster.setbacks.values()):
        return None
    return Verdict("restarts_exhausted", first_cause=cluster.life.first_cause)


def _verdict_of_running(cluster: Starting | Running) -> Verdict | None:
    """The end of a cluster whose every member has exited 0."""
    crew = cluster.crew
    is_done = crew.trouble is None and len(crew.ended) == len(crew.members)
    return Verdict("completed", exit_code=0) if is_done else None


def _verdict_of_stopping(cluster: Stopping) -> Verdict | None:
    """How an ended generation ends the cluster, once that can be said; None too if it is to form again.

    A loss is the first cause when there is one, or else a workload gone without an exit that anybody saw; both are
    answered by a new generation, within the bound of `RESTARTS_MAX`.
    """
    life, crew = cluster.life, cluster.crew
    if not is_decided(cluster) or (cluster.culprit is None and not crew.lost):
        return None
    cause = restart_cause(cluster)
    if cause is None:
        assert cluster.culprit is not None, "only trouble is without a cause to restart for"
        if cluster.retry_at_ms is not None or can_retry(cluster):
            return None
        exits = crew.ended[cluster.culprit]
        return Verdict("workload_failed", exit_code(exits), exit_sentence(crew.members[cluster.culprit], exits))
    staying = crew.members.keys() - cluster.left_out - {*undrained(cluster)}
    if crew.lost and not goes_on(life, len(staying)):
        return Verdict("member_lost", first_cause=life.first_cause or cause)
    if is_restart(cluster) and life.restarts >= RESTARTS_MAX:
        return Verdict("restarts_exhausted", first_cause=life.first_cause or cause)
    return None


def can_retry(cluster: Stopping) -> bool:
    """Whether all of an ended generation is there, its workload has failed, and its job would have it begin again."""
    is_failed = cluster.culprit is not None and is_decided(cluster) and restart_cause(cluster) is None
    return is_failed and cluster.retry_at_ms is None and cluster.life.retries < cluster.life.job.spec.recovery.retries


def retry_cause(exits: Sequence[Exit]) -> RetryCause:
    return "out_of_memory" if _culprit(exits).out_of_memory else "workload_failed"


def no_replacement(setback: Setback) -> Verdict:
    """The end of a cluster whose vacancy nobody filled."""
    return Verdict("no_replacement", first_cause=f"{setback.cause}, and no other node took its place in time")


def is_decided(cluster: Stopping) -> bool:
    """Whether it can be said what comes after this generation. One that was ended on purpose is waited for too: what
    its members store last is where the next one begins."""
    crew = cluster.crew
    return bool(crew.lost) or len(crew.ended) == len(crew.members)


def policy_of(life: Life) -> OnLoss:
    """What becomes of a loss. A cluster that was never ready is completed first."""
    return "replace" if life.ready_ms is None else life.job.spec.recovery.on_loss


def goes_on(life: Life, nodes: int) -> bool:
    """Whether the cluster goes on after a loss that leaves it so many nodes."""
    policy = policy_of(life)
    return policy == "replace" or (policy == "shrink" and nodes >= max(1, life.job.spec.recovery.min_nodes))


def undrained(cluster: Stopping) -> tuple[LeaseId, ...]:
    """The members that have to leave their nodes now, and whose ranks nobody takes."""
    if cluster.cause != "drain":
        return ()
    moving = {member.lease for member in movers(cluster)[: len(stand_ins(cluster))]}
    drained = cluster.leavers & cluster.life.drains.keys()
    return tuple(lease for lease in cluster.crew.members if lease in drained and lease not in moving)


def stand_ins(cluster: Stopping) -> list[Member]:
    """Who can join the next generation: prepared for it, on a node that is not known to be lost."""
    return [seat.member for seat in cluster.growth.prepared if seat.member.lease not in cluster.life.doomed]


def is_restart(cluster: Stopping) -> bool:
    """Whether a new generation after this one counts as a restart: neither a lost node or GPU nor the buyer's wish for
    another size is a fault of the workload's, and what a buyer would have retried is counted by itself."""
    lost = cluster.crew.lost
    if lost:
        return all(loss.cause not in BLAMELESS for loss in lost)
    return cluster.culprit is not None and cluster.retry_at_ms is None


def has_failed(growth: Growth) -> bool:
    """Whether the cluster cannot grow, since there is a rank for which no node can prepare."""
    return any(failures > RESTARTS_MAX for failures in growth.failures.values())


def restart_cause(cluster: Stopping) -> str | None:
    """What a new generation is for, or None if the workload itself has failed.

    A member that had not started and was told to end has nothing that could have vanished.
    """
    crew = cluster.crew
    if crew.lost:
        loss = next((loss for loss in crew.lost if loss.member.lease == cluster.culprit), crew.lost[0])
        return loss_sentence(loss)
    for lease, exits in crew.ended.items():
        if _unseen(exits) and (lease in crew.started or lease == cluster.culprit):
            member = crew.members[lease]
            return f"rank {member.rank} on node {member.node}: its processes were gone and nobody saw them end"
    return None


def exit_code(exits: Sequence[Exit]) -> int | None:
    """The exit code of a failed member, which is its culprit's."""
    culprit = _culprit(exits)
    return EXIT_OF_SIGNAL + culprit.signal if culprit.signal is not None else culprit.code


def exit_sentence(member: Member, exits: Sequence[Exit]) -> str:
    culprit = _culprit(exits)
    how = f"was killed by signal {culprit.signal}" if culprit.signal is not None else f"exited with {culprit.code}"
    memory = ", out of memory" if culprit.out_of_memory else ""
    return f"rank {member.rank} on node {member.node}: process {culprit.local_rank} {how}{memory}"


def _culprit(exits: Sequence[Exit]) -> Exit:
    """The process that failed first, as far as exits tell: out of memory, then by itself, then in their order."""
    failed = [one for one in exits if one.code != 0]
    return min(failed, key=lambda one: (not one.out_of_memory, one.code is None and one.signal in ENDING_SIGNALS))


def _unseen(exits: Sequence[Exit]) -> bool:
    return not exits or any(one.code is None and one.signal is None for one in exits)
