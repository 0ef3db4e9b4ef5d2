"""A node is the same one tomorrow, and one agent at a time is that node."""

from pathlib import Path

import pytest

from volt.contracts.errors import Refused
from volt_agent.identity import held_identity, new_incarnation
from volt_agent.settings import declared_gpus


def test_a_state_folder_is_the_same_node_each_time(tmp_path: Path) -> None:
    with held_identity(tmp_path) as first:
        pass
    with held_identity(tmp_path) as second:
        assert first == second


def test_a_second_agent_with_the_folder_is_refused(tmp_path: Path) -> None:
    with held_identity(tmp_path), pytest.raises(Refused) as refusal, held_identity(tmp_path):
        pass
    assert refusal.value.code == "agent_running"


def test_a_broken_identity_is_told_and_kept(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("Not An Id\n")
    with pytest.raises(Refused) as refusal, held_identity(tmp_path):
        pass
    assert refusal.value.code == "invalid_node_id"
    assert (tmp_path / "node").read_text() == "Not An Id\n"


def test_each_run_is_an_incarnation_of_its_own() -> None:
    assert len({new_incarnation() for _ in range(100)}) == 100


def test_declared_gpus_have_uuids_of_their_node() -> None:
    gpus = declared_gpus("8xh100-80gb", "n1")
    assert len({gpu.uuid for gpu in gpus}) == 8
    assert {gpu.model for gpu in gpus} == {"h100-80gb"}


@pytest.mark.parametrize("text", ["", "h100", "0xh100", "17xh100", "8h100", "x", "8x", "-1xh100", "8 x h100"])
def test_a_declaration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        declared_gpus(text, "n1")
    assert refusal.value.code == "invalid_gpus"
