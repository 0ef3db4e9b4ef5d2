"""What buyers and providers see of the market on the command line."""

import msgspec
import pytest

from tests.unit.cli.conftest import Volt
from tests.unit.sdk.scripted import answer, events
from volt.contracts.bids import Place
from volt.contracts.http import Job, JobRequest, JobWaiting
from volt.contracts.http_market import (
    Bid,
    BidChange,
    BidList,
    DepthLevel,
    Market,
    NodeReliability,
    PricePoint,
    ProviderReliability,
    QuarantinedGpu,
    Quote,
    QuotedNode,
    WeighedMishap,
)

BID = Bid(
    node="n1",
    gpu="h100-80gb",
    price_usd_per_gpu_hour="2.000000",
    net_usd_per_gpu_hour="1.900000",
    free=8,
    total=8,
    gpus_min=2,
    max_duration_seconds=3_600,
    available_from_ms=None,
    available_until_ms=None,
    paused=True,
    withdrawn=False,
    state="alive",
    reliability_permille=998,
    tier="community",
    place=Place(),
)
QUOTE = Quote(
    id="q1",
    gpu="h100-80gb",
    nodes=(QuotedNode(rank=0, node="n1", provider="lab", gpus=8),),
    price_usd_per_gpu_hour="2.000000",
    domain="fabric:eu/A",
)
WAITING = JobWaiting(binding="free_gpus", message="largest node has 2 free, 8 needed", infeasible=False)
END = b"event: end\ndata: {}\n\n"


def test_a_reprice_changes_the_price_and_nothing_else(volt: Volt) -> None:
    code, out, _, bodies = volt(
        "bid", "reprice", "n1", "--gpu", "H100", "--price", "2", answers=(answer(BidList(bids=(BID,))),)
    )
    assert code == 0
    assert msgspec.json.decode(bodies[0], type=BidChange) == BidChange(gpu="H100", price_usd_per_gpu_hour="2")
    assert "paused" in out
    assert "at least 2 GPUs, at most 3600 s" in out


def test_a_provider_is_told_which_gpu_is_not_sold_and_why(volt: Volt) -> None:
    gpu = QuarantinedGpu(gpu="GPU-3", why="XID 48 ROBUST_CHANNEL_GPU_ECC_DBE", since_ms=0, closes_node=False)
    listed = BidList(bids=(msgspec.structs.replace(BID, free=7, quarantined=(gpu,)),))
    code, out, _, _ = volt("bid", "list", answers=(answer(listed),))
    assert code == 0
    assert "n1: GPU-3 is not sold, since" in out
    assert "XID 48" in out


HOUR_MS = 3_600_000
RELIABLE = ProviderReliability(
    provider="lab",
    at_ms=0,
    reliability_permille=912,
    good_ms=10 * HOUR_MS,
    bad_ms=12 * HOUR_MS,
    nodes=(
        NodeReliability(
            node="n1",
            reliability_permille=905,
            alive=True,
            good_ms=10 * HOUR_MS,
            bad_ms=12 * HOUR_MS,
            mishaps=(
                WeighedMishap(
                    kind="node_quarantined",
                    what="the driver no longer lists it",
                    at_ms=0,
                    age_ms=720 * HOUR_MS,
                    cost_ms=24 * HOUR_MS,
                    weight_permille=500,
                ),
            ),
        ),
    ),
)


def test_a_providers_reliability_is_told_with_its_inputs(volt: Volt) -> None:
    code, out, _, _ = volt("provider", "reliability", "lab", answers=(answer(RELIABLE),))
    assert code == 0
    words = " ".join(out.split())
    assert "lab: 91.2% reliable" in words
    assert "n1 90.5% 10.0 h 12.0 h alive" in words
    assert "n1 node quarantined 720.0 h 24.0 h 50.0% the driver no longer lists it" in words


def test_a_reliability_as_json_is_all_of_it(volt: Volt) -> None:
    code, out, _, _ = volt("provider", "reliability", "--json", answers=(answer(RELIABLE),))
    assert code == 0
    assert msgspec.json.decode(out.encode(), type=ProviderReliability) == RELIABLE


def test_placing_a_node_again_sets_its_terms(volt: Volt) -> None:
    window = ("--from", "2026-12-24T18:00+01:00", "--until", "none", "--max-duration", "24h")
    _, _, _, bodies = volt("bid", "place", "n1", *window, answers=(answer(BidList(bids=(BID,))),))
    change = msgspec.json.decode(bodies[0], type=BidChange)
    assert (change.offer, change.paused, change.max_duration) == (True, False, "24h")
    assert (change.available_from_ms, change.available_until_ms) == (1_798_131_600_000, 0)


def test_an_instant_without_its_offset_is_refused(volt: Volt) -> None:
    code, _, err, bodies = volt("bid", "place", "n1", "--from", "2026-12-24", answers=())
    assert (code, bodies) == (3, [])
    assert "invalid_instant" in err


def test_a_dry_run_shows_the_plan_and_makes_no_job(volt: Volt) -> None:
    code, out, _, bodies = volt(
        "deploy",
        "--gpu",
        "h100,h200:8:80GB",
        "--max-wait",
        "0s",
        "--dry-run",
        "--",
        "true",
        answers=(answer(QUOTE, 201),),
    )
    assert code == 0
    assert "8 x h100-80gb at $2.000000 per GPU-hour in fabric:eu/A" in out
    asked = msgspec.json.decode(bodies[0], type=JobRequest)
    assert (asked.gpu, asked.count, asked.constraints.min_memory_mib) == (("h100", "h200"), 8, 81_920)
    assert asked.max_wait == "0s"


def test_a_dry_run_that_gets_nothing_says_why_and_exits_1(volt: Volt) -> None:
    nothing = Quote(id="q1", waiting=WAITING)
    code, out, _, _ = volt(
        "deploy", "--gpu", "h100", "--count", "8", "--dry-run", "--", "true", answers=(answer(nothing, 201),)
    )
    assert code == 1
    assert "no capacity now; free_gpus: largest node has 2 free" in out


def test_the_market_of_a_model_shows_depth_and_prices(volt: Volt) -> None:
    market = Market(
        gpu="h100-80gb",
        best_ask_usd_per_gpu_hour="1.800000",
        free=10,
        total=24,
        waiting=3,
        depth=(DepthLevel(price_usd_per_gpu_hour="1.800000", free=10, nodes=2),),
        prices=(PricePoint(at_ms=1_798_131_600_000, price_usd_per_gpu_hour="1.900000", gpus=16),),
    )
    code, out, _, _ = volt("market", "show", "H100", answers=(answer(market),))
    assert code == 0
    assert "best ask $1.800000, last price $1.900000; 10 of 24 GPUs free, 3 jobs wait" in out


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Job(id="j1", request_id="r", state="closed", release_reason="completed"), 0),
        (Job(id="j1", request_id="r", state="closed", release_reason="workload_failed", exit_code=3), 3),
        (Job(id="j1", request_id="r", state="closed", release_reason="no_replacement"), 7),
        (Job(id="j1", request_id="r", state="closed", release_accepted_at_ms=5), 0),
        (Job(id="j1", request_id="r", state="expired"), 7),
    ],
)
def test_waiting_for_a_job_exits_as_it_did(ended: Job, code: int, volt: Volt) -> None:
    assert volt("wait", "j1", answers=(events(END), answer(ended)))[0] == code


@pytest.mark.parametrize("text", ["", ":8", "h100::80GB", "h100:eight", "h100:8:huge", "h100,,h200"])
def test_an_ask_that_cannot_be_read_is_refused(text: str, volt: Volt) -> None:
    code, _, err, bodies = volt("deploy", "--gpu", text, "--count", "8", "--", "true", answers=())
    assert (code, bodies) == (3, [])
    assert "invalid_gpu_ask" in err
