"""Whole markets under seeded faults, on simulated time: the laws hold, runs repeat, and a broken guard is noticed."""

import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
import structlog

from benchmarks.mutants import sold_when_clear
from volt_simulator.plan import draw
from volt_simulator.shrink import shrink
from volt_simulator.world import run

NODES, JOBS, HOURS = 12, 30, 0.25
SEEDS = range(1, 9)
SMALL = ("--nodes", "6", "--jobs", "8", "--hours", "1")
SLICE_SECONDS_MAX = 600
ONE = ("-m", "volt_simulator", "--seeds", "7", "--nodes", "8", "--jobs", "12", "--hours", "0.1")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A simulated failure is no news."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_laws_hold_whatever_fails(seed: int) -> None:
    result = run(draw(seed, NODES, JOBS, HOURS))
    assert result.broken == "", result.history
    assert result.generations > 0


@pytest.mark.parametrize("seeds", ["1..50", "51..100", "101..150", "151..200"])
def test_the_laws_hold_for_hours_of_many_small_markets(seeds: str) -> None:
    command = [sys.executable, "-m", "volt_simulator", "--seeds", seeds, *SMALL, "--workers", "2"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=SLICE_SECONDS_MAX)  # our own program
    *runs, total = done.stdout.decode().splitlines()
    assert len(runs) == 50, done.stderr.decode()[-2_000:]
    assert '"broken":0' in total, "\n".join(run[:2_000] for run in runs if '"broken":""' not in run)


def test_a_run_is_the_same_in_every_process() -> None:
    digests = set[str]()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, *ONE], capture_output=True, check=True, env={"PYTHONHASHSEED": hash_seed}, timeout=90
        )  # our own program
        digests.add(done.stdout.decode().split('"digest":"')[1][:16])
    assert len(digests) == 1


def test_a_guard_that_is_off_is_noticed_and_the_plan_made_smaller() -> None:
    sold_when_clear()
    try:
        plan = draw(7, 8, 30, HOURS)
        result = run(plan)
        assert "is leased to" in result.broken
        smaller, after = shrink(plan, result, runs_max=8)
    finally:
        mock.patch.stopall()
    assert "is leased to" in after.broken
    assert len(smaller.jobs) + len(smaller.faults) < len(plan.jobs) + len(plan.faults)
    assert after.history


def _drop(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent
