"""An instance of a file is cleared in one pass, by the rules that the file says."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import matching
from benchmarks.greedy import ORDERS, greedy
from benchmarks.instances import KINDS, Kind, generate
from benchmarks.matching import run_pass, welfare_of

INSTANCE = {
    "nodes": [
        {"id": "n1", "model": "m", "free": 8, "ask": 1000, "fabric": "A", "region": "eu"},
        {"id": "n2", "model": "m", "free": 8, "ask": 1100, "fabric": "A", "region": "eu"},
        {"id": "n3", "model": "m", "free": 8, "ask": 900, "fabric": None, "region": "us"},
        {"id": "n4", "model": "other", "free": 0, "ask": 1, "fabric": "A", "region": "eu"},
    ],
    "requests": [
        {"id": "gang", "nodes": 2, "gpus": 8, "model": "m", "max_price": 1200, "regions": None, "single_fabric": True},
        {"id": "us", "nodes": 1, "gpus": 4, "model": "m", "max_price": 2000, "regions": ["us"], "single_fabric": False},
        {"id": "low", "nodes": 1, "gpus": 1, "model": "m", "max_price": 899, "regions": None, "single_fabric": False},
        {"id": "no", "nodes": 1, "gpus": 1, "model": "m", "max_price": 2000, "regions": [], "single_fabric": False},
    ],
}


def test_a_file_is_cleared_and_answered_in_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE))
    monkeypatch.setattr(sys, "argv", ["matching", "--json", "--instance", str(path)])
    matching.main()
    said = json.loads(capsys.readouterr().out)
    assert said.keys() == {"grants", "price", "welfare", "seconds"}
    assert {name: sorted(nodes) for name, nodes in said["grants"].items()} == {"gang": ["n1", "n2"], "us": ["n3"]}
    assert said["price"] == {"gang": 1100, "us": 900}
    assert said["welfare"] == (200 + 100) * 8 + 1100 * 4


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_generated_instances_are_cleared_within_every_rule(kind: Kind) -> None:
    instance = generate(20, 200, kind, 7)
    done = run_pass(instance)
    assert done.welfare == welfare_of(instance, done.grants) > 0
    assert run_pass(instance).grants == done.grants


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.pressure is not None], ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", range(3))
def test_tight_instances_are_as_tight_as_they_say(kind: Kind, seed: int) -> None:
    pressure = generate(100, 1000, kind, seed).pressure
    assert kind.pressure is not None
    assert kind.pressure <= pressure <= kind.pressure * 1.02


def test_greedy_orders_keep_the_rules_and_leave_no_trace() -> None:
    instance = generate(20, 200, KINDS[2], 1)
    found = greedy(instance)
    assert found == greedy(instance)
    assert found.keys() == ORDERS.keys()
    assert 0 < max(found.values()) <= run_pass(instance).welfare
