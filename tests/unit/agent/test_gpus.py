"""The GPUs of a machine: what the real nvidia-ml-py finds through a stand-in for the driver's library."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.driver import library_folder
from volt.contracts.bids import Gpu, PlaceBid, Terms
from volt.contracts.errors import Refused
from volt_agent.gpus import find_gpus
from volt_bid_intake.terms import bid_problem, canonical_gpus

PROGRAM = """
import msgspec, sys
from volt_agent.gpus import find_gpus
sys.stdout.buffer.write(msgspec.json.encode(find_gpus()))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return library_folder(tmp_path)


def shown(library: Path, **driver: str) -> tuple[Gpu, ...]:
    """What is found where the driver shows this."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), **driver}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(found.stdout.splitlines()[-1], type=tuple[Gpu, ...])


def test_a_driver_shows_its_cards_and_intake_takes_them(library: Path) -> None:
    gpus = shown(library)
    assert [gpu.uuid for gpu in gpus] == [f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd" for index in range(2)]
    bid = PlaceBid(
        account="lab", node="n1", request_id="r", gpus=gpus, terms=Terms(ask_microusd_per_gpu_hour=1_850_000)
    )
    assert bid_problem(bid) is None
    assert {gpu.model for gpu in canonical_gpus(bid)} == {"h100-80gb"}


def test_a_card_that_has_fallen_off_the_bus_is_left_out_and_the_other_seven_are_offered(library: Path) -> None:
    """Reported as akash support#249."""
    gpus = shown(library, CARDS="8", SICK="3")
    assert [gpu.uuid[:12] for gpu in gpus] == [f"GPU-0000000{index}" for index in range(8) if index != 3]


def test_without_a_driver_it_says_to_declare_them() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(Refused, match="--gpus") as refusal:
        find_gpus()
    assert refusal.value.code == "no_driver"
