"""Where a gang goes: whole, together, cheapest, tightest; and in which order its ranks."""

import pytest
from msgspec import structs

from tests.unit.matcher.builders import NOWHERE, A, B, C, Market, alive, bid, cleared, nodes_of, spec
from volt.contracts.bids import Place
from volt.contracts.jobs import Level
from volt.contracts.market import Gang


def place(market: Market, *arguments: int, interconnect: Level = "any") -> Gang:
    market.job("j", spec(*arguments, interconnect=interconnect))
    return market.gangs()["j"]


def test_a_gang_pays_the_highest_ask_of_its_own_nodes() -> None:
    market = Market()
    market.node("n1", ask_microusd=900_000)
    market.node("n2", ask_microusd=1_100_000)
    market.node("n3", ask_microusd=1_500_000)
    gang = place(market, 2, 8)
    assert nodes_of(gang) == ["n1", "n2"]
    assert gang.price_microusd_per_gpu_hour == 1_100_000


def test_the_cap_binds_to_the_micro_dollar() -> None:
    market = Market()
    market.node("n1", ask_microusd=1_000_001)
    market.job("j", spec(), cap_microusd=1_000_000)
    assert market.gangs() == {}
    market.add(bid("n1", ask_microusd=1_000_000))
    assert market.gangs()["j"].price_microusd_per_gpu_hour == 1_000_000


def test_another_job_s_trade_does_not_move_the_price() -> None:
    market = Market()
    market.node("n1", ask_microusd=500_000)
    market.node("n2", ask_microusd=1_900_000)
    market.job("a", spec())
    market.job("b", spec())
    gangs = market.gangs()
    assert [gangs[job].price_microusd_per_gpu_hour for job in ("a", "b")] == [500_000, 1_900_000]


def test_the_sum_of_asks_decides_between_fabrics() -> None:
    market = Market()
    for name, ask_microusd, where in (("a1", 1, A), ("a2", 900, A), ("b1", 500, B), ("b2", 600, B)):
        market.node(name, ask_microusd=ask_microusd, place=where)
    gang = place(market, 2, 8, interconnect="fabric")
    assert (nodes_of(gang), gang.price_microusd_per_gpu_hour, gang.domain) == (["a1", "a2"], 900, "fabric:eu/A")


def test_equal_sums_go_to_the_lower_highest_ask() -> None:
    market = Market()
    for name, ask_microusd, where in (("a1", 1, A), ("a2", 900, A), ("b1", 401, B), ("b2", 500, B), ("b3", 999, B)):
        market.node(name, ask_microusd=ask_microusd, place=where)
    gang = place(market, 2, 8, interconnect="fabric")
    assert (nodes_of(gang), gang.price_microusd_per_gpu_hour) == (["b1", "b2"], 500)


def test_equal_prices_go_to_the_domain_with_the_fewest_free_gpus() -> None:
    market = Market()
    for name in ("a1", "a2", "a3"):
        market.node(name, place=A)
    for name in ("b1", "b2"):
        market.node(name, place=B)
    assert nodes_of(place(market, 2, 8, interconnect="fabric")) == ["b1", "b2"]


def test_where_any_place_would_do_equal_prices_still_keep_a_gang_together() -> None:
    market = Market()
    for name, where in (("n1", C), ("n2", A), ("n3", NOWHERE), ("n4", B), ("n5", B), ("n6", A)):
        market.node(name, place=where)
    market.node("n7", place=A)
    gang = place(market, 2, 8)
    assert (nodes_of(gang), gang.domain) == (["n4", "n5"], "fabric:eu/B")


def test_where_any_place_would_do_a_cheaper_gang_is_taken_apart() -> None:
    market = Market()
    for name, ask_microusd, where in (("a", 5, A), ("b1", 6, B), ("b2", 6, B), ("c", 5, C)):
        market.node(name, ask_microusd=ask_microusd, place=where)
    gang = place(market, 2, 8)
    assert (nodes_of(gang), gang.price_microusd_per_gpu_hour, gang.domain) == (["a", "c"], 5, "")


def test_one_gpu_goes_to_the_fullest_node_so_that_whole_nodes_stay_whole() -> None:
    market = Market()
    market.node("n1", 8)
    market.node("n2", 2)
    market.node("b1", 1, place=B)
    market.node("b2", 16, place=B)
    assert nodes_of(place(market, 1, 1)) == ["b1"]


def test_equally_full_nodes_go_by_their_fabrics() -> None:
    market = Market()
    market.node("a1", 2)
    market.node("a2", 8)
    market.node("b1", 2, place=B)
    assert nodes_of(place(market, 1, 1)) == ["b1"]


def test_equal_choices_go_by_id() -> None:
    market = Market()
    for name in ("n3", "n1", "n2"):
        market.node(name)
    assert nodes_of(place(market, 2, 8)) == ["n1", "n2"]


def test_gpus_are_taken_lowest_uuid_first() -> None:
    market = Market()
    market.node("n1", ["c", "a", "d", "b"])
    assert place(market, 1, 2).grants[0].gpus == ("a", "b")


LEVEL_CASES: list[tuple[Level, tuple[str, ...], str]] = [
    ("fabric", ("a1", "a2"), "fabric:eu/A"),
    ("site", ("a1", "b1"), "site:eu/s1"),
    ("region", ("a1", "d1"), "region:eu"),
    ("any", ("a1", "c1"), ""),
]


@pytest.mark.parametrize(("level", "names", "domain"), LEVEL_CASES)
def test_each_level_holds_just_the_nodes_below_it(level: Level, names: tuple[str, ...], domain: str) -> None:
    places = {"a": A, "b": B, "c": C, "d": Place(region="eu", site="s9", fabric="D")}
    market = Market()
    for name in names:
        market.node(name, place=places[name[0]])
    gang = place(market, 2, 8, interconnect=level)
    assert (sorted(nodes_of(gang)), gang.domain) == (sorted(names), domain)
    for wider, apart, _ in LEVEL_CASES[LEVEL_CASES.index((level, names, domain)) + 1 :]:
        other = Market()
        for name in apart:
            other.node(name, place=places[name[0]])
        other.job("j", spec(2, interconnect=level))
        assert other.waiting()["j"].binding == "interconnect", f"{level} must not be {wider}"


@pytest.mark.parametrize(
    "where",
    [NOWHERE, Place(region="eu"), Place(region="eu", site="s1"), Place(fabric="A"), Place(site="s", fabric="A")],
)
def test_two_unknown_fabrics_are_not_one(where: Place) -> None:
    market = Market()
    market.node("n1", place=where)
    market.node("n2", place=where)
    market.job("j", spec(2, interconnect="fabric"))
    assert market.waiting()["j"].binding == "interconnect"


def test_nodes_without_a_fabric_are_no_group_of_their_own() -> None:
    market = Market()
    for name, region, ask_microusd in (("e1", "eu", 1), ("e2", "eu", 9), ("u1", "us", 1), ("u2", "us", 8)):
        market.node(name, place=Place(region=region), ask_microusd=ask_microusd)
    gang = place(market, 2, 8, interconnect="region")
    assert (nodes_of(gang), gang.price_microusd_per_gpu_hour) == (["u1", "u2"], 8)


def test_fabrics_of_one_name_in_two_regions_are_two() -> None:
    market = Market()
    market.node("n1", place=Place(region="eu", fabric="A"))
    market.node("n2", place=Place(region="us", fabric="A"))
    market.job("j", spec(2, interconnect="fabric"))
    assert market.gangs() == {}


def test_one_node_is_together_wherever_it_is() -> None:
    market = Market()
    market.node("n1", place=NOWHERE)
    gang = place(market, 1, 8, interconnect="fabric")
    assert (nodes_of(gang), gang.domain) == (["n1"], "")


def test_ranks_follow_topology_then_ask_then_id() -> None:
    market = Market()
    for name, ask_microusd, where in (("z", 1, C), ("y", 2, A), ("x", 3, B), ("w", 2, A), ("v", 1, B)):
        market.node(name, ask_microusd=ask_microusd, place=where)
    gang = place(market, 5, 8)
    assert nodes_of(gang) == ["w", "y", "v", "x", "z"]
    assert [grant.rank for grant in gang.grants] == [0, 1, 2, 3, 4]
    assert [grant.lease for grant in gang.grants] == ["j-1", "j-2", "j-3", "j-4", "j-5"]


def test_a_gang_is_granted_whole_or_not_at_all() -> None:
    market = Market()
    for name in ("n1", "n2", "n3"):
        market.node(name)
    market.job("four", spec(4))
    assert market.gangs() == {}
    assert market.state.leased == set()
    market.node("n4")
    assert len(market.gangs()["four"].grants) == 4


def test_every_gpu_is_of_a_model_that_was_asked_for() -> None:
    market = Market(bid("n1", model="a100-40gb"), alive("n1"), bid("n2", model="h100-80gb"), alive("n2"))
    market.job("both", spec(2, 8, models=("h100-80gb", "a100-40gb")))
    assert market.waiting()["both"].binding == "free_gpus", "a gang is of one model"
    market.job("j", spec(1, 8, models=("h100-80gb",)))
    assert nodes_of(market.gangs()["j"]) == ["n2"]
    market.job("k", spec(1, 8, models=("h100-80gb", "a100-40gb")))
    assert nodes_of(market.gangs()["k"]) == ["n1"]


def test_a_node_of_mixed_models_gives_only_those_asked_for() -> None:
    plain = bid("n1", 4)
    models = ("old", "new", "old", "new")
    mixed = tuple(structs.replace(gpu, model=model) for gpu, model in zip(plain.gpus, models, strict=True))
    market = Market(structs.replace(plain, gpus=mixed), alive("n1"))
    market.job("three", spec(1, 3, models=("new",)))
    market.job("two", spec(1, 2, models=("new",)))
    assert market.gangs()["two"].grants[0].gpus == ("n1-1", "n1-3")


def test_memory_is_a_floor() -> None:
    market = Market(bid("n1", memory_mib=24_564), alive("n1"))
    market.job("j", spec(min_memory_mib=24_565))
    assert market.waiting()["j"].binding == "memory"
    market.job("k", spec(min_memory_mib=24_564))
    assert list(market.gangs()) == ["k"]


def test_a_node_of_unknown_region_passes_a_denial_and_no_allowance() -> None:
    market = Market()
    market.node("n1", place=NOWHERE)
    market.job("only-eu", spec(each=1, regions=("eu",)))
    market.job("not-us", spec(each=1, regions_denied=("us",)))
    assert list(market.gangs()) == ["not-us"]


def test_denied_regions_are_left_out_and_allowed_ones_are_the_only_ones() -> None:
    market = Market()
    market.node("n1", place=A)
    market.node("n2", place=C)
    market.job("us", spec(each=1, regions=("us",)))
    market.job("not-us", spec(each=1, regions_denied=("us",)))
    gangs = market.gangs()
    assert (nodes_of(gangs["us"]), nodes_of(gangs["not-us"])) == (["n2"], ["n1"])


def replaced(market: Market, *, within: str) -> list[str]:
    """Where the replacement of rank 1 goes."""
    market.want("j", 1, 1, within=within)
    gangs = market.gangs()
    return nodes_of(gangs["j"]) if gangs else []


def test_a_replacement_is_sought_in_the_same_domain_first_even_if_it_is_dearer() -> None:
    market = Market()
    market.node("a1", place=A)
    market.node("a2", place=A)
    assert place(market, 2, 8).domain == "fabric:eu/A"
    market.node("a3", place=A, ask_microusd=1_500_000)
    market.node("b1", place=B, ask_microusd=500_000)
    assert replaced(market, within="fabric:eu/A") == ["a3"]


@pytest.mark.parametrize(("level", "found"), [("any", ["c1"]), ("region", ["d1"]), ("site", ["b1"]), ("fabric", [])])
def test_a_replacement_goes_elsewhere_only_as_far_as_the_job_allows(level: Level, found: list[str]) -> None:
    market = Market()
    market.node("a1", place=A)
    market.node("a2", place=A)
    place(market, 2, 8, interconnect=level)
    market.node("b1", place=B, ask_microusd=3)
    market.node("d1", place=Place(region="eu", site="s9", fabric="D"), ask_microusd=2)
    market.node("c1", place=C, ask_microusd=1)
    assert replaced(market, within="fabric:eu/A") == found


@pytest.mark.parametrize("moved", [C, Place(region="eu", site="s2", fabric="A")])
def test_nodes_that_move_while_their_grant_is_on_its_way_do_not_move_the_cluster(moved: Place) -> None:
    market = Market()
    market.node("a1", place=A)
    market.node("a2", place=A)
    market.job("j", spec(2, interconnect="site"))
    late = market.plan()
    assert late is not None
    market.add(bid("a1", place=moved), bid("a2", place=moved if moved == C else A), late)
    market.node("c1", place=C)
    market.node("d1", place=Place(region="eu", site="s2", fabric="D"))
    assert replaced(market, within="fabric:eu/A") == []
    market.node("a3", place=A)
    assert nodes_of(market.gangs()["j"]) == ["a3"]


def test_a_replacement_of_a_single_node_may_go_anywhere() -> None:
    market = Market()
    market.node("a1", place=A)
    place(market, 1, 8, interconnect="fabric")
    market.node("c1", place=C)
    market.want("j", 0, 1, within="fabric:eu/A")
    assert nodes_of(market.gangs()["j"]) == ["c1"]


def test_what_is_cleared_is_sold_again() -> None:
    market = Market()
    market.node("n1")
    place(market, 1, 8)
    market.job("next", spec())
    assert market.gangs() == {}
    market.add(cleared("j", "j-1", "n1"))
    assert list(market.gangs()) == ["next"]
