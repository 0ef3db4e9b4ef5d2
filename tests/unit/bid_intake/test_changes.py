"""How the terms of an offered node are changed while it is on the market."""

import pytest
from msgspec.structs import replace

from tests.unit.bid_intake.build import Intake, bid, change, gpu, withdraw
from volt.contracts.bids import BidAccepted, BidRejected, ChangeBid, Terms
from volt.contracts.jobs import CommandRejected

H100, A100 = "h100-80gb", "a100-80gb"
MIXED = (gpu("GPU-h"), gpu("GPU-a", "NVIDIA A100-SXM4-80GB", 81_920), gpu("GPU-b", "NVIDIA A100-SXM4-80GB", 81_920))


@pytest.fixture
def intake() -> Intake:
    return Intake("lab", "rival")


def offered(intake: Intake, command: ChangeBid) -> BidAccepted:
    event = intake.answers(command)
    assert isinstance(event, BidAccepted), event
    return event


def refused(intake: Intake, command: ChangeBid) -> str:
    event = intake.answers(command)
    assert isinstance(event, BidRejected | CommandRejected), event
    return event.reason.code


def test_a_reprice_is_the_nodes_offer_from_then_on(intake: Intake) -> None:
    intake.ask(bid(ask_microusd=2))
    event = offered(intake, change(ask_microusd=3))
    assert event.terms == Terms(ask_microusd_per_gpu_hour=2), "what was declared is told from what was changed"
    assert event.terms_of(H100).ask_microusd_per_gpu_hour == 3


def test_one_model_of_a_node_is_priced_apart_from_the_others(intake: Intake) -> None:
    intake.ask(bid(cards=MIXED, ask_microusd=2))
    event = offered(intake, change(model="A100 80GB", ask_microusd=1))
    asks = {model: event.terms_of(model).ask_microusd_per_gpu_hour for model in (H100, A100)}
    assert asks == {H100: 2, A100: 1}
    assert refused(intake, change(request_id="c2", model="H200", ask_microusd=1)) == "model_not_offered"


def test_a_change_leaves_the_terms_that_it_does_not_name(intake: Intake) -> None:
    intake.ask(bid(ask_microusd=2))
    offered(intake, replace(change(ask_microusd=3), max_duration_seconds=3_600, available_until_ms=10**12))
    event = offered(intake, replace(change(request_id="c2", paused=True), max_duration_seconds=0))
    assert event.terms_of(H100) == Terms(ask_microusd_per_gpu_hour=3, available_until_ms=10**12, paused=True)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (change(ask_microusd=0), "price_out_of_range"),
        (replace(change(), gpus_min=9), "gpus_min_out_of_range"),
        (replace(change(), max_duration_seconds=-1), "duration_out_of_range"),
        (replace(change(), available_from_ms=20, available_until_ms=10), "empty_window"),
        (change(model="abacus"), "unknown_gpu_model"),
        (change(node="n2"), "not_found"),
        (change(account="rival"), "not_found"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(intake: Intake, changed: ChangeBid, code: str) -> None:
    intake.ask(bid())
    before = intake.state.nodes.by_id["n1"]
    assert refused(intake, changed) == code
    assert intake.state.nodes.by_id["n1"] == before


def test_a_change_is_made_once(intake: Intake) -> None:
    intake.ask(bid())
    offered(intake, change(ask_microusd=3))
    offered(intake, change(request_id="c2", ask_microusd=4))
    assert intake.ask(change(ask_microusd=3)) == ()
    assert refused(intake, change(ask_microusd=5)) == "request_id_reused"


def test_an_agent_that_comes_back_with_the_same_terms_finds_the_changes_in_force(intake: Intake) -> None:
    intake.ask(bid(request_id="b1", ask_microusd=2))
    offered(intake, change(ask_microusd=3, paused=True))
    intake.ask(withdraw())
    event = intake.answers(bid(request_id="b2", ask_microusd=2))
    assert isinstance(event, BidAccepted)
    assert event.terms_of(H100) == Terms(ask_microusd_per_gpu_hour=3, paused=True)


def test_an_agent_that_comes_back_with_other_terms_is_taken_at_its_word(intake: Intake) -> None:
    intake.ask(bid(request_id="b1", ask_microusd=2))
    offered(intake, change(ask_microusd=3))
    event = intake.answers(bid(request_id="b2", ask_microusd=4))
    assert isinstance(event, BidAccepted)
    assert event.changed == ()


def test_a_withdrawn_node_is_offered_again_only_by_saying_so(intake: Intake) -> None:
    intake.ask(bid(cards=(gpu("GPU-1"),)))
    intake.ask(withdraw())
    assert refused(intake, change(ask_microusd=3)) == "node_withdrawn"
    intake.ask(bid(account="rival", node="n2", cards=(gpu("GPU-1"),)))
    assert refused(intake, change(request_id="c2", offer=True)) == "gpu_taken"
    intake.ask(withdraw(account="rival", node="n2"))
    event = offered(intake, change(request_id="c3", offer=True, ask_microusd=3))
    assert event.terms_of(H100).ask_microusd_per_gpu_hour == 3
