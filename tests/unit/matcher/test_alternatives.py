"""Every alternative clears when what it changes is changed, whatever else was asked for."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.matcher.advised import changed
from tests.unit.matcher.builders import USD, A, Market, alive, bid, spec
from volt.contracts.bids import BidAccepted, Place
from volt.contracts.jobs import JobSpec, Workload
from volt.contracts.market import Alternative
from volt_matcher.alternatives import alternatives
from volt_matcher.place import cheapest
from volt_matcher.state import first_request
from volt_matcher.survey import Shortfall, Survey

UNKNOWN = Shortfall("price", 0, 1, (), 0, 0, 0)
"""Every change might help."""
PLACE = Place(region="eu", country="DE", site="s1", fabric="A", bandwidth_gbps=200)


@pytest.mark.parametrize(
    ("asked", "dropped"),
    [
        ({"workload": {"command": ["t"], "image": "app:1"}}, "image"),
        ({"min_memory_mib": 99_999}, "min_memory_mib"),
        ({"interface": "sxm"}, "interface"),
        ({"min_bandwidth_gbps": 400}, "min_bandwidth_gbps"),
        ({"min_reliability_permille": 999}, "min_reliability_permille"),
        ({"tier": "datacenter"}, "tier"),
        ({"regions": ("us",)}, "regions"),
        ({"regions_denied": ("eu",)}, "regions"),
        ({"countries": ("FR",)}, "countries"),
        ({"countries_denied": ("DE",)}, "countries"),
        ({"providers_excluded": ("owner-n1",)}, "providers_excluded"),
    ],
)
def test_the_one_constraint_that_is_in_the_way_is_named(asked: dict[str, object], dropped: str) -> None:
    market = Market(bid("n1", place=PLACE), structs.replace(alive("n1"), reliability_permille=900))
    market.job("j", msgspec.convert(msgspec.to_builtins(spec()) | asked, JobSpec))
    (alternative,) = market.waiting()["j"].alternatives
    assert alternative.dropped == dropped


def test_nvlink_is_given_up_for_one_fabric() -> None:
    market = Market()
    for name in ("n1", "n2"):
        market.node(name, 4, place=A)
    market.job("j", spec(1, 8, interconnect="nvlink"))
    assert market.waiting()["j"].alternatives == (
        Alternative(nodes=2, gpus=8, interconnect="fabric", price_microusd_per_gpu_hour=USD),
        Alternative(nodes=1, gpus=4, price_microusd_per_gpu_hour=USD),
    )


places = st.builds(
    Place,
    region=st.sampled_from(["eu", "us", ""]),
    country=st.sampled_from(["DE", "FR", ""]),
    fabric=st.sampled_from(["A", "B", ""]),
    bandwidth_gbps=st.sampled_from([0, 200]),
)
bids = st.builds(
    lambda node, gpus, ask, place, memory, runtime, tier: structs.replace(
        bid(node, gpus, ask_microusd=ask, place=place, memory_mib=memory, runtime=runtime), tier=tier
    ),
    st.sampled_from(["n0", "n1", "n2", "n3"]),
    st.integers(1, 4),
    st.integers(1, 5),
    places,
    st.sampled_from([10, 20]),
    st.sampled_from(["process", "docker"]),
    st.sampled_from(["community", "datacenter"]),
)


def _spec(shapes: tuple[tuple[int, int], ...], level: str, **constraints: object) -> JobSpec:
    terms = {
        "shapes": [{"nodes": nodes, "gpus_per_node": each} for nodes, each in shapes],
        "interconnect": "fabric" if level == "nvlink" and shapes[0][0] > 1 else level,
        **constraints,
    }
    return msgspec.convert(msgspec.to_builtins(spec()) | terms, JobSpec)


shapes = st.sampled_from([((1, 4),), ((2, 2),), ((3, 1),), ((1, 4), (2, 2), (4, 1)), ((2, 4), (4, 2))])
specs = st.builds(
    _spec,
    shapes,
    st.sampled_from(["nvlink", "fabric", "site", "region", "any"]),
    regions=st.sampled_from([(), ("eu",)]),
    countries_denied=st.sampled_from([(), ("FR",)]),
    min_memory_mib=st.sampled_from([0, 15]),
    min_bandwidth_gbps=st.sampled_from([0, 100]),
    tier=st.sampled_from([None, "datacenter"]),
    providers_excluded=st.sampled_from([(), ("owner-n0",)]),
    workload=st.sampled_from([Workload(command=("t",)), Workload(command=("t",), image="app:1")]).map(
        msgspec.to_builtins
    ),
)


@given(st.lists(bids, min_size=1, max_size=4, unique_by=lambda one: one.node), specs, st.none() | st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_an_alternative_taken_up_field_by_field_clears_at_its_price(
    supply: list[BidAccepted], what: JobSpec, cap_microusd: int | None
) -> None:
    market = Market(*supply, *(alive(one.node) for one in supply))
    request = first_request(what, cap_microusd, 0)
    if cheapest(market.state.book, request) is not None:
        return
    short = Survey(market.state).shortfall(request)
    assert short is not None or len(what.shapes) > 1 or what.interconnect == "nvlink"
    offered = alternatives(market.state.book, request, short or UNKNOWN)
    assert offered == alternatives(market.state.book, request, UNKNOWN), "nothing that clears is passed over"
    for one in offered:
        again = first_request(*changed(what, cap_microusd, one), 0)
        assert again != request, one
        placed = cheapest(market.state.book, again)
        assert placed is not None, one
        assert (placed.price_microusd_per_gpu_hour, placed.gpus) == (one.price_microusd_per_gpu_hour, one.gpus)
