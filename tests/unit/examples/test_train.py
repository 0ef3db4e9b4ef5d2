"""The training example, run as a user would: real processes that meet on a real port."""

import os
import re
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

TRAIN = Path(__file__).parents[3] / "examples" / "train.py"
RUN_SECONDS_MAX = 30.0
FAIL_SECONDS_MAX = 2.0

Rank = subprocess.Popen[str]


def test_one_rank_trains_alone_and_its_loss_falls() -> None:
    with started_ranks(world=1) as (alone,):
        out, err = alone.communicate(timeout=RUN_SECONDS_MAX)
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", out, re.MULTILINE)]
    assert (alone.returncode, err, len(losses)) == (0, "", 200)
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])


def test_four_ranks_end_with_one_loss_and_only_rank_zero_prints_steps() -> None:
    with started_ranks("--steps", "40", world=4) as ranks:
        outputs = [rank.communicate(timeout=RUN_SECONDS_MAX)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0, 0]
    finals = [re.findall(r"final loss (\S+)", out) for out in outputs]
    assert finals == [finals[0]] * 4
    assert len(finals[0]) == 1
    assert [out.count("step ") for out in outputs] == [40, 0, 0, 0]


def test_every_rank_gets_the_exact_mean_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", free_port())
    gang = runpy.run_path(str(TRAIN))["Gang"]
    vectors = [np.random.default_rng(rank).standard_normal(1000) for rank in range(3)]
    with ThreadPoolExecutor() as pool:
        gangs = list(pool.map(lambda rank: gang.form(rank, 3), range(3)))
        means = list(pool.map(lambda one: one.mean(vectors[one.rank]), gangs))
    for peer in [peer for one in gangs for peer in one.peers]:
        peer.incoming.close()
        peer.connection.close()
    expected = (vectors[0] + vectors[1] + vectors[2]) / 3
    assert [mean.tobytes() for mean in means] == [expected.tobytes()] * 3


def test_a_killed_rank_makes_every_other_fail_at_once_and_say_why() -> None:
    with started_ranks("--steps", "100000", "--step-seconds", "0.01", world=4) as ranks:
        assert ranks[0].stdout is not None
        while not ranks[0].stdout.readline().startswith("step 3 "):
            assert ranks[0].poll() is None
        ranks[2].kill()
        killed = time.monotonic()
        survivors = [ranks[0], ranks[1], ranks[3]]
        errors = [rank.communicate(timeout=FAIL_SECONDS_MAX)[1] for rank in survivors]
        assert time.monotonic() - killed < FAIL_SECONDS_MAX
    assert [rank.returncode for rank in survivors] == [1, 1, 1]
    assert errors[0].startswith("rank 0 stops: lost rank 2: ")
    assert errors[1].startswith("rank 1 stops: lost rank 0: ")
    assert errors[2].startswith("rank 3 stops: lost rank 0: ")


def test_what_is_interrupted_goes_on_from_its_newest_checkpoint_to_the_same_end(tmp_path: Path) -> None:
    def run(*arguments: str, folder: str, local_rank: int = 0) -> str:
        told = {"VOLT_CHECKPOINT_DIR": str(tmp_path / folder), "LOCAL_RANK": str(local_rank)}
        alone = start((*arguments, "--checkpoint-every", "7"), os.environ | told)
        out, err = alone.communicate(timeout=RUN_SECONDS_MAX)
        assert (alone.returncode, err) == (0, "")
        return out

    whole = run("--steps", "40", folder="whole")
    run("--steps", "20", folder="parts")
    (tmp_path / "parts/28.tmp").mkdir()
    again = run("--steps", "40", folder="parts")
    assert "rank 0 goes on from step 14" in again
    assert whole.splitlines()[-1] == again.splitlines()[-1]
    assert next(line for line in whole.splitlines() if line.startswith("step 15 ")) in again
    assert "step 14 " not in again
    run("--steps", "40", folder="not mine", local_rank=1)
    assert not (tmp_path / "not mine").exists(), "one process of each node writes"


@contextmanager
def started_ranks(*arguments: str, world: int) -> Iterator[list[Rank]]:
    """Start the ranks, the head last: the others must wait for it."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world)}
    with ExitStack() as stack:
        ranks: list[Rank] = []
        for rank in reversed(range(world)):
            ranks.insert(0, start(arguments, os.environ | shared | {"RANK": str(rank)}))
            stack.enter_context(ranks[0])
            stack.callback(ranks[0].kill)
        yield ranks


def start(arguments: tuple[str, ...], env: dict[str, str]) -> Rank:
    return subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
