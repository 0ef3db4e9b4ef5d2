"""`volt demo` as a user runs it: it ends well, leaves nothing behind, and its figures agree with each other."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

DEMO_SECONDS_MAX = 110
PR_SET_CHILD_SUBREAPER = 36
FIGURES = {
    "matched_ms",
    "ready_ms",
    "first_step_ms",
    "lost_detected_ms",
    "recovered_ms",
    "generations",
    "resumed_step",
    "steps_lost",
    "billed_seconds",
    "covered_seconds",
    "charged_microusd",
    "paid_microusd",
    "fee_microusd",
    "ledger_balanced",
    "total_s",
}


@pytest.mark.timeout(DEMO_SECONDS_MAX + 10)
@pytest.mark.parametrize("kill", ["other", "head"])
def test_the_demo_survives_a_kill_and_its_bill_is_right(kill: str, tmp_path: Path) -> None:
    before = _below()
    with _adopting():
        done = subprocess.run(
            [sys.executable, "-P", "-m", "volt", "demo", "--json", "--kill", kill],
            env={**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEMO_SECONDS_MAX,
            check=False,
        )
        after = _below()
    assert done.returncode == 0, done.stderr
    figures = msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, bool | float])
    assert set(figures) == FIGURES
    assert figures["generations"] == 2
    assert figures["resumed_step"] >= 10
    assert figures["resumed_step"] % 10 == 0
    assert 0 <= figures["steps_lost"] < 80 - figures["resumed_step"]
    assert figures["ledger_balanced"] is True
    assert figures["charged_microusd"] == figures["paid_microusd"] + figures["fee_microusd"] > 0
    assert 0 < figures["billed_seconds"] <= figures["covered_seconds"]
    assert figures["matched_ms"] <= figures["ready_ms"] <= figures["first_step_ms"]
    assert figures["lost_detected_ms"] < figures["recovered_ms"]
    assert list(tmp_path.iterdir()) == []
    assert after == before


@contextmanager
def _adopting() -> Iterator[None]:
    """Whatever loses its parent below this process becomes its own child (see PR_SET_CHILD_SUBREAPER in prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def _below() -> list[str]:
    """The living processes below this one."""
    children = psutil.Process().children(recursive=True)
    return sorted(f"{one.pid} {one.name()}" for one in children if one.status() != psutil.STATUS_ZOMBIE)
