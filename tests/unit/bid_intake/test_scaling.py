"""Wishes for another size of a cluster, and their answers."""

import pytest

from tests.unit.bid_intake.build import AT_MS, Intake, folded, release, request
from volt.contracts.errors import Reason
from volt.contracts.ids import job_id, lease_id
from volt.contracts.jobs import (
    NODES_MAX,
    CommandRejected,
    Constraints,
    JobAdmitted,
    JobRejected,
    JobScaleAccepted,
    JobScaleRejected,
    ScaleJob,
)
from volt.contracts.market import Gang, Grant, MarketCleared
from volt.contracts.messages import Event

JOB = job_id("lab", "r1")
GPUS_PER_NODE = 4


def scale(count: int, *, job: str = JOB, account: str = "lab", request_id: str = "s1") -> ScaleJob:
    return ScaleJob(account=account, request_id=request_id, job=job, count=count)


def gang(nodes: int, *, job: str = JOB, attempt: int = 0, gpus_per_node: int = GPUS_PER_NODE) -> MarketCleared:
    grants = tuple(
        Grant(
            lease=lease_id(job, number + 1),
            rank=number,
            node=f"n{number}",
            provider="owner",
            gpus=tuple(f"n{number}-{gpu}" for gpu in range(gpus_per_node)),
        )
        for number in range(nodes)
    )
    granted = Gang(
        job=job,
        account="lab",
        generation=1,
        attempt=attempt,
        grants=grants,
        price_microusd_per_gpu_hour=1,
        domain="",
    )
    return MarketCleared(through_seq=1, at_ms=AT_MS, gangs=(granted,))


@pytest.fixture
def intake() -> Intake:
    return Intake("lab", "rival")


@pytest.fixture
def placed(intake: Intake) -> Intake:
    """The job of 8 GPUs has two nodes of four."""
    intake.ask(request(count=8, nodes=2))
    intake.fold(gang(2))
    return intake


def accepted(event: Event) -> int:
    assert isinstance(event, JobScaleAccepted)
    return event.nodes


def refusal(event: Event) -> Reason:
    assert isinstance(event, JobScaleRejected)
    return event.reason


def test_gpus_become_nodes_of_the_size_that_the_first_gang_has(placed: Intake) -> None:
    assert accepted(placed.answers(scale(16))) == 4
    placed.fold(gang(1, attempt=3, gpus_per_node=1))
    assert accepted(placed.answers(scale(4, request_id="s2"))) == 1


def test_the_present_size_is_accepted_too(placed: Intake) -> None:
    assert accepted(placed.answers(scale(8))) == 2


@pytest.mark.parametrize(
    ("count", "code", "hint"),
    [
        (0, "count_out_of_range", "1 to 4096"),
        (-4, "count_out_of_range", "1 to 4096"),
        (10**9, "count_out_of_range", "1 to 4096"),
        (10, "count_not_whole_nodes", "ask for 8 or 12"),
        (3, "count_not_whole_nodes", "ask for 4"),
        ((NODES_MAX + 1) * GPUS_PER_NODE, "too_many_nodes", f"ask for {NODES_MAX * GPUS_PER_NODE} at most"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_one_that_can(placed: Intake, count: int, code: str, hint: str) -> None:
    reason = refusal(placed.answers(scale(count)))
    assert (reason.code, reason.field, reason.seen) == (code, "count", str(count))
    assert hint in reason.message


def test_a_job_within_nvlink_stays_on_one_node(intake: Intake) -> None:
    intake.ask(request(count=4, constraints=Constraints(interconnect="nvlink")))
    intake.fold(gang(1))
    assert refusal(intake.answers(scale(8))).code == "beyond_nvlink"
    assert accepted(intake.answers(scale(4, request_id="s2"))) == 1


def test_a_job_without_a_cluster_is_refused_until_it_has_one(intake: Intake) -> None:
    intake.ask(request(count=8))
    assert refusal(intake.answers(scale(16))).code == "not_placed"
    intake.fold(gang(2))
    assert intake.ask(scale(16)) == (), "that request was answered"
    assert accepted(intake.answers(scale(16, request_id="s2"))) == 4


def test_a_released_job_is_refused_and_a_gang_behind_its_release_places_nothing(placed: Intake) -> None:
    placed.ask(release(JOB))
    assert refusal(placed.answers(scale(16))).code == "job_released"
    placed.fold(gang(2))
    assert refusal(placed.answers(scale(16, request_id="s2"))).code == "job_released"


@pytest.mark.parametrize(
    "command", [scale(8, job="jnone"), scale(16, account="rival")], ids=["no such job", "somebody else's"]
)
def test_a_job_that_is_not_ones_own_is_none(placed: Intake, command: ScaleJob) -> None:
    event = placed.answers(command)
    assert isinstance(event, CommandRejected)
    assert (event.account, event.reason.code, event.reason.seen) == (command.account, "not_found", command.job)


def test_a_rejected_job_is_none_to_scale(intake: Intake) -> None:
    assert isinstance(intake.answers(request(count=0)), JobRejected)
    event = intake.answers(scale(8))
    assert isinstance(event, CommandRejected)
    assert event.reason.code == "not_found"


def test_the_same_wish_gets_no_second_event_and_another_under_its_id_is_refused(placed: Intake) -> None:
    placed.ask(scale(16))
    assert placed.ask(scale(16)) == ()
    assert refusal(placed.answers(scale(12))).code == "request_id_reused"
    assert placed.ask(scale(12)) == (), "that refusal was given"
    assert placed.ask(scale(16)) == ()
    placed.ask(release(JOB))
    assert placed.ask(scale(16)) == (), "the first answer stands, whatever became of the job"


def test_the_id_of_the_request_is_no_fresh_one(placed: Intake) -> None:
    assert refusal(placed.answers(scale(16, request_id="r1"))).code == "request_id_reused"


def test_many_wishes_do_not_make_the_request_itself_forgotten(placed: Intake) -> None:
    for number in range(100):
        placed.ask(scale(8, request_id=f"s{number}"))
    assert placed.ask(request(count=8, nodes=2)) == ()


def test_the_log_alone_makes_the_state(placed: Intake) -> None:
    for number, count in enumerate((16, 3, 12)):
        placed.ask(scale(count, request_id=f"s{number}"))
    placed.ask(release(JOB))
    assert isinstance(placed.log[2], JobAdmitted)
    assert folded(placed.log) == placed.state
