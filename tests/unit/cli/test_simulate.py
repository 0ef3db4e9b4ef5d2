"""`volt simulate` as a command: what it prints and how it exits."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from volt.cli import simulate as simulating
from volt_simulator.plan import draw

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


def test_a_plan_that_was_kept_is_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    kept.write_bytes(msgspec.json.encode(draw(3, 4, 4, 0.05)))
    again, drawn = (simulate(*options, "--json") for options in (("--plan", str(kept)), ("--seed", "3", *SMALL)))
    digests = [json.loads(done.stdout.splitlines()[0])["result"]["digest"] for done in (again, drawn)]
    assert digests[0] == digests[1]
    assert json.loads(again.stdout.splitlines()[1])["runs"] == 1


def test_the_plan_of_a_run_that_holds_is_not_kept(tmp_path: Path) -> None:
    simulate("--seed", "3", "--save", str(tmp_path / "plan.json"), *SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", ["x", "1..", "..2", "1..y", "-1", "9999999999", "5..2"])
def test_seeds_that_are_none_are_wrong_usage(seeds: str) -> None:
    done = simulate("--seeds", seeds, *SMALL)
    assert (done.returncode, done.stdout) == (2, "")


def test_the_first_plan_that_breaks_a_law_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"at_ms": 1, "log_events": 1, "jobs_closed": 0, "generations": 0}
    lines = [
        msgspec.json.encode(
            {
                "result": {"seed": seed, "broken": "a law", "history": ["one"], **counts},
                "seconds": 1.0,
                "plan": {"seed": seed},
            }
        )
        for seed in (7, 8)
    ]
    lines.append(b'{"runs":2,"broken":2,"events_per_second":1}')
    monkeypatch.setattr(simulating, "_told", lambda _options: iter(lines))
    kept = tmp_path / "plan.json"
    done = CliRunner().invoke(simulating.simulate, ["--save", str(kept), "--trace"])
    assert done.exit_code == 1
    assert json.loads(kept.read_bytes()) == {"seed": 7}
    assert "BROKEN" in done.output
    assert "one" in done.output
