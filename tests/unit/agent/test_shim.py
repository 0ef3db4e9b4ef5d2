"""What the shim starts and what it hands on, between this test, which plays the agent, and a real workload."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.unit.agent.shims import SECONDS_MAX, Start, ended, ends_within, order, read_all, run, talk, wait_started
from volt_agent import shim

SIGNALS_OF_LIBC = 1 << 31 | 1 << 32
"""Bits of signals 32 and 33, which the C library keeps to itself: who ignored them above us cannot be undone."""


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group of 64 MiB."""
    v1 = Path("/sys/fs/cgroup/memory")
    group = (v1 if v1.exists() else Path("/sys/fs/cgroup")) / f"volt-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if v1.exists() else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    yield group
    group.rmdir()


def test_the_workload_gets_the_exact_bytes_of_its_environment_and_nothing_else(start: Start) -> None:
    env = {
        "SPACES": "  a  b ",
        "QUOTES": "'\"`\\",
        "EQUALS": "=a=b=",
        "LINES": "one\ntwo\r\n\n",
        "DOLLAR": "$HOME ${x} $(id)",
        "UNICODE": "żółw 🐢 ﷽",
        "CONTROL": "\x01\x1b\x7f\t",
        "EMPTY": "",
        "naïve name": "1",
    }
    lines = run(start(), [sys.executable, "-S", "-c", "print(open('/proc/self/environ', 'rb').read().hex())"], env)
    seen = bytes.fromhex("".join(lines)).split(b"\0")
    assert sorted(seen) == sorted([b"", *(f"{name}={value}".encode() for name, value in env.items())])


def test_arguments_and_folder_are_exact_too(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "a b\n$c"
    folder.mkdir()
    code = "import os, sys; print(ascii([sys.argv[1:], os.getcwd()]))"
    lines = run(start(), [sys.executable, "-S", "-c", code, "", "a b", "$x\n'"], {}, cwd=str(folder))
    assert lines == [ascii([["", "a b", "$x\n'"], str(folder)])]


def test_lines_keep_their_order_and_the_last_needs_no_end(start: Start) -> None:
    lines = run(start(), ["sh", "-c", "for i in $(seq 1 2000); do echo $i; done; echo; printf last"])
    assert lines == [str(i) for i in range(1, 2001)] + ["", "last"]


def test_both_outputs_are_told_apart(start: Start) -> None:
    *lines, _ = talk(start(), ["sh", "-c", "echo a; echo b >&2"])[1:]
    assert sorted(map(json.dumps, lines)) == ['{"line": "a", "stream": "out"}', '{"line": "b", "stream": "err"}']


def test_a_megabyte_of_lines_comes_through_whole(start: Start) -> None:
    lines = run(start(), ["sh", "-c", "seq -f 'line %020g of a megabyte' 1 25000"])
    assert lines == [f"line {i:020} of a megabyte" for i in range(1, 25001)]


def test_a_line_too_long_comes_in_pieces_that_hold_whole_characters(start: Start) -> None:
    text = "x" + "🐢" * 20_000
    lines = run(
        start(),
        [sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(('x' + '\\U0001f422' * 20000).encode())"],
    )
    assert "".join(lines) == text
    assert len(lines) == 5
    assert all(len(line.encode()) <= shim.LINE_BYTES_MAX for line in lines)


def test_bytes_that_are_no_text_are_replaced(start: Start) -> None:
    assert run(start(), ["printf", "a\\377\\000b\\n"]) == ["a\ufffd\0b"]


def test_an_unread_shim_makes_the_workload_wait_and_loses_nothing(start: Start) -> None:
    one = start()
    order(one, ["seq", "1", "60000"])
    assert not ends_within(psutil.Process(wait_started(one)), 0.5)
    *lines, end = read_all(one)
    assert [line["line"] for line in lines] == [str(i) for i in range(1, 60_001)]
    assert end["exit"] == 0


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 0", 0, None), ("exit 7", 7, None), ("kill -11 $$", None, 11)]
)
def test_the_end_is_told_as_code_or_signal(start: Start, script: str, code: int | None, number: int | None) -> None:
    assert talk(start(), ["sh", "-c", script])[-1] == ended(code, number, "exited")


def test_a_workload_that_the_kernel_killed_for_its_memory_is_said_so(start: Start, small_memory: Path) -> None:
    hungry = f"echo before; echo $$ > {small_memory}/cgroup.procs; exec {sys.executable} -c 'b = bytes(1) * (1 << 30)'"
    _, line, end = talk(start(), ["sh", "-c", hungry])
    assert line["line"] == "before"
    assert end == {"exit": None, "signal": signal.SIGKILL, "oom": True, "reason": "exited"}


def test_a_kill_by_anyone_else_is_not_put_down_to_memory(start: Start) -> None:
    assert talk(start(), ["sh", "-c", "kill -9 $$"])[-1] == ended(None, signal.SIGKILL, "exited")


@pytest.mark.parametrize(
    ("argv", "cwd", "kind"),
    [
        (["no-such-command"], "/", "command_not_found"),
        (["/no/such/command"], "/", "command_not_found"),
        (["/etc/passwd"], "/", "not_executable"),
        (["true"], "/no/such/folder", "cwd_missing"),
        (["a\0b"], "/", "spawn_failed"),
    ],
)
def test_a_command_that_cannot_start_is_said_with_its_kind(start: Start, argv: list[str], cwd: str, kind: str) -> None:
    one = start()
    order(one, argv, {"PATH": "/usr/bin:/bin"}, cwd=cwd)
    (failed,) = read_all(one)
    assert failed["failed"] == kind
    assert failed["detail"]
    assert one.wait(SECONDS_MAX) == 0


def test_the_path_of_the_order_finds_the_command(start: Start, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert run(start(), ["tool"], {"PATH": f"/no/such:{tmp_path}"}) == ["found"]


def test_signals_that_python_ignores_end_the_workload_again(start: Start) -> None:
    lines = run(start(), ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"])
    ignored_and_blocked = [int(line.split()[1], 16) & ~SIGNALS_OF_LIBC for line in lines]
    assert ignored_and_blocked == [0, 0]
