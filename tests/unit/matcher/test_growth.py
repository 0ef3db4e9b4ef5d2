"""Nodes by which a running cluster grows: near the others, one gang for each, and none that nobody wants any more."""

import pytest

from tests.unit.matcher.builders import (
    AT_MS,
    USD,
    A,
    B,
    Market,
    bid,
    forming,
    members_funded,
    nodes_of,
    spec,
    wanted,
)
from volt.audit.market import audit_market
from volt.contracts.bids import Place
from volt.contracts.clusters import GrowthGivenUp


def running(nodes: int = 2) -> Market:
    """Job `j` runs in generation 1 on fabric A, where a3 is free, as is the cheaper b1 on fabric B."""
    market = Market()
    for name in ("a1", "a2")[:nodes]:
        market.node(name)
    market.job("j", spec(nodes, interconnect="fabric"))
    gang = market.gangs()["j"]
    market.add(forming("j", 1, gang))
    market.node("b1", ask_microusd=USD // 2, place=B)
    return market


def grow(market: Market, *ranks_and_attempts: tuple[int, int], generation: int = 1) -> None:
    market.add(
        wanted("j", *ranks_and_attempts, generation=generation, replaces=None),
        members_funded("j", *(attempt for _, attempt in ranks_and_attempts), generation=generation),
    )


def given_up(*attempts: int) -> GrowthGivenUp:
    return GrowthGivenUp(
        account="buyer", job="j", generation=1, at_ms=AT_MS, ranks=(2,), attempts=attempts, leases=(), cause="unwanted"
    )


def test_a_cluster_grows_on_the_fabric_that_it_is_on_at_the_price_of_that_pass() -> None:
    market = running()
    market.node("a3", ask_microusd=USD + 7)
    grow(market, (2, 1))
    gang = market.gangs()["j"]
    assert (nodes_of(gang), gang.grants[0].rank, gang.generation) == (["a3"], 2, 1)
    assert gang.price_microusd_per_gpu_hour == USD + 7


def relieve(market: Market, rank: int, attempt: int, generation: int = 1) -> None:
    market.add(
        wanted("j", (rank, attempt), generation=generation, replaces=None, relieves="j-1"),
        members_funded("j", attempt, generation=generation),
    )


def test_the_only_node_of_a_cluster_is_relieved_by_any_and_it_grows_where_it_went() -> None:
    market = running(nodes=1)
    relieve(market, 1, 1)
    gang = market.gangs()["j"]
    assert (nodes_of(gang), gang.domain) == (["b1"], "fabric:eu/B")
    market.add(forming("j", 2, gang))
    market.node("a2")
    market.node("b2", ask_microusd=2 * USD, place=B)
    grow(market, (1, 2), generation=2)
    assert nodes_of(market.gangs()["j"]) == ["b2"]
    assert audit_market(market.entries).is_kept


def test_a_cluster_that_did_not_leave_its_node_grows_where_it_is() -> None:
    market = running(nodes=1)
    first = next(gang for entry in market.entries for gang in getattr(entry.event, "gangs", ()))
    relieve(market, 1, 1)
    market.gangs()
    market.add(forming("j", 2, first))
    market.node("a2")
    grow(market, (1, 2), generation=2)
    assert nodes_of(market.gangs()["j"]) == ["a2"]
    assert audit_market(market.entries).is_kept


def test_one_of_several_nodes_is_relieved_only_where_the_others_are() -> None:
    market = running()
    relieve(market, 2, 1)
    assert "j" not in market.gangs()


def test_a_cluster_of_one_node_grows_on_the_fabric_of_that_node() -> None:
    market = running(nodes=1)
    grow(market, (1, 1))
    assert market.waiting()["j"].message == (
        "growth by rank 1: none of 1 node is in fabric:eu/A, where the rest of the cluster is"
    )
    market.node("a2")
    assert nodes_of(market.gangs()["j"]) == ["a2"]


@pytest.mark.parametrize("place", [Place(), Place(region="eu"), Place(region="eu", site="s1")])
def test_a_cluster_on_a_node_of_unknown_fabric_cannot_grow_on_a_fabric(place: Place) -> None:
    market = Market()
    market.node("x", place=place)
    market.job("j", spec(interconnect="fabric"))
    market.add(forming("j", 1, market.gangs()["j"]))
    market.node("y", place=place)
    market.node("a1")
    grow(market, (1, 1))
    assert market.waiting()["j"].message == (
        "growth by rank 1: the fabric of x is unknown, so none of 2 nodes is known to be on it"
    )


def test_a_cluster_whose_nodes_need_not_be_near_grows_anywhere() -> None:
    market = Market()
    market.node("x", place=Place())
    market.job("j", spec(interconnect="any"))
    market.add(forming("j", 1, market.gangs()["j"]))
    market.node("b1", place=B)
    grow(market, (1, 1))
    assert nodes_of(market.gangs()["j"]) == ["b1"]


def test_a_cluster_of_one_node_that_was_replaced_elsewhere_grows_there() -> None:
    market = running(nodes=1)
    market.add(forming("j", 2, replaces=("j-1",)))
    market.want("j", 0, 1, excluded=("a1",), within="fabric:eu/A")
    moved = market.gangs()["j"]
    assert nodes_of(moved) == ["b1"]
    market.node("a2")
    market.node("b2", place=B)
    grow(market, (1, 2), generation=2)
    assert nodes_of(market.gangs()["j"]) == ["b2"]


def test_a_cluster_that_has_grown_from_one_node_is_replaced_on_its_fabric() -> None:
    market = running(nodes=1)
    first = next(gang for entry in market.entries for gang in getattr(entry.event, "gangs", ()))
    market.node("a2")
    grow(market, (1, 1))
    second = market.gangs()["j"]
    market.add(forming("j", 2, first, second), forming("j", 3, first, second, replaces=("j-1",)))
    market.add(wanted("j", (0, 2), generation=3, excluded=("a1",)), members_funded("j", 2, generation=3))
    assert "fabric:eu/A" in market.waiting()["j"].message


def test_growth_that_is_given_up_is_matched_no_more_and_may_be_wanted_again() -> None:
    market = running()
    grow(market, (2, 1))
    market.settle()
    market.add(given_up(1))
    market.node("a3")
    assert market.gangs() == {}
    grow(market, (2, 2))
    assert nodes_of(market.gangs()["j"]) == ["a3"]


def test_a_grant_that_crosses_with_its_growth_s_end_holds_its_gpus_until_they_are_clear() -> None:
    market = running()
    market.node("a3")
    grow(market, (2, 1))
    crossed = market.plan()
    assert crossed is not None
    market.add(given_up(1), crossed)
    assert market.free("a3") == 0


def test_a_new_generation_ends_the_growth_of_the_one_before() -> None:
    market = running()
    grow(market, (2, 1))
    market.settle()
    market.add(forming("j", 2))
    market.node("a3")
    assert market.gangs() == {}


def test_growth_has_its_own_node_and_not_one_that_the_job_holds() -> None:
    market = Market(bid("x", 16, place=Place(region="eu", site="s1", fabric="A")))
    market.node("x", 16)
    market.job("j", spec(1, 8, interconnect="fabric"))
    market.add(forming("j", 1, market.gangs()["j"]))
    grow(market, (1, 1))
    assert market.gangs() == {}
    market.node("y", place=A)
    assert nodes_of(market.gangs()["j"]) == ["y"]
