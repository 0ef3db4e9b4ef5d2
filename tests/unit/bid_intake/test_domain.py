"""How bid-intake answers, once and for good."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.bid_intake.build import (
    AT_MS,
    Intake,
    bid,
    change,
    event_at_ms,
    folded,
    gpus,
    open_account,
    release,
    request,
    withdraw,
)
from volt.contracts.bids import BidAccepted, BidRejected, BidWithdrawn
from volt.contracts.errors import Reason, Refused
from volt.contracts.ids import job_id
from volt.contracts.jobs import (
    AccountOpened,
    CommandRejected,
    JobAdmitted,
    JobRejected,
    JobReleaseAccepted,
    QuoteAdmitted,
    QuoteRejected,
    RequestQuote,
)
from volt.contracts.log import Entry
from volt.contracts.messages import Asked, Command, Event
from volt.contracts.nodes import NodeAlive, ReportCleared
from volt_bid_intake.answers import ANSWERS_REMEMBERED_MAX
from volt_bid_intake.domain import State, decide, evolve, refuse

JOB = job_id("lab", "r1")


@pytest.fixture
def intake() -> Intake:
    return Intake("lab", "rival")


def code_of(event: Event) -> str:
    assert isinstance(event, JobRejected | QuoteRejected | BidRejected | CommandRejected), event
    return event.reason.code


def test_an_account_opens_once() -> None:
    intake = Intake()
    assert isinstance(intake.answers(open_account()), AccountOpened)
    assert intake.ask(open_account()) == ()


def test_an_account_that_exists_is_not_given_another_key(intake: Intake) -> None:
    opened = dict(intake.state.accounts)
    assert code_of(intake.answers(open_account(key="another"))) == "account_exists"
    assert intake.state.accounts == opened


@pytest.mark.parametrize("key_sha256", ["", "secret", "A" * 64, "g" * 64, "0" * 65])
def test_a_key_that_is_no_digest_opens_nothing(key_sha256: str) -> None:
    intake = Intake()
    assert intake.dead(replace(open_account(), key_sha256=key_sha256)) == "invalid_key_sha256"
    assert intake.state.accounts == {}


@pytest.mark.parametrize("command", [request(), release(JOB), bid(), withdraw()])
def test_who_has_no_account_cannot_be_answered(command: Command) -> None:
    assert Intake().dead(command) == "unknown_account"


def test_a_good_request_is_admitted_under_its_derived_id(intake: Intake) -> None:
    event = intake.answers(request())
    assert isinstance(event, JobAdmitted)
    assert event.job == JOB
    assert event.spec.models == ("h100-80gb",)


def test_a_bad_request_is_rejected_and_repeating_it_changes_nothing(intake: Intake) -> None:
    assert code_of(intake.answers(request(count=0))) == "count_out_of_range"
    assert intake.ask(request(count=0)) == ()


def test_the_same_request_gets_no_second_event(intake: Intake) -> None:
    intake.ask(request())
    assert intake.ask(request()) == ()


def test_another_request_under_the_same_id_is_refused_and_the_first_stands(intake: Intake) -> None:
    intake.ask(request(count=8))
    assert code_of(intake.answers(request(count=16))) == "request_id_reused"
    assert code_of(intake.answers(request(count=24))) == "request_id_reused"
    assert [intake.ask(request(count=count)) for count in (8, 16, 24)] == [(), (), ()]
    assert isinstance(intake.answers(release(JOB)), JobReleaseAccepted)


def test_an_id_that_was_rejected_does_not_serve_again(intake: Intake) -> None:
    intake.ask(request(count=0))
    assert code_of(intake.answers(request(count=8))) == "request_id_reused"
    assert code_of(intake.answers(release(JOB))) == "not_found"


def test_the_same_request_id_of_another_account_is_another_job(intake: Intake) -> None:
    intake.ask(request())
    event = intake.answers(request(account="rival"))
    assert isinstance(event, JobAdmitted)
    assert event.job != JOB


def test_a_second_release_changes_nothing(intake: Intake) -> None:
    intake.ask(request())
    assert isinstance(intake.answers(release(JOB)), JobReleaseAccepted)
    assert intake.ask(release(JOB)) == ()
    assert intake.ask(release(JOB, request_id="again")) == ()


def test_nobody_releases_the_job_of_another(intake: Intake) -> None:
    intake.ask(request())
    assert code_of(intake.answers(release(JOB, account="rival"))) == "not_found"
    assert isinstance(intake.answers(release(JOB)), JobReleaseAccepted)


def test_a_refused_release_that_comes_again_does_not_end_a_job_admitted_meanwhile(intake: Intake) -> None:
    assert code_of(intake.ask(release(JOB), seq=7)[0]) == "not_found"
    intake.ask(request())
    assert intake.ask(release(JOB), seq=7) == ()


def test_a_bid_is_accepted_in_canonical_form(intake: Intake) -> None:
    event = intake.answers(bid())
    assert isinstance(event, BidAccepted)
    assert {card.model for card in event.gpus} == {"h100-80gb"}
    assert {card.memory_mib for card in event.gpus} == {80 * 1024}
    assert event.runtime == "process"


def test_a_node_runs_what_its_last_bid_says_whatever_is_changed_of_its_terms(intake: Intake) -> None:
    intake.ask(replace(bid(), runtime="docker"))
    (changed,) = intake.ask(change(ask_microusd=3))
    assert isinstance(changed, BidAccepted)
    assert changed.runtime == "docker"


def test_an_earlier_bid_that_comes_again_does_not_bring_its_price_back(intake: Intake) -> None:
    intake.ask(bid(request_id="b1", ask_microusd=1))
    intake.ask(bid(request_id="b2", ask_microusd=2))
    assert intake.ask(bid(request_id="b1", ask_microusd=1)) == ()


def test_a_withdrawal_that_comes_again_does_not_withdraw_a_later_bid(intake: Intake) -> None:
    intake.ask(bid(request_id="b1"))
    assert isinstance(intake.answers(withdraw(request_id="w1")), BidWithdrawn)
    assert isinstance(intake.answers(withdraw(request_id="w2")), BidWithdrawn), "nothing was offered, and it counts"
    intake.ask(bid(request_id="b2"))
    assert intake.ask(withdraw(request_id="w1")) == ()
    assert intake.ask(withdraw(request_id="w2")) == ()


def test_a_bid_that_comes_again_does_not_offer_a_withdrawn_node(intake: Intake) -> None:
    intake.ask(bid())
    intake.ask(withdraw())
    assert intake.ask(bid()) == ()


def test_bids_and_withdrawals_do_not_share_request_ids(intake: Intake) -> None:
    intake.ask(bid(request_id="same"))
    assert code_of(intake.answers(withdraw(request_id="same"))) == "request_id_reused"
    intake.ask(withdraw(request_id="w"))
    assert code_of(intake.answers(bid(request_id="w"))) == "request_id_reused"


def test_a_bad_bid_leaves_the_one_before_it_standing(intake: Intake) -> None:
    intake.ask(bid(request_id="b1"))
    standing = intake.state.nodes.by_id["n1"]
    assert code_of(intake.answers(bid(request_id="b2", ask_microusd=0))) == "price_out_of_range"
    assert code_of(intake.answers(bid(request_id="b1", ask_microusd=5))) == "request_id_reused"
    assert intake.state.nodes.by_id["n1"] == standing


def test_a_node_belongs_to_the_account_that_first_offered_it(intake: Intake) -> None:
    assert code_of(intake.answers(bid(ask_microusd=0))) == "price_out_of_range"
    assert isinstance(intake.answers(bid(account="rival")), BidAccepted), "a refused bid takes no node"
    assert code_of(intake.answers(bid(request_id="b2"))) == "node_taken"
    assert intake.ask(bid(request_id="b2")) == ()
    assert code_of(intake.answers(withdraw())) == "not_found"
    intake.ask(withdraw(account="rival"))
    assert code_of(intake.answers(bid(request_id="b3"))) == "node_taken"


def test_a_gpu_is_offered_by_one_node_at_a_time(intake: Intake) -> None:
    shared = gpus(2, "GPU-shared")
    intake.ask(bid(node="n1", cards=shared))
    assert code_of(intake.answers(bid(node="n2", cards=shared[:1]))) == "gpu_taken"
    intake.ask(bid(node="n1", request_id="b2", cards=shared[1:]))
    assert isinstance(intake.answers(bid(node="n2", request_id="b2", cards=shared[:1])), BidAccepted)
    intake.ask(withdraw(node="n1"))
    assert isinstance(intake.answers(bid(node="n2", request_id="b3", cards=shared)), BidAccepted)


def test_a_quote_is_asked_once_and_is_no_job(intake: Intake) -> None:
    event = intake.answers(RequestQuote(request=request()))
    assert isinstance(event, QuoteAdmitted)
    assert event.job != JOB
    assert intake.ask(RequestQuote(request=request())) == ()
    assert code_of(intake.answers(RequestQuote(request=request(count=16)))) == "request_id_reused"
    assert code_of(intake.answers(release(event.job))) == "not_found"
    assert isinstance(intake.answers(request()), JobAdmitted)


def test_a_quote_for_what_would_be_refused_is_refused(intake: Intake) -> None:
    event = intake.answers(RequestQuote(request=request(count=0)))
    assert isinstance(event, QuoteRejected)
    assert event.reason.code == "count_out_of_range"


def test_what_cannot_be_read_is_refused_once(intake: Intake) -> None:
    reason, asked = Reason(code="not_json", message="no JSON"), Asked("cmd.lab.job", 99, 5, 5)
    (event,) = refuse(intake.state, reason, asked)
    assert isinstance(event, CommandRejected)
    assert (event.command_subject, event.command_seq, event.reason) == ("cmd.lab.job", 99, reason)
    evolve(intake.state, Entry(1, 5, event))
    assert refuse(intake.state, reason, asked) == ()
    with pytest.raises(Refused, match="no JSON"):
        refuse(intake.state, reason, Asked("cmd.nobody.job", 100, 5, 5))


def test_when_all_commands_come_again_nothing_is_answered_anew(intake: Intake) -> None:
    prices = [bid(request_id=f"b{number}", ask_microusd=number) for number in range(1, 2 * ANSWERS_REMEMBERED_MAX)]
    commands: list[Command] = [release("jnone"), *prices, withdraw(), request(), release(JOB)]
    for seq, command in enumerate(commands, start=10):
        assert intake.ask(command, seq=seq)
    assert not any(intake.ask(command, seq=seq) for seq, command in enumerate(commands, start=10))


def test_a_stream_that_counts_from_1_again_is_answered(intake: Intake) -> None:
    intake.ask(bid(), seq=1_000)
    again = intake.asked(withdraw(), 1)._replace(stored_ms=AT_MS + 2_000)
    assert decide(intake.state, withdraw(), again)


def test_a_server_whose_clock_is_set_back_is_answered(intake: Intake) -> None:
    intake.ask(bid(), seq=1_000)
    later = intake.asked(withdraw(), 1_001)._replace(stored_ms=AT_MS - 60_000)
    assert decide(intake.state, withdraw(), later)


def test_what_is_not_its_own_is_a_fault() -> None:
    foreign = NodeAlive(account="lab", node="n", incarnation="i", at_ms=1)
    with pytest.raises(AssertionError):
        evolve(State(), Entry(1, 1, foreign))
    report = ReportCleared(account="lab", node="n", lease="l", generation=1)
    with pytest.raises(AssertionError):
        decide(Intake("lab").state, report, Asked("cmd.lab.report.n", 9, 9, 9))


def impossible() -> list[tuple[list[Command], Event]]:
    admitted = Intake("lab").answers(request())
    released = JobReleaseAccepted(account="lab", job=JOB, request_id="x", at_ms=1)
    accepted = Intake("lab").answers(bid())
    withdrawn = BidWithdrawn(account="rival", node="n1", request_id="x", at_ms=1)
    opened = Intake().answers(open_account())
    assert isinstance(accepted, BidAccepted)
    return [
        ([request()], admitted),
        ([], released),
        ([request(count=0)], released),
        ([request(), release(JOB)], released),
        ([], withdrawn),
        ([bid()], withdrawn),
        ([bid()], replace(accepted, account="rival")),
        ([], opened),
    ]


@pytest.mark.parametrize(("commands", "event"), impossible())
def test_a_transition_outside_the_table_is_a_fault(commands: list[Command], event: Event) -> None:
    intake = Intake("lab")
    for command in commands:
        intake.ask(command)
    with pytest.raises(AssertionError):
        evolve(intake.state, Entry(1, 1, event))


ACCOUNTS = st.sampled_from(["lab", "rival", "newcomer"])
IDS = st.sampled_from(["x", "y", "z"])
NODES = st.sampled_from(["n1", "n2"])
CARDS = st.sampled_from([gpus(1), gpus(2), gpus(2, "OTHER"), ()])
ASKED = st.builds(request, account=ACCOUNTS, request_id=IDS, count=st.sampled_from([0, 8]))
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(open_account, account=ACCOUNTS, request_id=IDS, key=st.sampled_from(["k", "l"])),
    st.builds(request, account=ACCOUNTS, request_id=IDS, count=st.sampled_from([0, 8, 16])),
    st.builds(
        release,
        account=ACCOUNTS,
        request_id=IDS,
        job=st.builds(job_id, ACCOUNTS, IDS),
    ),
    st.builds(bid, account=ACCOUNTS, node=NODES, request_id=IDS, cards=CARDS, ask_microusd=st.sampled_from([0, 1, 2])),
    st.builds(RequestQuote, request=ASKED),
    st.builds(withdraw, account=ACCOUNTS, node=NODES, request_id=IDS),
    st.builds(
        change,
        account=ACCOUNTS,
        node=NODES,
        request_id=IDS,
        offer=st.booleans(),
        ask_microusd=st.sampled_from([None, 0, 3]),
        paused=st.booleans(),
    ),
)
# Which of the commands delivered so far comes again after each one.
DELIVERIES = st.lists(st.tuples(COMMANDS, st.integers(0, 100)), max_size=40)


@given(DELIVERIES)
def test_an_answered_command_is_never_answered_again(deliveries: Sequence[tuple[Command, int]]) -> None:
    intake = Intake("lab")
    answered: list[tuple[Command, int]] = []
    for seq, (command, pick) in enumerate(deliveries, start=1_000):
        try:
            intake.ask(command, seq=seq)
        except Refused:
            continue
        answered.append((command, seq))
        assert intake.ask(command, seq=seq) == (), "deciding again right after gives no event"
        earlier, earlier_seq = answered[pick % len(answered)]
        assert intake.ask(earlier, seq=earlier_seq) == (), "nor does an earlier one that comes again"


@given(DELIVERIES)
def test_the_log_alone_gives_the_state_and_every_answer_stays(deliveries: Sequence[tuple[Command, int]]) -> None:
    intake = Intake("lab")
    first: dict[str, Event] = {}
    for command, _ in deliveries:
        try:
            events = intake.ask(command)
        except Refused:
            continue
        for event in events:
            if isinstance(event, JobAdmitted):
                assert event.job not in first, "admitted twice, or after it was rejected"
            if isinstance(event, JobAdmitted | JobRejected):
                first.setdefault(event.job, event)
    assert folded(intake.log) == intake.state


@given(DELIVERIES)
def test_a_gpu_is_on_the_market_once_and_a_node_has_one_owner(deliveries: Sequence[tuple[Command, int]]) -> None:
    intake = Intake("lab", "rival")
    offers: dict[str, BidAccepted] = {}
    owners: dict[str, str] = {}
    for command, _ in deliveries:
        try:
            events = intake.ask(command)
        except Refused:
            continue
        for event in events:
            match event:
                case BidAccepted(node=node):
                    offers[node] = event
                    assert owners.setdefault(node, event.account) == event.account
                case BidWithdrawn(node=node):
                    offers.pop(node, None)
                    assert owners[node] == event.account
        uuids = [card.uuid for offer in offers.values() for card in offer.gpus]
        assert len(uuids) == len(set(uuids))
        assert set(intake.state.nodes.by_gpu) == set(uuids)


def test_events_carry_the_time_that_was_used() -> None:
    intake = Intake("lab")
    event = intake.answers(request())
    assert event_at_ms(event) == intake.asked(request(), 2).at_ms
