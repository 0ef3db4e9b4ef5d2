"""What a driver reports and what a buyer writes meet in the market (runpodctl#260, lium-io#1204, gpuhunt#257)."""

import pytest

from tests.unit.bid_intake import build
from tests.unit.matcher.builders import Market, alive, bid
from volt.contracts.bids import BidAccepted
from volt.contracts.jobs import Constraints, JobSpec
from volt_bid_intake.rules import specify
from volt_bid_intake.terms import canonical_gpus


def offered(driver_name: str, driver_mib: int) -> BidAccepted:
    """The accepted bid of a node with one such card."""
    (card,) = canonical_gpus(build.bid(cards=(build.gpu("GPU-1", driver_name, driver_mib),)))
    return bid("n1", [card.uuid], model=card.model, memory_mib=card.memory_mib)


def asked(gpu: str, min_memory_mib: int = 0) -> JobSpec:
    """An admitted request for one such card."""
    spec = specify(build.request(gpu=gpu, count=1, constraints=Constraints(min_memory_mib=min_memory_mib)))
    assert isinstance(spec, JobSpec), spec
    return spec


@pytest.mark.parametrize("spelling", ["NVIDIA RTX 4090", "rtx4090", "RTX-4090", "geforce rtx 4090 ", "4090"])
def test_a_card_is_found_by_any_spelling_of_its_model(spelling: str) -> None:
    market = Market(offered("NVIDIA GeForce RTX 4090", 24_564), alive("n1"))
    market.job("j", asked(spelling))
    assert list(market.gangs()) == ["j"]


@pytest.mark.parametrize(
    ("driver_name", "driver_mib", "floor_mib"),
    [
        ("NVIDIA A100-SXM4-80GB", 81_559, 80 * 1024),
        ("NVIDIA A100-SXM4-80GB", 81_559, 80_000),
        ("NVIDIA GeForce RTX 4090", 24_564, 24 * 1024),
        ("Tesla T4", 15_109, 16 * 1024),
    ],
)
def test_a_floor_of_the_cards_nominal_size_takes_the_card(driver_name: str, driver_mib: int, floor_mib: int) -> None:
    card = offered(driver_name, driver_mib)
    market = Market(card, alive("n1"))
    market.job("over", asked(card.gpus[0].model, card.gpus[0].memory_mib + 1))
    assert market.waiting()["over"].binding == "memory"
    market.job("j", asked(card.gpus[0].model, floor_mib))
    assert list(market.gangs()) == ["j"]
