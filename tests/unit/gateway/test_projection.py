"""What the views show of the log."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.gateway import committing, draining, fleets, scaling, story
from tests.unit.gateway.freezing import resumed
from tests.unit.gateway.story import BUYER, JOB, PROVIDER, STRANGER, Cluster, Projected
from volt.contracts import ledger
from volt.contracts.bids import BidAccepted
from volt.contracts.errors import Reason
from volt.contracts.http import JobHappening, JobState, Offer, StatementLine
from volt.contracts.ids import job_id, key_sha256, lease_id
from volt.contracts.log import EVENT_TYPES
from volt.contracts.messages import Event
from volt.contracts.nodes import BeatsCovered
from volt_gateway import present
from volt_gateway.domain import Views, evolve, touched
from volt_gateway.entities import (
    ALL_OFFERS,
    FLEET_DOC,
    Fleet,
    Job,
    Key,
    Node,
    Presence,
    events_ranking,
    job_doc,
    key_doc,
    node_doc,
    offers_ranking,
    on_hold,
    statement_ranking,
)

FIRST, SECOND = Cluster(1), Cluster(2)
BEGIN = [story.account_opened(), story.admitted(), story.funded()]
READY = [
    *BEGIN,
    story.cleared(story.gang("n1", "n2")),
    story.forming(story.member("n1", 1, 0), story.member("n2", 2, 1)),
    FIRST.ready(),
]
CHECKPOINTS = [committing.stored(0, 10), committing.stored(1, 10), committing.committed(10)]
EVERYTHING = [
    *story.whole_story(),
    resumed(1),
    *scaling.wishes(),
    *scaling.growth_given_up(),
    *CHECKPOINTS,
    *fleets.fleet_events(),
    *draining.drained_and_resumed(),
    draining.retry_planned(),
]


def test_a_job_goes_through_its_states_as_the_log_tells_them() -> None:
    shown = Projected()
    states: list[JobState] = []
    for event in story.whole_story():
        shown.tell(event)
        job = _job_if_any(shown)
        if job is not None and (not states or states[-1] != job.state):
            states.append(job.state)
    assert states == [
        "admitted",
        "funded",
        "waiting",
        "preparing",
        "ready",
        "recovering",
        "ready",
        "released",
        "closed",
    ]


def test_a_closed_job_tells_its_members_times_and_bill() -> None:
    job = _job(Projected().tell(*story.whole_story()))
    assert [(one.node, one.rank, one.state) for one in job.members] == [("n1", 0, "cleared"), ("n3", 1, "cleared")]
    assert (job.generation, job.exit_code, job.release_reason) == (2, 0, "completed")
    assert job.ready_at_ms == story.T0_MS + 9
    assert [(line.lease, line.due_microusd) for line in job.bill] == [
        (lease_id(JOB, 1), 150),
        (lease_id(JOB, 2), 90),
        (lease_id(JOB, 3), 60),
    ]
    assert present.bill_answer(job, 0).due_usd == "0.000300"


def test_the_values_of_the_environment_are_not_shown() -> None:
    job = _job(Projected().tell(story.admitted()))
    assert job.shape is not None
    assert job.shape.env_names == ("TOKEN",)
    assert b"a secret" not in msgspec.json.encode(job)


def test_a_waiting_job_says_why_and_what_would_clear() -> None:
    job = present.job_answer(_job(Projected().tell(*BEGIN, story.cleared(waiting=[story.waiting()]))))
    assert job.waiting is not None
    assert job.waiting.message == "the largest node has 1 free"
    assert job.waiting.alternatives[0].price_usd_per_gpu_hour == "1.900000"
    assert (
        _job(
            Projected().tell(
                *BEGIN,
                story.cleared(
                    waiting=[story.waiting()],
                ),
                story.cleared(story.gang("n1")),
            )
        ).waiting
        is None
    )


def test_a_reused_request_id_leaves_the_job_as_it_is() -> None:
    reused = Reason(code="request_id_reused", message="used")
    job = _job(Projected().tell(*BEGIN, story.rejected(reason=reused, digest="other")))
    assert job.state == "funded"
    assert job.refused == (("other", reused),)


def test_a_key_that_a_second_account_claims_stays_with_the_first() -> None:
    shown = Projected().tell(story.account_opened(), story.account_opened(STRANGER))
    assert shown.views.documents[key_doc(key_sha256(story.BUYER_KEY))] == Key(account=BUYER)


@pytest.mark.parametrize(
    "ending",
    [
        story.release_accepted(),
        FIRST.released("no_replacement"),
        ledger.FundsExhausted(account=BUYER, job=JOB, at_ms=story.T0_MS, exhausted_at_ms=story.T0_MS),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_gang_after_the_end_of_its_job_is_void(ending: Event) -> None:
    shown = Projected().tell(story.bid("n1"), story.alive("n1"), *BEGIN, ending, story.cleared(story.gang("n1")))
    assert _job(shown).members == ()
    assert [offer.free for offer in _offers(shown, "n1")] == [2]


def test_an_offer_shows_what_its_node_runs() -> None:
    plain, images = story.bid("n1"), story.bid("n2")
    assert isinstance(images, BidAccepted)
    shown = Projected().tell(plain, replace(images, runtime="docker"), story.alive("n1"), story.alive("n2"))
    assert [one.runtime for node in ("n1", "n2") for one in _offers(shown, node)] == ["process", "docker"]


def test_a_late_report_does_not_revive_a_released_job() -> None:
    shown = Projected().tell(*READY, story.release_accepted(), FIRST.started(1), FIRST.ready(), SECOND.ready())
    assert _job(shown).state == "released"


def test_a_release_tells_its_first_cause_also_when_the_buyer_was_faster() -> None:
    job = _job(Projected().tell(*READY, story.release_accepted(), FIRST.released("workload_failed", 1)))
    assert (job.state, job.release_reason, job.exit_code) == ("released", "workload_failed", 1)
    assert job.first_cause == "rank 1 exited 1"


def test_what_an_older_generation_says_does_not_change_its_members() -> None:
    again = story.forming(story.member("n1", 1, 0), generation=2, replaces=(lease_id(JOB, 2),))
    job = _job(Projected().tell(*READY, again, FIRST.exited(1), FIRST.prepared(1)))
    assert [one.state for one in job.members] == ["preparing"]


def test_a_cluster_that_was_never_ready_goes_on_preparing() -> None:
    begun = [*BEGIN, story.cleared(story.gang("n1")), story.forming(story.member("n1", 1, 0))]
    assert _job(Projected().tell(*begun, FIRST.lost(1, "n1"), FIRST.ended(1))).state == "preparing"


def test_an_unfunded_job_says_what_it_lacks() -> None:
    job = _job(Projected().tell(story.admitted(), story.unfunded()))
    assert job.state == "unfunded"
    assert job.reason is not None
    assert "$10.00" in job.reason.message
    assert "$5.00" in job.reason.message


def test_leased_gpus_are_free_again_only_when_their_lease_is_cleared() -> None:
    shown = Projected().tell(story.bid("n1"), story.alive("n1"), *BEGIN, story.cleared(story.gang("n1")))
    assert [offer.free for offer in _offers(shown, "n1")] == [0]
    shown.tell(FIRST.released())
    assert [offer.free for offer in _offers(shown, "n1")] == [0]
    shown.tell(FIRST.cleared(1, "n1"))
    assert [(offer.free, offer.total) for offer in _offers(shown, "n1")] == [(2, 2)]


def test_a_node_with_fewer_gpus_than_are_leased_has_none_free() -> None:
    shown = Projected().tell(story.bid("n1"), story.alive("n1"), *BEGIN, story.cleared(story.gang("n1")))
    fewer = story.bid("n1")
    shown.tell(msgspec.structs.replace(fewer, gpus=fewer.gpus[:1]))  # type: ignore[attr-defined]  # it is a bid
    assert [(offer.free, offer.total) for offer in _offers(shown, "n1")] == [(0, 1)]


def test_only_live_offered_nodes_are_ranked_by_their_ask() -> None:
    shown = Projected().tell(story.bid("n1"))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": None}
    shown.tell(story.alive("n1"))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": story.PRICE_MICROUSD}
    assert shown.views.ranked[offers_ranking(story.MODEL)] == {"n1": story.PRICE_MICROUSD}
    shown.tell(story.bid("n1", ask_microusd=5))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": 5}
    shown.tell(story.node_lost("n1"))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": None}
    shown.tell(story.alive("n1"), story.withdrawn("n1"))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": None}


def test_the_beats_of_a_stranger_do_not_make_a_node_live_or_lost() -> None:
    shown = Projected().tell(story.bid("n1"), story.alive("n1", STRANGER))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": None}
    shown.tell(story.alive("n1"), story.node_lost("n1", STRANGER))
    assert shown.views.ranked[ALL_OFFERS] == {"n1": story.PRICE_MICROUSD}


def test_money_is_where_the_transfers_put_it() -> None:
    moved = Projected().tell(*story.whole_story()).views.moved_microusd
    assert sum(amount for name, amount in moved.items() if not name.startswith("on_hold/")) == 0
    assert moved[ledger.wallet(BUYER)] == ledger.FIRST_CREDIT_MICROUSD - 300
    assert moved[ledger.pending(PROVIDER)] == 190
    assert moved[on_hold(BUYER)] == moved[ledger.hold(JOB)] == 110


def test_a_statement_holds_the_movements_of_both_sides() -> None:
    views = Projected().tell(*story.whole_story()).views
    assert _statement_ids(views, BUYER) == ["credit", f"hold/{JOB}", "c1", "return"]
    assert _statement_ids(views, PROVIDER) == ["c1"]


def test_the_story_of_a_job_names_nothing_of_another() -> None:
    other = job_id(BUYER, "other")
    gangs = story.cleared(story.gang("n1"), story.gang("n2", job=other))
    views = Projected().tell(story.admitted(), gangs).views
    told = [msgspec.json.decode(line, type=JobHappening) for line in views.ranked[events_ranking(JOB)]]
    assert [one.event for one in told] == ["JobAdmitted", "MarketCleared"]
    assert all("n2" not in one.message for one in told)


def test_two_gangs_of_one_job_in_one_pass_are_one_happening() -> None:
    pair = story.cleared(story.gang("n1"), story.gang("n2", first_lease=2, first_rank=1))
    views = Projected().tell(story.admitted(), story.funded(), pair).views
    told = [msgspec.json.decode(line, type=JobHappening) for line in views.ranked[events_ranking(JOB)]]
    assert "n1" in told[-1].message
    assert "n2" in told[-1].message
    assert len({one.seq for one in told}) == len(told)


def test_held_losses_are_shown_until_they_are_released() -> None:
    shown, held = Projected(), []
    for event in fleets.fleet_events():
        shown.tell(event)
        fleet = shown.views.documents.get(FLEET_DOC)
        held.append((fleet.held_at_ms is not None, fleet.silent) if isinstance(fleet, Fleet) else None)
    assert held == [None, (True, 400), (False, 0)]


def test_the_whole_story_has_every_event_that_is_projected() -> None:
    told = {type(event) for event in EVERYTHING}
    not_in_one_life = {BeatsCovered, ledger.JobUnfunded, ledger.FundsExhausted, type(story.release_accepted())}
    assert set(EVENT_TYPES) - told == not_in_one_life


@given(st.permutations(EVERYTHING))
def test_no_order_of_events_breaks_the_projection_or_touches_what_was_not_loaded(events: list[Event]) -> None:
    shown = Projected()
    for entry in story.entries(events):
        before = dict(shown.views.documents)
        try:
            evolve(shown.views, entry)
        except AssertionError:
            assert shown.views.documents == before
        changed = {name for name, document in shown.views.documents.items() if before.get(name) is not document}
        assert changed <= set(touched(entry.event))


@given(st.permutations(EVERYTHING))
def test_money_is_conserved_in_any_order(events: list[Event]) -> None:
    shown = Projected()
    for entry in story.entries(events):
        try:
            evolve(shown.views, entry)
        except AssertionError:
            continue
    moved = shown.views.moved_microusd
    assert sum(amount for name, amount in moved.items() if not name.startswith("on_hold/")) == 0
    assert moved[on_hold(BUYER)] == moved[ledger.hold(JOB)]


def _job_if_any(shown: Projected) -> Job | None:
    job = shown.views.documents.get(job_doc(JOB))
    return job if isinstance(job, Job) else None


def _job(shown: Projected) -> Job:
    job = _job_if_any(shown)
    assert job is not None
    return job


def _statement_ids(views: Views, account: str) -> list[str]:
    return [msgspec.json.decode(line, type=StatementLine).id for line in views.ranked[statement_ranking(account)]]


def _offers(shown: Projected, node: str) -> list[Offer]:
    found = shown.views.documents[node_doc(node)]
    assert isinstance(found, Node)
    return list(present.offers_of(found, Presence(state="alive")))
