"""How long a job waits, what it costs to ask, and when time alone makes a difference."""

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.matcher.builders import AT_MS, USD, Market, alive, bid, nodes_of, spec
from volt.contracts.bids import BidAccepted, Place, Terms
from volt.contracts.jobs import JobSpec, Shape
from volt.contracts.market import MarketCleared
from volt.contracts.units import MS_PER_SECOND
from volt_matcher.effects import effects

HOUR_SECONDS = 3_600
HOUR_MS = HOUR_SECONDS * MS_PER_SECOND


def offering(*nodes: str, **terms: int) -> Market:
    """Nodes with 8 GPUs each, on these terms."""
    offers = [_on_terms(bid(node, 8), **terms) for node in nodes]
    return Market(*offers, *(alive(node) for node in nodes))


def _on_terms(offer: BidAccepted, **terms: int) -> BidAccepted:
    return replace(offer, terms=replace(offer.terms, **terms))


def said_at(market: Market, after_ms: int) -> MarketCleared | None:
    """What the matcher says at that time, having had nothing to say before."""
    assert effects(market.state, market.at_ms) == ()
    said = effects(market.state, AT_MS + after_ms)
    market.add(*said)
    market.at_ms = AT_MS + after_ms
    (one,) = said or (None,)
    assert one is None or isinstance(one, MarketCleared)
    return one


def patient(seconds: int | None, what: JobSpec | None = None) -> JobSpec:
    return replace(what or spec(1, 8), max_wait_seconds=seconds)


def test_a_job_that_will_not_wait_is_granted_or_expires_in_the_same_message() -> None:
    market = offering("n1")
    market.job("j1", patient(0))
    market.job("j2", patient(0))
    (said,) = market.settle()
    assert [gang.job for gang in said.gangs] == ["j1"]
    assert [one.job for one in said.expired] == ["j2"]
    assert [one.job for one in said.waiting] == ["j2"], "and it is told why"
    assert "j2" in market.state.ended


def test_a_job_waits_for_as_long_as_it_said() -> None:
    market = offering("n1")
    market.job("j1", spec(1, 8))
    market.job("j2", patient(60))
    market.settle()
    assert said_at(market, 59 * MS_PER_SECOND) is None, "nothing has changed"
    expired = said_at(market, 60 * MS_PER_SECOND)
    assert expired is not None
    assert [one.job for one in expired.expired] == ["j2"]


def test_a_question_is_answered_and_holds_nothing() -> None:
    market = offering("n1", "n2")
    market.ask("q1", spec(2, 8))
    market.ask("q2", spec(2, 8))
    market.ask("q3", spec(3, 8))
    (said,) = market.settle()
    first, second, third = said.quotes
    assert first.gang is not None
    assert second.gang is not None
    assert nodes_of(first.gang) == nodes_of(second.gang) == ["n1", "n2"]
    assert third.waiting is not None
    assert third.waiting.infeasible
    assert market.state.quotes == {}
    assert market.state.leased == set()


@pytest.mark.parametrize(("duration", "fits"), [(None, False), (2 * HOUR_SECONDS, False), (HOUR_SECONDS, True)])
def test_a_lot_with_a_longest_lease_takes_only_jobs_that_say_how_long_they_take(
    duration: int | None, fits: bool
) -> None:
    market = offering("n1", max_duration_seconds=HOUR_SECONDS)
    market.job("j1", replace(spec(1, 8), max_duration_seconds=duration))
    (said,) = market.settle()
    assert [gang.job for gang in said.gangs] == (["j1"] if fits else [])
    assert [one.binding for one in said.waiting] == ([] if fits else ["terms"])


def test_a_window_that_opens_is_used_when_it_does() -> None:
    market = offering("n1", available_from_ms=AT_MS + HOUR_MS)
    market.job("j1", spec(1, 8))
    assert market.waiting()["j1"].binding == "terms"
    assert said_at(market, HOUR_MS - 1) is None
    opened = said_at(market, HOUR_MS)
    assert opened is not None
    assert [gang.job for gang in opened.gangs] == ["j1"]


def test_a_lease_ends_before_its_window_closes() -> None:
    market = offering("n1", available_until_ms=AT_MS + HOUR_MS)
    market.job("long", replace(spec(1, 8), max_duration_seconds=HOUR_SECONDS + 1))
    market.job("short", replace(spec(1, 8), max_duration_seconds=HOUR_SECONDS // 2))
    assert list(market.gangs()) == ["short"]


def test_a_paused_node_sells_nothing_and_keeps_its_leases() -> None:
    market = offering("n1")
    market.job("j1", spec(1, 4))
    assert list(market.gangs()) == ["j1"]
    market.add(replace(bid("n1", 8), terms=Terms(ask_microusd_per_gpu_hour=USD, paused=True)))
    market.job("j2", spec(1, 4))
    assert market.gangs() == {}
    assert len(market.state.leased) == 4


def test_a_reprice_counts_from_then_on_and_not_for_a_running_lease() -> None:
    market = offering("n1")
    market.job("j1", spec(1, 4))
    assert market.gangs()["j1"].price_microusd_per_gpu_hour == USD
    market.add(replace(bid("n1", 8), terms=Terms(ask_microusd_per_gpu_hour=USD + 1)))
    market.job("j2", spec(1, 4))
    assert {job: gang.price_microusd_per_gpu_hour for job, gang in market.gangs().items()} == {"j2": USD + 1}


def test_without_a_shape_the_one_that_clears_cheapest_is_taken() -> None:
    cheap = [bid(f"c{number}", 4, ask_microusd=USD // 2) for number in range(2)]
    market = Market(bid("n1", 8), *cheap, *(alive(node) for node in ("n1", "c0", "c1")))
    either = replace(spec(1, 8), shapes=(Shape(nodes=1, gpus_per_node=8), Shape(nodes=2, gpus_per_node=4)))
    market.job("j1", either)
    assert nodes_of(market.gangs()["j1"]) == ["c0", "c1"]
    market.job("j2", either)
    assert nodes_of(market.gangs()["j2"]) == ["n1"]


def test_on_equal_price_the_shape_on_fewer_nodes_is_taken() -> None:
    market = offering("n1", "n2", "n3")
    market.job("j1", replace(spec(1, 8), shapes=(Shape(nodes=1, gpus_per_node=8), Shape(nodes=2, gpus_per_node=4))))
    assert len(market.gangs()["j1"].grants) == 1


@pytest.mark.parametrize(
    ("wanted", "binding"),
    [
        ({"interface": "sxm"}, "interface"),
        ({"min_bandwidth_gbps": 400}, "bandwidth"),
        ({"min_reliability_permille": 999}, "reliability"),
        ({"tier": "datacenter"}, "tier"),
        ({"countries": ("FR",)}, "country"),
        ({"countries_denied": ("DE",)}, "country"),
        ({"providers_excluded": ("owner-n1",)}, "excluded"),
    ],
)
def test_what_a_node_is_not_is_told_as_that(wanted: dict[str, object], binding: str) -> None:
    place = Place(region="eu", country="DE", site="s1", fabric="A", bandwidth_gbps=200)
    market = Market(bid("n1", 8, place=place), replace(alive("n1"), reliability_permille=900))
    market.job("j1", msgspec.convert(msgspec.to_builtins(spec(1, 8)) | wanted, JobSpec))
    assert market.waiting()["j1"].binding == binding
    market.job("j2", spec(1, 8))
    assert list(market.gangs()) == ["j2"]
