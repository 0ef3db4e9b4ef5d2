"""What is free: whole and live nodes, each GPU once, and nothing that a lease holds."""

from tests.unit.matcher.builders import (
    AT_MS,
    B,
    Market,
    alive,
    bid,
    cleared,
    drained,
    lost,
    nodes_of,
    resumed,
    spec,
    unknown,
    withdrawn,
)
from volt.contracts.bids import BidRejected
from volt.contracts.errors import Reason


def leased_market() -> Market:
    """One node of eight GPUs, all of them leased to `first`."""
    market = Market()
    market.node("n1")
    market.job("first", spec())
    assert list(market.gangs()) == ["first"]
    return market


def test_a_node_is_not_matched_before_it_is_alive() -> None:
    market = Market(bid("n1"))
    market.job("j", spec())
    assert market.waiting()["j"].binding == "alive"
    market.add(alive("n1"))
    assert list(market.gangs()) == ["j"]


def test_a_node_that_is_unknown_or_lost_gets_nothing_new_until_it_is_alive_again() -> None:
    market = Market()
    market.node("n1")
    for gone in (unknown("n1"), lost("n1")):
        market.add(alive("n1"), gone)
        market.job(f"j-{type(gone).__name__.lower()}", spec(each=1))
        assert market.gangs() == {}
    market.add(alive("n1"))
    assert len(market.gangs()) == 2


def test_a_drained_node_gets_nothing_new_whatever_it_bids_until_it_is_resumed() -> None:
    market = Market()
    market.node("n1")
    market.add(drained("n1"), bid("n1", ask_microusd=5), alive("n1"))
    market.job("j", spec())
    assert market.waiting()["j"].binding == "alive"
    market.add(resumed("n1"))
    assert list(market.gangs()) == ["j"]


def test_a_stranger_drains_no_node_of_anothers() -> None:
    market = Market()
    market.node("n1")
    market.add(drained("n1", account="stranger"))
    market.job("j", spec())
    assert list(market.gangs()) == ["j"]


def test_beats_sent_by_a_stranger_do_not_make_a_node_alive() -> None:
    market = Market(bid("n1"), alive("n1", account="stranger"))
    market.job("j", spec())
    assert market.gangs() == {}


def test_a_uuid_that_another_node_offers_is_refused_to_the_later_one() -> None:
    market = Market()
    market.node("n1", ["g1", "g2"])
    market.node("n2", ["g2", "g3"])
    assert (market.free("n1"), market.free("n2")) == (2, 1)
    market.add(bid("n1", ["g1", "g2"], ask_microusd=5))
    assert (market.free("n1"), market.free("n2")) == (2, 1)


def test_a_uuid_goes_to_the_next_that_offers_it_once_the_first_gives_it_up() -> None:
    market = Market()
    market.node("n1", ["g1", "g2"])
    market.node("n2", ["g2", "g3"])
    market.add(bid("n1", ["g1"]))
    assert (market.free("n1"), market.free("n2")) == (1, 2)
    market.add(bid("n1", ["g1", "g2"]))
    assert (market.free("n1"), market.free("n2")) == (1, 2)
    market.add(withdrawn("n2"))
    assert (market.free("n1"), market.free("n2")) == (2, 0)


def test_a_gpu_named_twice_in_one_bid_is_sold_once() -> None:
    market = Market()
    market.node("n1", ["g1", "g1", "g2"])
    assert market.free("n1") == 2


def test_a_leased_gpu_that_another_node_offers_meanwhile_is_not_sold_again() -> None:
    market = leased_market()
    market.add(withdrawn("n1"))
    market.node("n2", ["n1-0", "fresh"])
    assert market.free("n2") == 1
    market.add(cleared("first", "first-1", "n1"))
    assert market.free("n2") == 2


def test_a_gpu_granted_by_a_node_that_has_given_it_up_meanwhile_is_not_sold_by_the_next() -> None:
    market = Market()
    market.node("n1", ["g1"])
    market.job("first", spec(each=1))
    late = market.plan()
    assert late is not None
    market.add(withdrawn("n1"))
    market.node("n2", ["g1", "g2"])
    market.add(late)
    assert market.free("n2") == 1


def test_a_bid_that_shrinks_under_a_lease_frees_nothing_and_the_node_sells_nothing() -> None:
    market = leased_market()
    market.add(bid("n1", 6))
    assert market.free("n1") == 0
    market.job("second", spec(each=1))
    assert market.waiting()["second"].binding == "free_gpus"
    market.add(cleared("first", "first-1", "n1"))
    assert market.free("n1") == 6


def test_a_node_that_lost_a_leased_gpu_sells_its_free_ones_only_when_that_lease_is_cleared() -> None:
    market = Market()
    market.node("n1")
    market.job("first", spec(each=2))
    assert market.gangs()["first"].grants[0].gpus == ("n1-0", "n1-1")
    market.add(bid("n1", [f"n1-{number}" for number in range(1, 8)]))
    assert market.free("n1") == 0
    market.add(cleared("first", "first-1", "n1"))
    assert market.free("n1") == 7


def test_a_gpu_that_fell_out_unleased_leaves_the_others_on_sale() -> None:
    market = Market()
    market.node("n1")
    market.add(bid("n1", 7))
    market.job("seven", spec(each=7))
    assert market.gangs()["seven"].grants[0].gpus == tuple(f"n1-{number}" for number in range(7))


def test_a_new_bid_leaves_running_leases_alone() -> None:
    market = Market()
    market.node("n1")
    market.job("first", spec(each=2))
    market.settle()
    market.add(bid("n1", 8, ask_microusd=3, place=B))
    assert market.free("n1") == 6
    market.job("second", spec(each=6))
    assert market.gangs()["second"].price_microusd_per_gpu_hour == 3


def test_a_withdrawn_node_gets_nothing_new_and_keeps_its_leases() -> None:
    market = Market()
    market.node("n1")
    market.job("first", spec(each=2))
    market.settle()
    market.add(withdrawn("n1"))
    market.job("second", spec(each=1))
    assert market.gangs() == {}
    assert market.state.leased == {"n1-0", "n1-1"}
    market.add(bid("n1"))
    assert market.free("n1") == 6


def test_gpus_of_a_lost_lease_are_not_sold_before_their_node_is_clear() -> None:
    market = leased_market()
    market.add(lost("n1"), alive("n1"))
    market.job("second", spec())
    assert market.gangs() == {}
    market.add(cleared("first", "first-1", "n1"))
    assert nodes_of(market.gangs()["second"]) == ["n1"]


def test_a_second_clearing_changes_nothing() -> None:
    market = leased_market()
    market.add(cleared("first", "first-1", "n1"))
    market.job("second", spec())
    market.settle()
    market.add(cleared("first", "first-1", "n1"))
    assert market.free("n1") == 0


def test_a_refused_bid_leaves_the_one_before_it() -> None:
    refused = BidRejected(
        account="owner-n1",
        node="n1",
        request_id="b2",
        at_ms=AT_MS,
        request_digest="",
        reason=Reason(code="too_many", message="too many"),
    )
    market = Market()
    market.node("n1")
    market.add(refused)
    assert market.free("n1") == 8
