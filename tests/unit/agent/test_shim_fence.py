"""How the shim ends its workload: at its deadline, when told to, and whoever else of the two has gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.unit.agent.shims import (
    LONG_MS,
    SECONDS_MAX,
    SHIM,
    Message,
    Start,
    alive,
    ended,
    ends_within,
    order,
    read_all,
    read_one,
    run,
    talk,
    tell,
    wait_lines,
    wait_started,
)
from volt_agent import shim
from volt_agent.kernel import boot_ms

FROZEN: Message = {"frozen": True}
LINES_OF_A_WHILE = 300
STILL = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DISK_SLEEP}


def test_helpers_in_other_sessions_end_before_the_exit_is_told(start: Start, tmp_path: Path) -> None:
    one, gate = start(), tmp_path / "gate"
    os.mkfifo(gate)
    helpers = "setsid sh -c 'echo a; sleep 60' & setsid sh -c 'sleep 60 & sleep 60 & echo b; wait' &"
    order(one, ["sh", "-c", f"{helpers} read line < {gate}; exit 3"])
    pid = wait_lines(one, "a", "b")
    below = psutil.Process(one.pid).children(recursive=True)
    assert len(below) >= 5
    assert len({os.getsid(process.pid) for process in below}) == 3
    gate.write_text("go\n")
    assert read_all(one) == [ended(3, None, "exited")]
    assert not any(process.is_running() for process in below)
    assert not psutil.pid_exists(pid)


def test_a_helper_may_finish_its_last_lines(start: Start) -> None:
    assert run(start(), ["sh", "-c", "(sleep 0.1; echo from the helper) & echo from the script"]) == [
        "from the script",
        "from the helper",
    ]


def test_a_helper_that_never_ends_delays_the_exit_by_its_bound_only(start: Start) -> None:
    began = time.monotonic()
    assert talk(start(), ["sh", "-c", "sleep 60 & exit 1"])[-1] == ended(1, None, "exited")
    assert 0.4 < time.monotonic() - began < 3


def test_the_deadline_kills_what_nobody_extends(start: Start) -> None:
    one = start()
    order(one, ["sleep", "60"], deadline_ms=boot_ms() + 600, frozen_ms_max=300)
    assert read_all(one)[1:] == [FROZEN, ended(None, signal.SIGKILL, "deadline")]


def test_all_of_a_tree_stands_still_from_its_deadline_until_it_is_thawed(start: Start, tmp_path: Path) -> None:
    """A shell, its child, and a daemon in a session of its own each count in a file."""
    one, files = start(), [tmp_path / name for name in ("shell", "child", "daemon")]
    count = "while :; do echo >> {}; echo on; sleep 0.01; done"
    shell, child, daemon = (count.format(file) for file in files)
    order(
        one,
        ["sh", "-c", f"(setsid sh -c '{daemon}' &) ; sh -c '{child}' & {shell}"],
        deadline_ms=boot_ms() + 700,
        frozen_ms_max=LONG_MS,
    )
    workload = psutil.Process(wait_started(one))
    while read_one(one) != FROZEN:
        pass
    below = psutil.Process(one.pid).children(recursive=True)
    assert {process.status() for process in below} <= {
        psutil.STATUS_STOPPED,
        psutil.STATUS_ZOMBIE,
        psutil.STATUS_DISK_SLEEP,
    }
    counted = [file.stat().st_size for file in files]
    assert all(counted)
    tell(one, {"deadline_ms": boot_ms() + LONG_MS})
    assert not ends_within(workload, 0.3)
    assert [file.stat().st_size for file in files] == counted, "an extension thaws nothing"
    tell(one, {"thaw_to_ms": boot_ms() + LONG_MS})
    for _ in range(LINES_OF_A_WHILE):
        assert read_one(one)["line"] == "on"
    assert all(file.stat().st_size > size for file, size in zip(files, counted, strict=True))
    tell(one, {"signal": "TERM", "grace_ms": 0})
    assert read_all(one)[-1]["reason"] == "signalled"


def test_leave_that_has_run_out_thaws_nothing(start: Start) -> None:
    one = start()
    order(one, ["sleep", "60"], deadline_ms=boot_ms() + 300, frozen_ms_max=600)
    wait_started(one)
    assert read_one(one) == FROZEN
    tell(one, {"thaw_to_ms": boot_ms()})
    assert read_all(one) == [ended(None, signal.SIGKILL, "deadline")]


def test_what_is_frozen_gets_no_grace(start: Start) -> None:
    one = start()
    argv = ["sh", "-c", "trap 'echo ran on' TERM; echo ready; while :; do sleep 0.01; done"]
    order(one, argv, deadline_ms=boot_ms() + 600, frozen_ms_max=LONG_MS)
    wait_lines(one, "ready")
    assert read_one(one) == FROZEN
    tell(one, {"signal": "TERM", "grace_ms": LONG_MS})
    assert read_all(one) == [ended(None, signal.SIGKILL, "signalled")]


def test_an_extended_workload_outlives_its_first_deadline(start: Start) -> None:
    one = start()
    order(one, ["sleep", "0.7"], deadline_ms=boot_ms() + 600)
    tell(one, {"deadline_ms": boot_ms() + LONG_MS})
    tell(one, {"deadline_ms": boot_ms()})
    assert read_all(one)[1:] == [ended(0, None, "exited")]


def test_an_order_after_its_deadline_starts_nothing(start: Start, tmp_path: Path) -> None:
    one = start()
    order(one, ["touch", str(tmp_path / "ran")], deadline_ms=boot_ms())
    assert [message.get("failed") for message in read_all(one)] == ["deadline_passed"]
    assert not (tmp_path / "ran").exists()


def test_an_extension_that_a_stopped_shim_reads_late_is_not_counted_from_then(start: Start) -> None:
    one = start()
    order(one, ["sleep", "60"], deadline_ms=boot_ms() + 600)
    workload = psutil.Process(wait_started(one))
    one.send_signal(signal.SIGSTOP)
    extended_ms = boot_ms() + 600
    tell(one, {"deadline_ms": extended_ms})
    assert not ends_within(workload, 0.7), "a shim that is stopped kills nothing"
    one.send_signal(signal.SIGCONT)
    assert read_all(one) == [FROZEN, ended(None, signal.SIGKILL, "deadline")]
    assert boot_ms() < extended_ms + 500


def test_stop_gives_the_workload_its_grace(start: Start) -> None:
    one = start()
    order(one, ["sh", "-c", "trap 'echo saved; exit 5' TERM; sleep 60 & echo ready; wait"])
    wait_lines(one, "ready")
    tell(one, {"signal": "TERM", "grace_ms": LONG_MS})
    *lines, end = read_all(one)
    assert {"line": "saved", "stream": "out"} in lines
    assert end == ended(5, None, "signalled")


def test_stop_kills_after_the_grace(start: Start) -> None:
    one = start()
    order(one, ["sh", "-c", "trap '' TERM; echo ready; sleep 60"])
    wait_lines(one, "ready")
    tell(one, {"signal": "TERM", "grace_ms": 100})
    assert read_all(one)[-1] == ended(None, signal.SIGKILL, "signalled")


def test_a_sigterm_to_the_shim_ends_the_workload_in_order(start: Start) -> None:
    one = start()
    order(one, ["sh", "-c", "trap '' TERM; setsid sleep 60 & echo ready; wait; sleep 60"])
    wait_lines(one, "ready")
    below = psutil.Process(one.pid).children(recursive=True)
    one.terminate()
    assert read_all(one) == [ended(None, signal.SIGKILL, "signalled")]
    assert not any(process.is_running() for process in below)


def test_a_killed_shim_takes_its_workload_along(start: Start) -> None:
    one = start()
    order(one, ["sleep", "60"])
    workload = psutil.Process(wait_started(one))
    one.kill()
    assert ends_within(workload, SECONDS_MAX)


def test_without_an_order_nothing_is_started(start: Start) -> None:
    one = start()
    assert one.communicate()[0].startswith(b'{"failed":"no_order"')
    assert one.returncode == 0


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b"[]\n", b'{"signal": "WINCH"}\n', b"x" * (shim.ORDER_BYTES_MAX + 20_000)]
)
def test_an_unknown_command_is_a_bug_that_leaves_no_workload_behind(line: bytes) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(SHIM, env={}, stdin=pipe, stdout=pipe, stderr=pipe) as one:
        order(one, ["sleep", "60"])
        workload = psutil.Process(wait_started(one))
        _, err = one.communicate(line, timeout=SECONDS_MAX)
    assert b"ProtocolError" in err
    assert one.returncode == 1
    assert not alive(workload)


def test_a_dead_agent_leaves_a_workload_that_runs_to_its_deadline_and_no_further() -> None:
    """The agent here is a process of its own, killed so hard that it can tell nobody."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT, *SHIM], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    shim_pid, pid, deadline_ms = (int(word) for word in agent.stdout.readline().split())
    shim_process, workload = psutil.Process(shim_pid), psutil.Process(pid)
    helpers = workload.children()
    agent.kill()
    agent.communicate()
    assert not ends_within(workload, 0.3)
    assert ends_within(workload, SECONDS_MAX)
    assert boot_ms() >= deadline_ms
    assert all(ends_within(process, SECONDS_MAX) for process in [shim_process, *helpers])


AGENT = """
import json, subprocess, sys, time
shim = subprocess.Popen(sys.argv[1:], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
deadline_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 1_200
noise = "setsid sleep 60 & while :; do echo noise; sleep 0.01; done"
order = {"argv": ["sh", "-c", noise], "env": {}, "cwd": "/", "deadline_ms": deadline_ms, "frozen_ms_max": 60_000}
shim.stdin.write(json.dumps(order).encode() + b"\\n")
shim.stdin.flush()
pid = json.loads(shim.stdout.readline())["started"]
shim.stdout.readline()
print(shim.pid, pid, deadline_ms, flush=True)
time.sleep(60)
"""


def test_an_agent_that_stands_still_does_not_keep_its_workload_alive(start: Start) -> None:
    """Nobody reads and nobody extends, but every pipe is open."""
    one = start()
    order(one, ["yes"], deadline_ms=boot_ms() + 600)
    workload = psutil.Process(wait_started(one))
    assert ends_within(workload, SECONDS_MAX)
    *lines, end = read_all(one)
    assert {line["line"] for line in lines if "line" in line} == {"y"}
    assert end == ended(None, signal.SIGKILL, "deadline")


def test_a_report_that_a_dead_agent_cannot_read_is_given_up(start: Start) -> None:
    """Its end of stdout is open in some other process."""
    one = start()
    order(one, ["yes"], deadline_ms=boot_ms() + 600)
    workload = psutil.Process(wait_started(one))
    assert one.stdin is not None
    one.stdin.close()
    assert ends_within(workload, SECONDS_MAX)
    assert one.wait(SECONDS_MAX) == 0


def test_a_stdout_that_nobody_reads_any_more_harms_nothing(start: Start, tmp_path: Path) -> None:
    one, done = start(), tmp_path / "done"
    os.mkfifo(done)
    order(one, ["sh", "-c", f"seq 1 20000; echo done > {done}; sleep 60"], deadline_ms=boot_ms() + 900)
    workload = psutil.Process(wait_started(one))
    assert one.stdout is not None
    one.stdout.close()
    assert done.read_text() == "done\n"
    assert alive(workload)
    assert one.wait(SECONDS_MAX) == 0
    assert not alive(workload)
