"""A job that waits is told why, at once, and what would clear now."""

import pytest

from tests.unit.matcher.builders import (
    NOWHERE,
    USD,
    A,
    B,
    C,
    Market,
    admitted,
    alive,
    bid,
    cleared,
    funded,
    members_funded,
    released,
    spec,
    unknown,
    wanted,
)
from volt.contracts.jobs import JobSpec, Level
from volt.contracts.market import Alternative, Waiting
from volt_matcher.place import cheapest
from volt_matcher.state import first_request


def told(market: Market, what: JobSpec, cap_microusd: int = 2 * USD) -> Waiting:
    """What a job `j` is told that cannot be placed."""
    market.job("j", what, cap_microusd)
    return market.waiting()["j"]


def changes(waiting: Waiting) -> list[Alternative]:
    return list(waiting.alternatives)


def reshaped(nodes: int, each: int, price_microusd: int = USD, *, interconnect: Level = "any") -> Alternative:
    """So many nodes with so many GPUs each."""
    return Alternative(
        nodes=nodes,
        gpus=nodes * each,
        price_microusd_per_gpu_hour=price_microusd,
        interconnect=interconnect if nodes > 1 else None,
    )


def fragmented() -> Market:
    """Four nodes of eight, six of each leased: two are free on each."""
    market = Market()
    for name in ("n1", "n2", "n3", "n4"):
        market.node(name)
        market.job(f"holds-{name}", spec(each=6))
    assert len(market.gangs()) == 4
    return market


def test_eight_free_gpus_on_four_nodes_are_not_eight_on_one() -> None:
    waiting = told(fragmented(), spec(1, 8))
    assert waiting.binding == "free_gpus"
    assert waiting.message == "largest node has 2 free, 8 needed on one node"
    assert not waiting.infeasible
    assert changes(waiting) == [reshaped(4, 2), reshaped(1, 2)]


def test_supply_that_never_was_is_told_from_supply_that_is_leased() -> None:
    market = Market()
    for name in ("n1", "n2", "n3", "n4"):
        market.node(name, 2)
    assert told(market, spec(1, 8)).infeasible
    market.node("n5", 8)
    market.job("older-than-nothing", spec(1, 8))
    assert [said.gangs[0].job for said in market.settle() if said.gangs] == ["j"]
    again = market.state.reasons["older-than-nothing"]
    assert (again.binding, again.infeasible) == ("free_gpus", False)


def test_a_job_hears_again_when_what_was_infeasible_becomes_a_matter_of_time() -> None:
    market = Market()
    market.node("n1", 2)
    market.job("first", spec(1, 8))
    market.job("second", spec(1, 8))
    assert {waiting.infeasible for waiting in market.waiting().values()} == {True}
    market.node("n2", 8)
    again = market.waiting()
    assert list(again) == ["second"]
    assert not again["second"].infeasible


def test_the_funnel_counts_what_each_filter_removed() -> None:
    market = Market(bid("dead"), bid("other", model="h100-80gb"), alive("other"))
    market.add(bid("small", memory_mib=1000), alive("small"))
    market.node("few", 2)
    market.node("far", place=C)
    market.node("dear", ask_microusd=3 * USD)
    waiting = told(market, spec(1, 8, regions=("eu",), min_memory_mib=2000))
    assert [(count.filter, count.seen, count.kept) for count in waiting.funnel] == [
        ("alive", 6, 5),
        ("excluded", 5, 5),
        ("model", 5, 4),
        ("memory", 4, 3),
        ("free_gpus", 3, 2),
        ("interconnect", 2, 2),
        ("region", 2, 1),
        ("price", 1, 0),
    ]
    assert waiting.binding == "price"


def test_the_market_with_nobody_in_it_says_so() -> None:
    waiting = told(Market(), spec())
    assert (waiting.binding, waiting.message) == ("alive", "0 nodes alive of 0 on offer, 1 node needed")
    assert waiting.infeasible
    assert waiting.alternatives == ()


@pytest.mark.parametrize(
    ("binding", "message", "what"),
    [
        ("model", "0 nodes with h100-80gb, 1 node needed", spec(models=("h100-80gb",))),
        ("memory", "0 nodes with GPUs of 99999 MiB, 1 node needed", spec(min_memory_mib=99_999)),
        ("alive", "2 nodes alive of 2 on offer, 3 nodes needed", spec(3)),
        ("free_gpus", "largest node has 8 free, 9 needed on each of 2 nodes", spec(2, 9)),
        (
            "interconnect",
            "largest fabric has 1 node that would do, 2 needed in one fabric",
            spec(2, interconnect="fabric"),
        ),
        ("region", "0 nodes in the regions asked for, 1 node needed", spec(regions=("mars",))),
    ],
)
def test_each_filter_says_what_it_found_and_what_was_needed(binding: str, message: str, what: JobSpec) -> None:
    market = Market()
    market.node("n1", place=A)
    market.node("n2", place=B)
    waiting = told(market, what)
    assert (waiting.binding, waiting.message) == (binding, message)


def test_too_few_whole_nodes_are_counted() -> None:
    market = Market()
    market.node("n1")
    market.node("n2", 7)
    waiting = told(market, spec(2))
    assert (waiting.binding, waiting.message) == ("free_gpus", "1 node with 8 free, 2 nodes needed")
    assert changes(waiting) == [reshaped(2, 7)]


def test_a_fabric_that_nobody_names_is_said_to_be_unknown() -> None:
    market = Market()
    market.node("n1", place=NOWHERE)
    market.node("n2", place=NOWHERE)
    waiting = told(market, spec(2, interconnect="fabric"))
    assert waiting.message == "none of 2 nodes says which fabric it is in, 2 needed in one fabric"
    assert waiting.infeasible
    assert changes(waiting) == [
        Alternative(interconnect="any", gpus=16, price_microusd_per_gpu_hour=USD),
        reshaped(1, 8),
    ]


def test_a_price_that_binds_names_the_lowest_ask_and_the_cap_that_clears() -> None:
    market = Market()
    market.node("n1", ask_microusd=1_520_000)
    market.node("n2", ask_microusd=1_600_000)
    waiting = told(market, spec(2), cap_microusd=USD)
    assert waiting.message == (
        "0 nodes asking at most $1.000000 per GPU-hour, 2 nodes needed; the lowest ask is $1.520000"
    )
    assert changes(waiting) == [
        Alternative(max_price_microusd_per_gpu_hour=1_600_000, gpus=16, price_microusd_per_gpu_hour=1_600_000)
    ]


def test_enough_cheap_nodes_in_all_are_not_enough_when_no_fabric_holds_them() -> None:
    market = Market()
    for name, where, ask_microusd in (("a1", A, 1), ("a2", A, 9), ("b1", B, 1), ("b2", B, 9)):
        market.node(name, place=where, ask_microusd=ask_microusd)
    waiting = told(market, spec(2, interconnect="fabric"), cap_microusd=5)
    assert waiting.binding == "price"
    assert "2 nodes needed in one fabric" in waiting.message
    assert Alternative(interconnect="site", gpus=16, price_microusd_per_gpu_hour=1) in changes(waiting)


def test_another_region_is_offered_by_name() -> None:
    market = Market()
    market.node("n1", place=C, ask_microusd=700_000)
    assert changes(told(market, spec(regions=("eu",)))) == [
        Alternative(dropped="regions", places=("us",), gpus=8, price_microusd_per_gpu_hour=700_000)
    ]


def test_one_alternative_of_each_kind_is_offered() -> None:
    market = Market()
    for number in range(4):
        market.node(f"far-{number}", place=C)
        market.node(f"dear-{number}", place=[A, B][number % 2], ask_microusd=3 * USD)
    market.node("near", place=A)
    waiting = told(market, spec(4, interconnect="fabric", regions=("eu",)))
    assert changes(waiting) == [
        Alternative(dropped="regions", places=("us",), gpus=32, price_microusd_per_gpu_hour=USD),
        reshaped(1, 8),
    ]
    market.node("near-too", place=B)
    market.job("k", spec(2, interconnect="fabric", regions=("eu",)))
    assert [(one.dropped, one.interconnect, one.nodes) for one in market.waiting()["k"].alternatives] == [
        (None, None, None),
        ("regions", None, None),
        (None, "site", None),
        (None, None, 1),
    ]


def test_what_clears_only_at_a_higher_cap_too_says_both() -> None:
    market = Market()
    market.node("n1", place=C, ask_microusd=3 * USD)
    assert changes(told(market, spec(regions=("eu",)))) == [
        Alternative(
            dropped="regions",
            places=("us",),
            max_price_microusd_per_gpu_hour=3 * USD,
            gpus=8,
            price_microusd_per_gpu_hour=3 * USD,
        )
    ]


def test_every_alternative_clears_when_it_is_asked_for() -> None:
    waiting = told(fragmented(), spec(1, 8))
    assert [one.gpus for one in waiting.alternatives] == [8, 2]
    for shape in ((4, 2), (1, 2)):
        market = fragmented()
        market.job("changed", spec(*shape))
        assert list(market.gangs()) == ["changed"]


def test_what_the_pass_grants_is_exactly_what_fits() -> None:
    market = fragmented()
    for number, what in enumerate([spec(1, 8), spec(5, 2), spec(2, 2), spec(2, 2), spec(1, 1)]):
        request = first_request(what, 2 * USD, 0)
        fits = cheapest(market.state.book, request) is not None
        market.job(f"j{number}", what)
        assert (f"j{number}" in market.gangs()) == fits


def test_a_reason_is_told_once_and_again_only_when_another_filter_binds() -> None:
    market = Market()
    market.node("n1", 2)
    assert told(market, spec(1, 8)).binding == "free_gpus"
    market.node("n2", 3)
    assert market.settle() == []
    market.node("n3", 8, ask_microusd=9 * USD)
    assert market.waiting()["j"].binding == "price"


def test_a_waiting_job_is_tried_again_after_every_change_that_could_place_it() -> None:
    market = Market(bid("n1", 4))
    market.job("j", spec(1, 8))
    for change in (alive("n1"), unknown("n1"), bid("n1", 8, ask_microusd=9 * USD), alive("n1")):
        market.add(change)
        assert market.gangs() == {}
    market.add(bid("n1", 8))
    assert list(market.gangs()) == ["j"]
    market.job("k", spec(1, 8))
    assert market.gangs() == {}
    market.add(released("j"))
    assert market.gangs() == {}
    market.add(cleared("j", "j-1", "n1"))
    assert list(market.gangs()) == ["k"]


def test_two_buyers_of_the_last_node_get_an_answer_each_in_one_pass() -> None:
    market = Market()
    market.node("n1")
    market.job("older", spec())
    market.job("younger", spec())
    said = market.run()
    assert said is not None
    assert ([gang.job for gang in said.gangs], [waiting.job for waiting in said.waiting]) == (["older"], ["younger"])


def test_age_is_that_of_the_admission_not_of_the_money() -> None:
    market = Market(admitted("z-older", spec()), admitted("a-younger", spec()), funded("a-younger"), funded("z-older"))
    market.node("n1")
    assert list(market.gangs()) == ["z-older"]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_replacement_that_waits_is_told_why_without_alternatives(generation: int) -> None:
    market = Market()
    market.node("a1", place=A)
    market.node("a2", place=A)
    market.job("j", spec(2, interconnect="fabric"))
    market.settle()
    market.node("b1", place=B)
    market.add(wanted("j", (1, 1), generation=generation, excluded=("a2",), within="fabric:eu/A"))
    market.add(members_funded("j", 1, generation=generation))
    waiting = market.waiting()["j"]
    assert waiting.binding == "interconnect"
    assert waiting.message == (
        "replacement of rank 1: none of 1 node is in fabric:eu/A, where the rest of the cluster is"
    )
    assert waiting.alternatives == ()


def test_a_job_that_got_one_of_two_replacements_is_told_again_why_the_other_waits() -> None:
    market = Market()
    market.node("a1", 2)
    market.node("a2", 2)
    market.job("j", spec(2, 2))
    market.settle()
    market.add(wanted("j", (0, 1), (1, 2), excluded=("a1", "a2")), members_funded("j", 1, 2))
    assert market.waiting()["j"].message.startswith("replacement of rank 0")
    market.node("a3", 2)
    assert market.waiting()["j"].message.startswith("replacement of rank 1")
