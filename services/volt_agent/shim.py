"""The shim: one small process between the agent and one workload process.

    agent --stdin-->  shim                                    --setsid--> workload process --> its helpers
          <-stdout--  (keeps the deadline, adopts orphans)    <--pipes--

Lines of JSON come in: the launch order `{"argv", "env", "cwd", "deadline_ms", "frozen_ms_max"}`, then any number of
`{"deadline_ms"}`, `{"thaw_to_ms"}` and `{"signal": "TERM", "grace_ms"}`. Lines of JSON go out, in this order:
`{"started": pid}` or `{"failed": kind, "detail"}`; `{"line", "stream": "out"|"err"}` for each line of output and
`{"frozen": true}` for each freeze; and last `{"exit", "signal", "oom", "reason", "ended_us"}`, once the output is
drained and every descendant is gone.

Instants are of the boot-time clock, which both ends read from one kernel: a length of time would begin afresh when a
shim that had been stopped came to read an old line. Past its deadline the workload is frozen, whatever is read later:
its agent stands still or is cut off, and only a thaw lets it go on. It is killed if none comes in time, if it is to be
stopped, or if the agent has closed stdin, since nobody can thaw it then. A stdout that nobody reads changes nothing.
SIGTERM ends the workload at once and in order. When the shim itself is killed, the kernel kills the workload.

Started for each process of a job (see program.py), within milliseconds: it imports neither json nor signal.
"""

import os
import select
import sys
import time
from _json import encode_basestring_ascii as quote  # The C core of json; the package around it imports re and enum.
from _json import make_scanner

from volt_agent.kernel import (
    READ_BYTES,
    SIGCHLD,
    SIGCONT,
    SIGINFO_BYTES,
    SIGKILL,
    SIGNAL_MAX,
    SIGSTOP,
    SIGTERM,
    LaunchError,
    become_subreaper,
    block_signals,
    boot_ms,
    boot_us,
    descendants,
    oom_kills,
    runs,
    send,
    spawn,
)

ORDER_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 16 << 10
"""A longer line of output is sent in pieces."""
MESSAGE_BYTES_MAX = 6 * LINE_BYTES_MAX + 256
"""No byte of a line takes more than six in JSON."""
PENDING_BYTES_MAX = 64 << 10
"""With so much unread by the agent the output of the workload waits in its pipe, and then the workload waits."""
TURN_MS_MAX = 200
"""The boot-time clock goes on while a machine sleeps and select() does not, so the clock is looked at this often."""
DRAIN_MS_MAX = 500
"""How long helpers that outlive the workload process may go on."""
UNREAD_MS_MAX = 500
"""How long the last words wait for a reader once the agent has closed stdin."""
KILL_PAUSE_MS, NEVER_MS = 5, 1 << 62
FREEZE_PAUSE_MS = 1
FREEZE_MS_MAX = 150
"""Longer is not waited for a process that cannot be stopped: another user's, say."""

EXIT_OF_KILLED_COMMAND = 128 + SIGKILL  # As a shell says it.


class ProtocolError(Exception):
    """The agent sent what this shim does not know: a bug, and nothing to guess about."""


def main() -> int:
    shim = Shim()
    try:
        shim.follow()
    except LaunchError as failure:
        shim.say('{{"failed":{},"detail":{}}}'.format(*map(quote, failure.args)))
    finally:
        # Even an error in this program must not leave a workload that nobody can end.
        shim.end_descendants()
    shim.drain()
    if shim.status is not None:
        shim.say(shim.exit_report(shim.status))
    shim.flush()
    return 0


class Shim:
    def __init__(self) -> None:
        os.set_blocking(1, False)
        become_subreaper()
        self.signals = block_signals()
        self.oom_kills = oom_kills()
        self.deadline_ms = NEVER_MS  # When the agent counts as gone; none while the workload is frozen.
        self.frozen_ms_max, self.thaw_by_ms = 0, NEVER_MS  # When the workload, being frozen, has been so for too long.
        self.kill_at_ms = NEVER_MS  # When the grace of a stop ends, or that of helpers left alone.
        self.reason = "exited"
        self.commands, self.commanded = b"", True  # Until the agent closes stdin.
        self.pending, self.heard = bytearray(), True  # Until the agent closes its end of stdout.
        self.outputs: dict[int, Output] = {}
        self.pid = 0  # Of the workload process, once it is started.
        self.status: int | None = None  # Its end, once it is reaped at `ended_us`.
        self.ended_us = 0

    def follow(self) -> None:
        """Serve until the workload process has ended, and its output with it, or until it is to be killed.

        Raises LaunchError when it cannot be started, or when the agent goes away without an order.
        """
        while self.status is None or self.outputs:
            if boot_ms() >= self.deadline_ms:
                if not self.commanded or not self.pid:
                    break
                self.freeze()
            left_ms = min(self.deadline_ms, self.thaw_by_ms, self.kill_at_ms) - boot_ms()
            if left_ms <= 0:
                break
            self.turn(min(left_ms, TURN_MS_MAX))
            if not self.commanded and not self.pid:
                raise LaunchError("no_order", "stdin ended before the order")
        if self.status is None and self.reason == "exited":
            self.reason = "deadline"

    def end_descendants(self) -> None:
        """Kill and reap until none is left. Without a bound, for a GPU is not free while one of them lives.

        This process is their subreaper: it inherits the orphans, so that all of them are in the tree below it.
        """
        while not self.reap():
            send(descendants(), SIGKILL)
            time.sleep(KILL_PAUSE_MS / 1000)

    def freeze(self) -> None:
        """Stop every descendant, until all stand still: one that is being forked is found the next time."""
        until_ms = boot_ms() + FREEZE_MS_MAX
        while (running := [pid for pid in descendants() if runs(pid)]) and boot_ms() < until_ms:
            send(running, SIGSTOP)
            time.sleep(FREEZE_PAUSE_MS / 1000)
        self.deadline_ms, self.thaw_by_ms = NEVER_MS, boot_ms() + self.frozen_ms_max
        self.say('{"frozen":true}')

    def thaw(self, deadline_ms: int) -> None:
        if self.thaw_by_ms != NEVER_MS and boot_ms() < deadline_ms:
            self.deadline_ms, self.thaw_by_ms = deadline_ms, NEVER_MS
            send(descendants(), SIGCONT)

    def drain(self) -> None:
        """Read what the dead have left in the pipes. A stranger who holds an end of one is not waited for."""
        self.give_up_ms = boot_ms() + UNREAD_MS_MAX
        while self.outputs and self.has_reader():
            held_up = len(self.pending) >= PENDING_BYTES_MAX
            if not self.turn(TURN_MS_MAX if held_up else 0) and not held_up:
                break
        for fd in list(self.outputs):
            self.close(fd)

    def flush(self) -> None:
        while self.pending and self.has_reader():
            self.turn(TURN_MS_MAX)

    def has_reader(self) -> bool:
        """An agent that stands still is waited for; one that is gone only until a bound."""
        return self.heard and (self.commanded or boot_ms() < self.give_up_ms)

    def exit_report(self, status: int) -> str:
        code = os.waitstatus_to_exitcode(status)
        exit_code, signal = (code, "null") if code >= 0 else ("null", -code)
        killed = self.reason == "exited" and code in (-SIGKILL, EXIT_OF_KILLED_COMMAND)
        # The counter is the machine's: another's end may make it rise, but only a kill is ever put down to it.
        oom = "true" if killed and oom_kills() > self.oom_kills else "false"
        how = f'"exit":{exit_code},"signal":{signal},"oom":{oom},"reason":{quote(self.reason)}'
        return f'{{{how},"ended_us":{self.ended_us}}}'

    def turn(self, wait_ms: int) -> bool:
        """Wait for something to happen and answer it; True if there was output to read."""
        hungry = list(self.outputs) if len(self.pending) < PENDING_BYTES_MAX else []
        sources = [self.signals, *hungry, 0] if self.commanded else [self.signals, *hungry]
        sinks = [1] if self.pending and self.heard else []
        readable, writable, _ = select.select(sources, sinks, [], wait_ms / 1000)
        if writable:
            self.write()
        fed = [fd for fd in hungry if fd in readable]
        for fd in fed:
            self.read(fd)
        if self.signals in readable:
            self.take_signals()
        if 0 in readable:
            chunk = os.read(0, READ_BYTES)
            self.commands, self.commanded = self.commands + chunk, bool(chunk)
            self.obey()
        return bool(fed)

    def say(self, message: str) -> None:
        if self.heard:
            self.pending += message.encode() + b"\n"

    def write(self) -> None:
        try:
            written = os.write(1, self.pending[:PENDING_BYTES_MAX])
        except BrokenPipeError:
            self.heard, written = False, len(self.pending)
        del self.pending[:written]

    def read(self, fd: int) -> None:
        chunk = os.read(fd, READ_BYTES)
        if chunk:
            self.say_lines(self.outputs[fd].name, self.outputs[fd].add(chunk))
        else:
            self.close(fd)

    def close(self, fd: int) -> None:
        os.close(fd)
        output = self.outputs.pop(fd)
        self.say_lines(output.name, [output.rest] if output.rest else [])

    def say_lines(self, name: str, lines: list[bytes]) -> None:
        for line in lines:
            self.say(f'{{"line":{quote(line.decode(errors="replace"))},"stream":"{name}"}}')

    def take_signals(self) -> None:
        data = os.read(self.signals, SIGINFO_BYTES * SIGNAL_MAX)
        numbers = [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), SIGINFO_BYTES)]
        if SIGCHLD in numbers:
            self.reap()
        if SIGTERM in numbers:
            self.stop(0)

    def reap(self) -> bool:
        """Collect every child that has ended, the adopted too; True when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid and self.status is None:
                self.status, self.ended_us = status, boot_us()
                self.kill_at_ms = min(self.kill_at_ms, boot_ms() + DRAIN_MS_MAX)

    def obey(self) -> None:
        *lines, self.commands = self.commands.split(b"\n")
        if len(self.commands) > ORDER_BYTES_MAX:
            raise ProtocolError(f"a line of more than {ORDER_BYTES_MAX} bytes")
        for line in lines:
            match parse(line):
                case {"argv": [_, *_] as argv, "env": dict() as env, "cwd": cwd, **times}:
                    self.deadline_ms, self.frozen_ms_max = number(times, "deadline_ms"), number(times, "frozen_ms_max")
                    exact_env = {encode(name): encode(value) for name, value in env.items()}
                    self.launch([encode(argument) for argument in argv], exact_env, encode(cwd))
                case {"deadline_ms": int(deadline_ms)}:
                    if boot_ms() < self.deadline_ms:
                        self.deadline_ms = max(self.deadline_ms, deadline_ms)
                case {"thaw_to_ms": int(deadline_ms)}:
                    self.thaw(deadline_ms)
                case {"signal": "TERM", "grace_ms": int(grace_ms)}:
                    self.stop(grace_ms)
                case other:
                    raise ProtocolError(f"an unknown command: {other}")

    def launch(self, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> None:
        if boot_ms() >= self.deadline_ms:
            raise LaunchError("deadline_passed", "the order came after its own deadline")
        self.pid, out, err = spawn(argv, env, cwd)
        self.outputs = {out: Output("out"), err: Output("err")}
        self.say(f'{{"started":{self.pid}}}')

    def stop(self, grace_ms: int) -> None:
        if self.pid and self.status is None:
            self.reason = "signalled"
            is_frozen = self.thaw_by_ms != NEVER_MS
            self.kill_at_ms = min(self.kill_at_ms, boot_ms() + (0 if is_frozen else grace_ms))
            os.killpg(self.pid, SIGTERM)


class Output:
    """One output of the workload, cut into lines; `rest` is the line that has not ended yet."""

    def __init__(self, name: str) -> None:
        self.name, self.rest = name, b""

    def add(self, chunk: bytes) -> list[bytes]:
        *lines, rest = (self.rest + chunk).split(b"\n")
        *more, self.rest = cut(rest)
        return [piece for line in lines for piece in cut(line)] + more


def cut(line: bytes) -> list[bytes]:
    """Cut into pieces of at most LINE_BYTES_MAX, but not within a character of UTF-8."""
    pieces = []
    while len(line) > LINE_BYTES_MAX:
        end = LINE_BYTES_MAX
        while end > LINE_BYTES_MAX - 3 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


class Syntax:
    """What the scanner asks of a decoder of the json package."""

    strict, parse_float, parse_int = True, float, int
    parse_constant = object_hook = object_pairs_hook = array_hook = None


scan = make_scanner(Syntax())  # type: ignore[arg-type]  # It takes any object that has these attributes.


def parse(line: bytes) -> object:
    try:
        message: object = scan(line.decode(), 0)[0]
    except (StopIteration, ValueError) as error:
        raise ProtocolError(f"not JSON: {line[:100]!r}") from error
    return message


def number(values: dict[object, object], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int):
        raise ProtocolError(f"{value!r} where {name} is due")
    return value


def encode(value: object) -> bytes:
    if not isinstance(value, str):
        raise ProtocolError(f"{value!r} where a text is due")
    return value.encode()


if __name__ == "__main__":
    sys.exit(main())
