"""Agents that do what they are told, one report at a time, and the reports that any agent could send."""

from dataclasses import dataclass

from tests.unit.provisioner.world import provider_of
from volt.contracts.clusters import Exit
from volt.contracts.nodes import (
    DesiredLease,
    FailureStage,
    Report,
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportPrepared,
    ReportStarted,
)


@dataclass(frozen=True)
class Local:
    """What a well-behaved agent has of a lease: the generation, and whether it is prepared, running or ended."""

    generation: int
    state: str


def step(local: Local | None, desired: DesiredLease) -> tuple[type[Report] | None, int, Local | None]:
    """What a good agent reports next, of which generation, and what it has then."""
    generation, phase = desired.generation, desired.phase
    if local is not None and local.state != "ended" and (local.generation < generation or phase in ("halt", "stop")):
        return ReportEnded, local.generation, Local(local.generation, "ended")
    match phase, local:
        case "stop", _:
            return ReportCleared, generation, None
        case "prepare", None | Local(state="ended"):
            return ReportPrepared, generation, Local(generation, "prepared")
        case "start", Local(state="prepared"):
            return ReportStarted, generation, Local(generation, "running")
        case "start" | "halt", None:
            return ReportEnded, generation, Local(generation, "ended")
        case _:
            return None, generation, local


def report_of(kind: type[Report], node: str, lease: str, generation: int, ended: tuple[Exit, ...]) -> Report:
    account = provider_of(node)
    if kind is ReportPrepared:
        return ReportPrepared(
            account=account, node=node, lease=lease, generation=generation, address="10.0.0.1", port=29_500
        )
    if kind is ReportFailed:
        stage: FailureStage = "start" if ended else "prepare"
        return ReportFailed(account=account, node=node, lease=lease, generation=generation, stage=stage, message="no")
    if kind is ReportEnded:
        return ReportEnded(account=account, node=node, lease=lease, generation=generation, exits=ended)
    if kind is ReportCheckpoint:
        return checkpoint_of(node, lease, generation, step=7)
    return kind(account=account, node=node, lease=lease, generation=generation)


def checkpoint_of(node: str, lease: str, generation: int, step: int) -> ReportCheckpoint:
    """A part that says in its digest which generation stored it."""
    return ReportCheckpoint(
        account=provider_of(node),
        node=node,
        lease=lease,
        generation=generation,
        step=step,
        manifest=f"{generation:064x}",
        size_bytes=1,
    )
