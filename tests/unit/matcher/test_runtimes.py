"""A job with an image goes to nodes that run images, a job without one to the others."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.matcher.builders import A, Market, alive, bid, cleared, members_funded, nodes_of, spec, wanted
from volt.contracts.bids import BidAccepted, Runtime
from volt.contracts.log import decode_event
from volt.contracts.messages import encode
from volt_matcher.domain import evolve
from volt_matcher.state import State

IMAGE = "registry.local:5000/team/app:1.2"


def offering(**runtimes: Runtime) -> Market:
    """Live nodes of eight GPUs with these runtimes."""
    bids = [bid(node, runtime=runtime) for node, runtime in runtimes.items()]
    return Market(*bids, *(alive(one.node) for one in bids))


def test_each_job_gets_a_node_that_can_run_it() -> None:
    market = offering(a="process", b="docker", c="process", d="docker")
    for number in range(2):
        market.job(f"plain-{number}", spec())
        market.job(f"image-{number}", spec(image=IMAGE))
    gangs = market.gangs()
    assert {job: nodes_of(gang)[0] for job, gang in gangs.items()} == {
        "plain-0": "a",
        "plain-1": "c",
        "image-0": "b",
        "image-1": "d",
    }


@pytest.mark.parametrize(
    ("runtime", "image", "message"),
    [
        ("process", IMAGE, "0 nodes that run images, 1 node needed"),
        ("docker", "", "0 nodes that run jobs without an image, 1 node needed"),
    ],
)
def test_a_job_that_no_runtime_can_run_is_told_so(runtime: Runtime, image: str, message: str) -> None:
    market = offering(a=runtime)
    market.job("j", spec(image=image))
    waiting = market.waiting()["j"]
    assert (waiting.binding, waiting.message, waiting.infeasible) == ("runtime", message, True)
    assert [(one.filter, one.seen, one.kept) for one in waiting.funnel if one.filter == "runtime"] == [
        ("runtime", 1, 0)
    ]


def test_a_replacement_must_be_able_to_run_it_too() -> None:
    market = offering(a="docker", b="docker")
    market.job("j", spec(2, image=IMAGE, interconnect="fabric"))
    market.settle()
    market.node("c", place=A)
    market.add(wanted("j", (1, 1), excluded=("b",)), members_funded("j", 1))
    assert market.waiting()["j"].binding == "runtime"
    market.add(bid("d", runtime="docker"), alive("d"))
    assert nodes_of(market.gangs()["j"]) == ["d"]


def test_a_node_that_comes_back_with_another_runtime_is_sold_by_that() -> None:
    market = offering(a="process")
    market.job("first", spec())
    assert list(market.gangs()) == ["first"]
    market.add(bid("a", runtime="docker"), cleared("first", "first-1", "a"))
    market.job("second", spec())
    assert market.gangs() == {}
    market.job("third", spec(image=IMAGE))
    assert list(market.gangs()) == ["third"]


def test_a_bid_that_says_no_runtime_runs_processes() -> None:
    old = msgspec.json.decode(encode(bid("a")), type=dict[str, msgspec.Raw])
    del old["runtime"]
    event = decode_event(msgspec.json.encode(old))
    assert isinstance(event, BidAccepted)
    assert event.runtime == "process"


runtimes = st.sampled_from(["process", "docker"])
supplies = st.lists(st.tuples(runtimes, st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=6)
jobs = st.lists(st.tuples(runtimes, st.integers(1, 2), st.integers(1, 4), st.integers(2, 5)), min_size=2, max_size=6)


@given(supplies, jobs)
@settings(max_examples=50, deadline=None)
def test_whoever_competes_for_what_every_grant_is_on_a_node_of_the_job_s_runtime(
    supply: list[tuple[Runtime, int, int]], asked: list[tuple[Runtime, int, int, int]]
) -> None:
    market = Market()
    nodes: dict[str, Runtime] = {}
    for number, (runtime, gpus, ask_microusd) in enumerate(supply):
        nodes[f"n{number}"] = runtime
        market.add(bid(f"n{number}", gpus, ask_microusd=ask_microusd, runtime=runtime), alive(f"n{number}"))
    needed: dict[str, Runtime] = {}
    for number, (runtime, count, each, cap_microusd) in enumerate(asked):
        needed[f"j{number}"] = runtime
        market.job(f"j{number}", spec(count, each, image=IMAGE if runtime == "docker" else ""), cap_microusd)
    for job, gang in market.gangs().items():
        assert {nodes[node] for node in nodes_of(gang)} == {needed[job]}
    fresh = State()
    for entry in market.entries:
        evolve(fresh, entry)
    assert fresh.book == market.state.book
