"""The GPUs of a machine: what the real nvidia-ml-py finds through a stand-in for the driver's library."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from volt.contracts.bids import Gpu, PlaceBid, Terms
from volt.contracts.errors import Refused
from volt_agent.gpus import find_gpus
from volt_bid_intake.terms import bid_problem, canonical_gpus

STAND_IN = Path(__file__).parents[2] / "support" / "nvml_stand_in.c"
PROGRAM = """
import msgspec, sys
from volt_agent.gpus import find_gpus
sys.stdout.buffer.write(msgspec.json.encode(find_gpus()))
"""


@pytest.fixture
def library_folder(tmp_path: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the driver's stand-in with")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(STAND_IN)], check=True)
    return tmp_path


def shown(library_folder: Path, **driver: str) -> tuple[Gpu, ...]:
    """What is found where the driver shows this."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_folder), **driver}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(found.stdout.splitlines()[-1], type=tuple[Gpu, ...])


def test_a_driver_shows_its_cards_and_intake_takes_them(library_folder: Path) -> None:
    gpus = shown(library_folder)
    assert [gpu.uuid for gpu in gpus] == [f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd" for index in range(2)]
    bid = PlaceBid(
        account="lab", node="n1", request_id="r", gpus=gpus, terms=Terms(ask_microusd_per_gpu_hour=1_850_000)
    )
    assert bid_problem(bid) is None
    assert {gpu.model for gpu in canonical_gpus(bid)} == {"h100-80gb"}


def test_a_card_that_has_fallen_off_the_bus_is_left_out_and_the_other_seven_are_offered(library_folder: Path) -> None:
    """Reported as akash support#249."""
    gpus = shown(library_folder, CARDS="8", SICK="3")
    assert [gpu.uuid[:12] for gpu in gpus] == [f"GPU-0000000{index}" for index in range(8) if index != 3]


def test_without_a_driver_it_says_to_declare_them() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(Refused, match="--gpus") as refusal:
        find_gpus()
    assert refusal.value.code == "no_driver"
