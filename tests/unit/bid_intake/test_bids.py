"""What a bid must be, and its canonical form."""

import pytest
from msgspec.structs import replace

from tests.unit.bid_intake.build import bid, gpu, gpus
from volt.contracts.bids import GPUS_PER_BID_MAX, PLACE_CHARS_MAX, Gpu, Place, PlaceBid
from volt.contracts.errors import SEEN_CHARS_MAX
from volt.contracts.units import PRICE_MICROUSD_PER_GPU_HOUR_MAX
from volt_bid_intake.terms import bid_problem, canonical_gpus


def test_a_good_bid_has_no_problem() -> None:
    place = Place(region="eu-west", country="DE", site="Keller, Berlin", fabric="eu/A")
    assert bid_problem(replace(bid(), place=place)) is None
    assert bid_problem(bid(cards=gpus(GPUS_PER_BID_MAX))) is None
    assert bid_problem(bid(ask_microusd=1)) is None
    assert bid_problem(bid(ask_microusd=PRICE_MICROUSD_PER_GPU_HOUR_MAX)) is None


def test_a_card_gets_its_slug_and_nominal_memory_and_keeps_the_drivers_name() -> None:
    offered = (gpu("GPU-a"), gpu("GPU-b", "NVIDIA GeForce RTX 4090", 24_564))
    assert canonical_gpus(bid(cards=offered)) == (
        Gpu(uuid="GPU-a", model="h100-80gb", memory_mib=80 * 1024, raw_model="NVIDIA H100 80GB HBM3"),
        Gpu(uuid="GPU-b", model="rtx-4090-24gb", memory_mib=24 * 1024, raw_model="NVIDIA GeForce RTX 4090"),
    )


def test_what_is_canonical_stays_as_it_is() -> None:
    once = canonical_gpus(bid())
    again = bid(cards=once)
    assert bid_problem(again) is None
    assert canonical_gpus(again) == once


BROKEN: list[tuple[PlaceBid, str, str]] = [
    (bid(cards=()), "gpu_count_out_of_range", "gpus"),
    (bid(cards=gpus(GPUS_PER_BID_MAX + 1)), "gpu_count_out_of_range", "gpus"),
    (bid(cards=(gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-a"))), "duplicate_gpu", "gpus.uuid"),
    (bid(cards=(gpu("GPU-a,GPU-b"),)), "invalid_gpu_uuid", "gpus.uuid"),
    (bid(cards=(gpu("GPU a"),)), "invalid_gpu_uuid", "gpus.uuid"),
    (bid(cards=(gpu("ＧＰＵ"),)), "invalid_gpu_uuid", "gpus.uuid"),
    (bid(cards=(gpu(model="A100", memory_mib=0),)), "ambiguous_gpu_model", "gpu"),
    (bid(cards=(gpu(model="NVIDIA H100 80GB HBM3", memory_mib=40_960),)), "unknown_gpu_model", "gpu"),
    (bid(cards=(gpu(), gpu("GPU-b", "Voodoo 2", 12))), "unknown_gpu_model", "gpu"),
    (bid(cards=(gpu(memory_mib=-1),)), "memory_out_of_range", "gpus.memory_mib"),
    (bid(cards=(replace(gpu(), raw_model="x" * 1_000),)), "name_too_long", "gpus.raw_model"),
    (bid(ask_microusd=0), "price_out_of_range", "terms.ask_microusd_per_gpu_hour"),
    (bid(ask_microusd=-1), "price_out_of_range", "terms.ask_microusd_per_gpu_hour"),
    (bid(ask_microusd=PRICE_MICROUSD_PER_GPU_HOUR_MAX + 1), "price_out_of_range", "terms.ask_microusd_per_gpu_hour"),
    (replace(bid(), place=Place(region="Europe")), "invalid_region", "place.region"),
    (replace(bid(), place=Place(site="x" * (PLACE_CHARS_MAX + 1))), "place_too_long", "place.site"),
    (replace(bid(), place=Place(fabric="a\nb")), "invalid_place", "place.fabric"),
]


@pytest.mark.parametrize(("command", "code", "field"), BROKEN)
def test_a_bid_out_of_bounds_is_refused_with_what_was_seen(command: PlaceBid, code: str, field: str) -> None:
    reason = bid_problem(command)
    assert reason is not None
    assert (reason.code, reason.field) == (code, field)
    assert reason.seen
    assert len(reason.seen) <= SEEN_CHARS_MAX
    assert 10 < len(reason.message) < 400
