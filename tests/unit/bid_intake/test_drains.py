"""Which drains are accepted, and how often each is answered."""

import pytest

from tests.unit.bid_intake.build import AT_MS, Intake, bid, folded, withdraw
from volt.contracts.bids import DRAIN_REASON_CHARS_MAX, DRAIN_SECONDS_MAX, DrainNode, NodeDrainAccepted, ResumeNode
from volt.contracts.errors import Refused
from volt.contracts.jobs import CommandRejected
from volt.contracts.messages import Event


@pytest.fixture
def intake() -> Intake:
    intake = Intake("lab", "rival")
    intake.ask(bid())
    return intake


def drain(
    *, account: str = "lab", node: str = "n1", request_id: str = "d1", seconds: int = 60, reason: str = "new disks"
) -> DrainNode:
    return DrainNode(account=account, node=node, request_id=request_id, reason=reason, deadline_seconds=seconds)


def resume(*, account: str = "lab", node: str = "n1", request_id: str = "e1") -> ResumeNode:
    return ResumeNode(account=account, node=node, request_id=request_id)


def refusal(event: Event) -> str:
    assert isinstance(event, CommandRejected)
    return event.reason.code


def test_a_drain_counts_its_deadline_from_when_it_is_answered(intake: Intake) -> None:
    accepted = intake.answers(drain())
    assert isinstance(accepted, NodeDrainAccepted)
    assert accepted.reason == "new disks"
    assert accepted.deadline_ms - accepted.at_ms == 60_000
    assert accepted.at_ms > AT_MS


def test_the_same_request_is_answered_once_and_comes_late_for_nothing(intake: Intake) -> None:
    assert intake.ask(drain())
    assert intake.ask(drain()) == ()
    assert intake.ask(resume())
    assert intake.ask(resume()) == ()
    assert intake.ask(drain()) == (), "it does not drain the node again"
    assert folded(intake.log) == intake.state


def test_one_id_stands_for_one_request_about_a_node(intake: Intake) -> None:
    intake.ask(drain(request_id="same"))
    assert refusal(intake.answers(drain(request_id="same", seconds=61))) == "request_id_reused"
    assert refusal(intake.answers(resume(request_id="same"))) == "request_id_reused"
    assert refusal(intake.answers(withdraw(request_id="same"))) == "request_id_reused"


@pytest.mark.parametrize("command", [drain(account="rival"), drain(node="n9"), resume(account="rival")])
def test_only_the_nodes_own_account_drains_it(intake: Intake, command: DrainNode | ResumeNode) -> None:
    assert refusal(intake.answers(command)) == "not_found"
    assert intake.ask(drain(request_id="d2")), "and what others asked does not stand in its way"


def test_a_stranger_without_an_account_is_told_by_a_person(intake: Intake) -> None:
    with pytest.raises(Refused):
        intake.ask(drain(account="nobody"))


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (drain(seconds=-1), "deadline_out_of_range"),
        (drain(seconds=DRAIN_SECONDS_MAX + 1), "deadline_out_of_range"),
        (drain(reason="x" * (DRAIN_REASON_CHARS_MAX + 1)), "reason_too_long"),
    ],
)
def test_what_is_out_of_its_bounds_is_refused(intake: Intake, command: DrainNode, code: str) -> None:
    assert refusal(intake.answers(command)) == code


def test_a_withdrawn_node_can_be_drained_and_a_drained_one_bids_on(intake: Intake) -> None:
    intake.ask(withdraw())
    assert isinstance(intake.answers(drain(seconds=0)), NodeDrainAccepted)
    assert intake.ask(bid(request_id="b2"))
