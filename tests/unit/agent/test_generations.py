"""The highest generation of each lease that a node has seen, on its disk."""

from pathlib import Path

import msgspec
import pytest

from volt_agent.process import ProcessRuntime
from volt_agent.runtimes import GENERATIONS_KEPT_MAX, Generations, StateUnreadable

ADDRESS = "127.0.0.1"


async def test_generations_are_forgotten_only_beyond_a_bound_and_the_longest_unseen_first(tmp_path: Path) -> None:
    path = tmp_path / "generations.json"
    path.write_bytes(msgspec.json.encode({f"job-{number}": 1 for number in range(GENERATIONS_KEPT_MAX - 1)}))
    generations = Generations(path)
    await generations.see("job-0", 2)
    await generations.see("new-1", 1)
    await generations.see("new-2", 1)
    reread = Generations(path)
    assert [reread.highest(lease) for lease in ("job-0", "job-1", "job-2", "new-1", "new-2")] == [2, 0, 1, 1, 1]


def test_a_damaged_memory_is_said_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "generations.json").write_text('{"job-1": ')
    with pytest.raises(StateUnreadable):
        ProcessRuntime(ADDRESS, tmp_path)
