"""What an agent tells the provisioner of a lease, made from what it has of it."""

from typing import TypedDict

from volt.contracts.clusters import BeatId
from volt.contracts.nodes import (
    FailureStage,
    Report,
    ReportEnded,
    ReportFailed,
    ReportFrozen,
    ReportPrepared,
    ReportStarted,
)
from volt_agent.domain import Finished, Frozen, Prepared, Running


class Whose(TypedDict):
    """What every report says first."""

    account: str
    node: str
    lease: str
    generation: int


def report_of(
    local: Prepared | Running | Frozen | Finished, account: str, node: str, lease: str, beat: BeatId
) -> Report:
    """The report of a state; `beat` is the last that is stored."""
    whose = Whose(account=account, node=node, lease=lease, generation=local.generation)
    match local:
        case Prepared(address=address, port=port, beat=before):
            return ReportPrepared(**whose, address=address, port=port, beat=before)
        case Running():
            return ReportStarted(**whose)
        case Frozen(freeze=freeze):
            return ReportFrozen(**whose, freeze=freeze, beat=beat)
        case Finished(failure=failure) if failure:
            stage: FailureStage = "start" if local.failed_start else "prepare"
            return ReportFailed(**whose, stage=stage, message=failure)
        case Finished(exits=exits):
            return ReportEnded(**whose, exits=exits)
