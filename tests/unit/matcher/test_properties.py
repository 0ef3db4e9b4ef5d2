"""What holds in every market, whatever happens in it and in whatever order."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.matcher.advised import changed
from tests.unit.matcher.builders import AT_MS, Market, alive
from tests.unit.matcher.oracle import Offered, cheapest_price_microusd
from tests.unit.matcher.stories import Asked, Telling, asked, stories, supplies, told
from volt.audit.market import audit_market
from volt.contracts.bids import BidAccepted
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.messages import MESSAGE_BYTES_MAX, Event, encode
from volt_matcher.clear import clear
from volt_matcher.domain import evolve
from volt_matcher.place import cheapest
from volt_matcher.reserve import ends_before, set_apart, standing
from volt_matcher.state import State, first_request, openings


def folded(entries: list[Entry]) -> State:
    state = State()
    for entry in entries:
        evolve(state, entry)
    return state


relaxed = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(stories)
@relaxed
def test_no_gpu_is_leased_twice_and_each_gang_is_whole_together_and_at_its_own_price(telling: Telling) -> None:
    story = told(telling)
    report = audit_market(story.entries)
    assert report.findings == ()
    assert report.held == len(story.state.leases)
    assert story.state.leased == {uuid for lease in story.state.leases.values() for uuid in lease.gpus}


@given(stories)
@relaxed
def test_the_log_alone_replays_every_pass_byte_for_byte(telling: Telling) -> None:
    story = told(telling)
    for entry in story.entries:
        if isinstance(entry.event, MarketCleared):
            state = folded(story.entries[: entry.event.through_seq])
            again = clear(state, entry.event.at_ms)
            assert again is not None
            assert encode(again) == encode(entry.event)


@given(stories)
@relaxed
def test_a_market_always_comes_to_rest_and_stays_there(telling: Telling) -> None:
    story = told(telling)
    story.arrive()
    bound = 2 * len(story.state.open) + 2
    said = [story.run() for _ in range(bound)]
    assert said[-1] is None
    assert all(len(encode(one)) <= MESSAGE_BYTES_MAX for one in said if one is not None)
    assert set(story.state.reasons) == story.state.open


@given(stories)
@relaxed
def test_a_job_that_waits_at_rest_does_not_fit_unless_what_it_wants_is_kept_for_another(telling: Telling) -> None:
    story = told(telling)
    story.arrive()
    story.settle()
    state, at_ms = story.state, story.at_ms
    for opening in openings(state, at_ms)[1]:
        others = [one for one in standing(state, at_ms) if one.job != opening.job]
        is_lent = opening.job not in state.reservations and ends_before(opening.request, others)
        set_apart(state.book, state.lots, [] if is_lent else others)
        assert cheapest(state.book, opening.request) is None, "what it wants is kept for nobody"
        state.book.give_back()


@given(supplies, asked)
@relaxed
def test_a_job_fits_exactly_when_some_set_of_nodes_does_and_pays_the_price_of_the_cheapest(
    bids: tuple[BidAccepted, ...], job: Asked
) -> None:
    what, cap_microusd = job
    market = Market(*bids, *(alive(one.node) for one in bids))
    market.job("j", what, cap_microusd)
    gang = market.gangs().get("j")
    price_microusd = gang.price_microusd_per_gpu_hour if gang else None
    assert price_microusd == cheapest_price_microusd(Offered(bids, AT_MS), what, cap_microusd)


@given(supplies, st.lists(asked, min_size=1, max_size=4), st.randoms(use_true_random=False))
@relaxed
def test_the_order_of_bids_does_not_matter(bids: tuple[BidAccepted, ...], queue: list[Asked], chance: Random) -> None:
    events: list[Event] = [*bids, *(alive(one.node) for one in bids)]
    plans = []
    for _ in range(2):
        market = Market(*events)
        for number, (what, cap_microusd) in enumerate(queue):
            market.job(f"j{number}", what, cap_microusd)
        plans.append([encode(one) for one in market.settle()])
        chance.shuffle(events)
    assert plans[0] == plans[1]


@given(supplies, st.lists(asked, min_size=1, max_size=4))
@relaxed
def test_what_is_offered_instead_clears_as_said(bids: tuple[BidAccepted, ...], queue: list[Asked]) -> None:
    market = Market(*bids, *(alive(one.node) for one in bids))
    for number, (what, cap_microusd) in enumerate(queue):
        market.job(f"j{number}", what, cap_microusd)
    for name, waiting in market.waiting().items():
        for one in waiting.alternatives:
            request = first_request(*changed(*queue[int(name[1:])], one), AT_MS)
            placed = cheapest(market.state.book, request)
            assert placed is not None, one
            assert placed.price_microusd_per_gpu_hour == one.price_microusd_per_gpu_hour
            assert request.nodes * request.gpus_per_node == one.gpus
