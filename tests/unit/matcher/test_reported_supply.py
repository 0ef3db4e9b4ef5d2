"""What is there is sold, and nothing else: shrinking nodes, sick cards, mixed models, cancelled and lost releases."""

from msgspec.structs import replace

from tests.unit.matcher.builders import AT_MS, USD, Market, alive, bid, cleared, lost, nodes_of, released, spec
from tests.unit.matcher.test_reserve import Hour
from volt.audit.market import audit_market
from volt.contracts.bids import BidAccepted, Gpu, ModelTerms, Terms
from volt.contracts.market import MarketCleared
from volt_matcher.effects import effects
from volt_matcher.state import State


def test_a_node_that_shrinks_under_its_leases_has_nothing_free_and_sells_nothing_until_the_missing_are_given_up() -> (
    None
):
    """Reported as akash support#137: free = total - used wrapped around to 2^64 - 1."""
    market = Market()
    market.node("n1", 8)
    for job in ("whole", "hurt"):
        market.job(job, spec(1, 4))
        market.settle()
    market.add(bid("n1", 6))
    market.job("next", spec(1, 1))
    (lot,) = market.state.lots["n1"]
    assert (lot.total, lot.free, market.free("n1")) == (6, (), 0)
    assert market.gangs() == {}
    market.add(released("whole"), cleared("whole", "whole-1", "n1"))
    assert market.free("n1") == 0, "it is in quarantine: what it leased to `hurt` is not all there"
    assert market.gangs() == {}
    market.add(released("hurt"), cleared("hurt", "hurt-1", "n1"))
    assert market.free("n1") == 6
    assert market.gangs()["next"].grants[0].gpus == ("n1-0",)
    assert audit_market(market.entries).findings == ()


def test_seven_of_eight_are_offered_by_uuid_when_one_is_sick() -> None:
    """Reported as akash support#249: the unhealthy one was sold too."""
    market = Market()
    market.node("n1", 8)
    well = tuple(f"n1-{number}" for number in range(8) if number != 3)
    market.add(bid("n1", well))
    market.job("eight", spec(1, 8))
    market.job("seven", spec(1, 7))
    assert {job: gang.grants[0].gpus for job, gang in market.gangs().items()} == {"seven": well}


def test_eight_gpus_on_four_nodes_are_not_eight_on_one_and_that_is_said_at_once() -> None:
    """Reported as akash console#287: the request was left waiting without a word."""
    market = Market()
    for number in range(4):
        market.node(f"n{number}", 8)
        market.job(f"holder-{number}", spec(1, 6))
    market.settle()
    market.job("j", spec(1, 8))
    said = market.run()
    assert said is not None
    (waiting,) = said.waiting
    assert (waiting.job, waiting.binding, waiting.infeasible) == ("j", "free_gpus", False)
    assert "largest node has 2 free" in waiting.message
    assert max(one.gpus for one in waiting.alternatives) == 8, "on four nodes"


def test_what_was_kept_for_a_cancelled_request_is_free_at_once() -> None:
    """Reported as akash support#193: it was held for another 15 to 25 minutes."""
    hour = Hour(None, None, None, None)
    hour.starve()
    for node in ("n1", "n2", "n3"):
        assert hour.free(node) == []
    hour.market.job("next", spec(3, 8))
    assert hour.granted() == []
    hour.market.add(released("gang"))
    assert hour.granted() == ["next"], "in the pass after the release, whatever anybody clears"


def test_a_request_that_is_cancelled_while_its_grant_is_on_the_way_holds_nothing_at_all() -> None:
    """Reported as akash support#193."""
    market = Market()
    market.node("n1")
    market.job("j", spec(1, 8))
    on_its_way = market.plan()
    assert on_its_way is not None
    market.add(released("j"), on_its_way)
    market.job("next", spec(1, 8))
    assert nodes_of(market.gangs()["next"]) == ["n1"]


def test_gpus_released_while_their_provider_was_away_are_sold_again_when_it_says_that_they_are_clear() -> None:
    """Reported as akash support#515: the release was never heard of, and the GPUs were stranded."""
    market = Market()
    market.node("n1")
    market.job("j", spec(1, 8))
    market.settle()
    market.add(lost("n1"), released("j"), alive("n1"))
    market.job("next", spec(1, 8))
    assert market.gangs() == {}, "nobody knows yet what still runs there"
    market.add(cleared("j", "j-1", "n1"))
    assert nodes_of(market.gangs()["next"]) == ["n1"]


def test_a_matcher_that_was_away_finds_everything_in_the_log() -> None:
    """Reported as akash support#515: events are hints, the log is the truth."""
    market = Market()
    market.node("n1")
    market.job("j", spec(1, 8))
    market.settle()
    market.add(released("j"), cleared("j", "j-1", "n1"))
    market.job("next", spec(1, 8))
    begun_afresh = Market(*(entry.event for entry in market.entries))
    assert begun_afresh.state == market.state != State()
    assert nodes_of(begun_afresh.gangs()["next"]) == ["n1"]


def mixed(node: str, *models: str, ask_microusd: int = USD) -> BidAccepted:
    """A node with two cards of each of these models, in this order."""
    gpus = tuple(Gpu(uuid=f"{node}-{model}-{number}", model=model) for model in models for number in range(2))
    return replace(bid(node, 1, ask_microusd=ask_microusd), gpus=gpus)


def test_of_a_node_with_several_models_only_the_one_that_was_asked_for_is_granted() -> None:
    """Reported as skypilot#9733: the first of a list was taken, and another model was had."""
    market = Market(mixed("n1", "a", "b"), alive("n1"))
    market.job("j", spec(1, 2, models=("b",)))
    market.job("too-many", spec(1, 3, models=("b",)))
    gangs = market.gangs()
    assert {job: (gang.model, gang.grants[0].gpus) for job, gang in gangs.items()} == {"j": ("b", ("n1-b-0", "n1-b-1"))}


def test_a_gang_is_of_one_of_the_models_asked_for_whatever_else_its_nodes_have() -> None:
    """Reported as skypilot#9733."""
    nodes = [mixed("n1", "c", "a"), mixed("n2", "b", "a"), mixed("n3", "a", "b")]
    market = Market(*nodes, *(alive(one.node) for one in nodes))
    market.job("j", spec(3, 2, models=("b", "a")))
    gang = market.gangs()["j"]
    assert gang.model == "a"
    assert {gpu for grant in gang.grants for gpu in grant.gpus} == {
        f"n{number}-a-{card}" for number in (1, 2, 3) for card in (0, 1)
    }


def test_two_buyers_of_the_last_node_both_hear_in_one_message_and_never_both_win() -> None:
    """Two buyers race: one wins, the other is placed elsewhere or told, within the same pass."""
    market = Market()
    market.node("n1")
    market.job("first", spec())
    market.job("second", spec())
    said = market.run()
    assert said is not None
    assert ([gang.job for gang in said.gangs], [one.job for one in said.waiting]) == (["first"], ["second"])
    market.node("n2", ask_microusd=USD + 1)
    market.add(released("first"), cleared("first", "first-1", "n1"))
    market.job("third", spec())
    said = market.run()
    assert said is not None
    assert {gang.job: nodes_of(gang) for gang in said.gangs} == {"second": ["n1"], "third": ["n2"]}


def test_the_window_of_each_model_wakes_those_who_wait_for_it() -> None:
    """Reported as ray#65694: nothing to do was cached as done. A node's models may come on the market one by one."""
    later = [Terms(ask_microusd_per_gpu_hour=USD, available_from_ms=AT_MS + ms) for ms in (60_000, 120_000)]
    both = replace(mixed("n1", "a", "b"), terms=later[0], changed=(ModelTerms(model="b", terms=later[1]),))
    market = Market(both, alive("n1"))
    market.job("wants-a", spec(1, 2, models=("a",)))
    market.job("wants-b", spec(1, 2, models=("b",)))
    assert said_until(market, 0) == []
    assert said_until(market, 60_000) == ["wants-a"]
    assert said_until(market, 120_000) == ["wants-b"]


def said_until(market: Market, after_ms: int) -> list[str]:
    """Who is granted by then, by a matcher that looks only when it has to."""
    market.at_ms = AT_MS + after_ms
    said: list[MarketCleared] = []
    while found := effects(market.state, market.at_ms):
        market.add(*found)
        said += [one for one in found if isinstance(one, MarketCleared)]
    return [gang.job for one in said for gang in one.gangs]
