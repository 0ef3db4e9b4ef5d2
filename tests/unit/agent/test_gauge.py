"""What the real nvidia-ml-py reads of GPUs while an agent runs, through a stand-in for the driver's library."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.driver import Driver

PROGRAM = """
import asyncio, json, sys
from msgspec import to_builtins
from volt_agent.beat import boot_ms
from volt_agent.gauge import Gauge

async def main():
    gauge = Gauge(sys.argv[1:], boot_ms)
    def tell(what, *about):
        print(json.dumps([what, *about]), flush=True)
    gauge.on_read = lambda readings: tell(
        "read", {one.gpu[:12]: to_builtins(one) for one in readings}, gauge.has_failed([sys.argv[1]])
    )
    gauge.on_xid = lambda gpu, code, at_ms: tell("xid", gpu[:12], code, at_ms <= boot_ms(), gauge.has_failed([gpu]))
    gauge.start()
    print(json.dumps(["started"]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    gauge.stop()

asyncio.run(main())
"""
FIRST, SECOND = "GPU-00000000", "GPU-00000001"


class Reader:
    """A process that reads the GPUs of a driver."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def hears(self, what: str) -> list[object]:
        """The next of a kind; what else comes before it is passed over."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(f'["{what}"'):
                told: list[object] = json.loads(line)
                return told[1:]
        raise AssertionError("it has ended")

    def reads(self) -> dict[str, dict[str, object]]:
        readings = self.hears("read")[0]
        assert isinstance(readings, dict)
        return readings


@contextmanager
def reading(driver: Driver, *cards: int) -> Iterator[Reader]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(driver.uuid, cards)],
        env={**os.environ, **driver.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reader(process)
    finally:
        process.communicate(timeout=20)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_what_the_driver_tells_is_read_and_rounded(driver: Driver) -> None:
    driver.tells(0, util=97, used=1_000_000_000, temperature=66, power=412_345, corrected=3, uncorrected=1)
    driver.tells(0, pending=1, failed=1, up=17, down=1)
    with reading(driver, 0, 1) as reader:
        readings = reader.reads()
    assert readings[FIRST] == {
        "gpu": driver.uuid(0),
        "utilization_percent": 97,
        "memory_used_bytes": 14 * 64 * 1024**2,
        "temperature_celsius": 66,
        "power_milliwatts": 412_000,
        "ecc_corrected": 3,
        "ecc_uncorrected": 1,
        "remap_pending": True,
        "remap_failed": True,
        "nvlinks_up": 17,
        "nvlinks_down": 1,
    }
    assert readings[SECOND] == {"gpu": driver.uuid(1), "memory_used_bytes": 0}, "what it does not know is left out"


def test_an_xid_is_told_at_once_and_old_news_are_not(driver: Driver) -> None:
    driver.xid(0, 48)
    with reading(driver, 0, 1) as reader:
        reader.reads()
        driver.xid(1, 13)
        assert reader.hears("xid") == [SECOND, 13, True, False]
        driver.xid(1, 94)
        assert reader.hears("xid") == [SECOND, 94, True, True]


@pytest.mark.parametrize("how", ["hides", "loses"])
def test_a_gpu_that_vanishes_while_the_agent_runs_is_told_after_two_misses(driver: Driver, how: str) -> None:
    """It was noticed only when the agent started afresh: akash support#137, #249."""
    with reading(driver, 0, 1) as reader:
        assert reader.reads().keys() == {FIRST, SECOND}
        getattr(driver, how)(0)
        driver.xid(1, 13)  # Has it look again soon.
        assert reader.reads().keys() == {SECOND}, "missed once, it is in doubt"
        assert reader.reads()[FIRST] == {"gpu": driver.uuid(0), "vanished": True}


def test_the_cards_of_others_are_not_told(driver: Driver) -> None:
    with reading(driver, 1) as reader:
        assert reader.reads().keys() == {SECOND}
        driver.xid(0, 48)
        driver.xid(1, 31)
        assert reader.hears("xid")[:2] == [SECOND, 31]
