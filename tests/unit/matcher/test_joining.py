"""Who joins a cluster later is as near to it as was asked for, also if it began as a single node."""

import pytest
from msgspec.structs import replace

from tests.unit.matcher.builders import NOWHERE, USD, A, B, Market, cleared, members_funded, nodes_of, spec, wanted
from volt.audit.market import audit_market
from volt.contracts.bids import Place
from volt.contracts.jobs import Level


def begun_alone(place: Place = A, level: Level = "fabric") -> Market:
    """`j` runs on n1, there; others are on fabric A, and cheaper ones on fabric B."""
    market = Market()
    market.node("n1", place=place)
    market.job("j", spec(1, 8, interconnect=level))
    assert nodes_of(market.gangs()["j"]) == ["n1"]
    for node, where, ask_microusd in (("a2", A, USD), ("a3", A, USD), ("b2", B, USD // 2), ("b3", B, USD // 2)):
        market.node(node, place=where, ask_microusd=ask_microusd)
    return market


def joins(market: Market, rank: int, attempt: int, *excluded: str) -> list[str]:
    """The node that takes the rank."""
    market.add(wanted("j", (rank, attempt), generation=1, excluded=excluded))
    market.add(members_funded("j", attempt, generation=1))
    gangs = market.gangs()
    assert audit_market(market.entries).findings == ()
    return nodes_of(gangs["j"]) if gangs else []


def test_a_cluster_grows_on_its_own_fabric() -> None:
    assert joins(begun_alone(), 1, 1) == ["a2"]


def test_the_one_node_of_a_cluster_is_replaced_wherever_it_is_cheapest() -> None:
    assert joins(begun_alone(), 0, 1, "n1") == ["b2"]


def test_a_cluster_grows_where_its_one_node_is_now() -> None:
    market = begun_alone()
    assert joins(market, 0, 1, "n1") == ["b2"]
    market.add(cleared("j", "j-1", "n1"))
    assert joins(market, 1, 2) == ["b3"]


def test_a_first_node_is_replaced_beside_those_that_have_joined_it() -> None:
    market = begun_alone()
    assert joins(market, 1, 1) == ["a2"]
    assert joins(market, 0, 2, "n1") == ["a3"]


@pytest.mark.parametrize("place", [NOWHERE, Place(region="eu", site="s1")])
def test_nobody_joins_a_node_of_an_unknown_fabric(place: Place) -> None:
    market = begun_alone(place)
    assert joins(market, 1, 1) == []
    assert market.state.reasons["j"].binding == "interconnect"
    assert joins(begun_alone(place), 0, 1, "n1") == ["b2"], "but it may be replaced"


def test_nobody_joins_a_node_that_was_to_be_within_reach_of_nvlink() -> None:
    assert joins(begun_alone(level="nvlink"), 1, 1) == []
    assert joins(begun_alone(level="nvlink"), 0, 1, "n1") == ["b2"]


def test_anybody_joins_a_cluster_that_may_be_anywhere() -> None:
    assert joins(begun_alone(level="any"), 1, 1) == ["b2"]


def test_a_node_that_moved_since_it_was_granted_does_not_move_the_cluster() -> None:
    market = begun_alone()
    moved = next(entry.event for entry in market.entries if getattr(entry.event, "node", "") == "n1")
    market.add(replace(moved, place=B))
    assert joins(market, 1, 1) == ["a2"]
