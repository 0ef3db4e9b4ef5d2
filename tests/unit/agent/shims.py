"""A shim as a process of its own, and what an agent does with it."""

import json
import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import psutil

from volt_agent.kernel import boot_ms, boot_us
from volt_agent.program import shim_command

SHIM = shim_command(Path(mkdtemp(prefix="volt-shim-")))
LONG_MS = 20_000
SECONDS_MAX = 10.0

Shim = subprocess.Popen[bytes]
Message = dict[str, object]
Start = Callable[[], Shim]


def run(one: Shim, argv: list[str], env: dict[str, str] | None = None, cwd: str = "/") -> list[str]:
    """Run to an exit of 0 and return the lines of stdout and stderr."""
    started, *lines, end = talk(one, argv, env, cwd)
    assert isinstance(started["started"], int)
    assert end == ended(0, None, "exited")
    return [str(line["line"]) for line in lines]


def talk(one: Shim, argv: list[str], env: dict[str, str] | None = None, cwd: str = "/") -> list[Message]:
    order(one, argv, env, cwd)
    return read_all(one)


def order(
    one: Shim,
    argv: list[str],
    env: dict[str, str] | None = None,
    cwd: str = "/",
    deadline_ms: int | None = None,
    frozen_ms_max: int = 0,
) -> None:
    deadline_ms = boot_ms() + LONG_MS if deadline_ms is None else deadline_ms
    launch = {"argv": argv, "env": env or {}, "cwd": cwd}
    tell(one, {**launch, "deadline_ms": deadline_ms, "frozen_ms_max": frozen_ms_max})


def tell(one: Shim, command: Message) -> None:
    assert one.stdin is not None
    one.stdin.write(json.dumps(command).encode() + b"\n")
    one.stdin.flush()


def wait_started(one: Shim) -> int:
    assert one.stdout is not None
    return int(json.loads(one.stdout.readline())["started"])


def wait_lines(one: Shim, *texts: str) -> int:
    """Wait for the start and for these lines, in any order; return the pid."""
    pid = wait_started(one)
    assert one.stdout is not None
    assert {json.loads(one.stdout.readline())["line"] for _ in texts} == set(texts)
    return pid


def read_one(one: Shim) -> Message:
    assert one.stdout is not None
    message: Message = json.loads(one.stdout.readline())
    return message


def read_all(one: Shim) -> list[Message]:
    """What is left to read; that an end has a sensible instant is checked here, and the instant left out."""
    assert one.stdout is not None
    messages: list[Message] = [json.loads(line) for line in one.stdout]
    for message in messages:
        if "exit" in message:
            ended_us = message.pop("ended_us")
            assert isinstance(ended_us, int)
            assert 0 < ended_us <= boot_us()
    return messages


def ended(code: int | None, number: int | None, reason: str) -> Message:
    return {"exit": code, "signal": number, "oom": False, "reason": reason}


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def ends_within(process: psutil.Process, seconds: float) -> bool:
    """Whether it ends in time, told by the kernel: psutil would also wait until somebody has reaped it."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
