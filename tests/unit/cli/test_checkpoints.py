"""What a job has committed is listed on the command line."""

import msgspec

from tests.unit.cli.conftest import Volt
from tests.unit.sdk.scripted import answer
from volt.contracts.http import Checkpoint, CheckpointList, Job, StoredCheckpoint

JOB = Job(id="j1", request_id="r", state="ready", ready_at_ms=1_000)


def checkpoint(step: int, *, kept: bool) -> Checkpoint:
    return Checkpoint(step=step, generation=2, committed_at_ms=3_500, ranks=4, size_bytes=3 * 2**19, kept=kept)


LISTED = CheckpointList(job="j1", checkpoints=(checkpoint(200, kept=True), checkpoint(100, kept=False)))


def test_each_checkpoint_is_a_line_with_what_became_of_it(volt: Volt) -> None:
    code, out, _, _ = volt("checkpoints", "j1", answers=(answer(JOB), answer(LISTED)))
    assert code == 0
    header, newest, oldest = (line.split() for line in out.strip().splitlines())
    assert header[0] == "step"
    assert newest == ["200", "2", "2.5", "s", "4", "1.50", "yes"]
    assert oldest[-1] == "removed"


def test_json_is_the_answer_as_it_came(volt: Volt) -> None:
    code, out, _, _ = volt("checkpoints", "j1", "--json", answers=(answer(JOB), answer(LISTED)))
    assert code == 0
    assert msgspec.json.decode(out, type=CheckpointList) == LISTED


def test_a_job_without_any_is_told_how_to_get_some(volt: Volt) -> None:
    empty = CheckpointList(job="j1", checkpoints=())
    code, out, err, _ = volt("checkpoints", "j1", answers=(answer(JOB), answer(empty)))
    assert (code, out) == (0, "")
    assert "VOLT_CHECKPOINT_DIR" in err


def test_what_waits_says_for_whom(volt: Volt) -> None:
    waiting = CheckpointList(job="j1", checkpoints=(), stored=(StoredCheckpoint(step=7, ranks=(0,), missing=(1, 2)),))
    _, _, err, _ = volt("checkpoints", "j1", answers=(answer(JOB), answer(waiting)))
    assert "step 7 waits for rank 1, 2" in err
