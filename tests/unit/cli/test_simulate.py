"""`volt simulate` as a command: what it prints and how it exits."""

import json
import subprocess
import sys

import pytest

SMALL = ("--nodes", "4", "--jobs", "4", "--hours", "0.05")


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "volt", "simulate", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # our own program


def test_a_run_is_a_line_and_all_of_them_one_more() -> None:
    done = simulate("--seeds", "1..2", "--json", *SMALL)
    first, second, total = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["result"]["seed"] for one in (first, second)] == [1, 2]
    assert (total["runs"], total["broken"]) == (2, 0)


def test_people_are_told_that_every_law_held() -> None:
    done = simulate("--seeds", "3", *SMALL)
    assert done.returncode == 0
    assert "seed 3: every law held" in done.stdout


@pytest.mark.parametrize("seeds", ["x", "1..", "..2", "1..y", "-1", "9999999999", "5..2"])
def test_seeds_that_are_none_are_wrong_usage(seeds: str) -> None:
    done = simulate("--seeds", seeds, *SMALL)
    assert (done.returncode, done.stdout) == (2, "")
