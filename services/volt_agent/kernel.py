"""What a shim asks of the kernel: to start a process apart from all others, and to name, stop and end those below it.

Loaded with the shim for each process of a job, so it imports as little.
"""

import ctypes
import errno
import os
import time

READ_BYTES = 16 << 10
SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGCHLD, SIGCONT, SIGSTOP, SIGNAL_MAX = 1, 2, 9, 15, 17, 18, 19, 64
SIG_BLOCK, SIG_SETMASK, SIGSET_BYTES, SIGINFO_BYTES = 0, 2, 128, 128
STILL = (b"T", b"t", b"D", b"Z", b"X")
"""States of a process, as proc(5) has them, in which it does nothing."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
EXEC_FAILURES = dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "command_not_found")
EXEC_FAILURES |= dict.fromkeys((errno.EACCES, errno.ENOEXEC), "not_executable")

libc = ctypes.CDLL(None, use_errno=True)


class LaunchError(Exception):
    """The workload process cannot be started: a kind for programs, a detail for people."""


def become_subreaper() -> None:
    """Orphans below this process become its own children (see prctl(2))."""
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def spawn(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> tuple[int, int, int]:
    """Fork and exec; return the pid and the ends to read its stdout and stderr from. Raises LaunchError."""
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    failed, failed_end = os.pipe()  # Closed by an exec that succeeds.
    shim = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError("spawn_failed", str(error)) from error
    if pid == 0:
        try:
            detach(shim, out_end, err_end)
            become(argv, env, cwd, failed_end)
        finally:
            os._exit(1)
    for end in (out_end, err_end, failed_end):
        os.close(end)
    kind, _, detail = os.read(failed, READ_BYTES).decode().partition(" ")
    os.close(failed)
    if kind:
        raise LaunchError(kind, detail)
    return pid, out, err


def detach(shim: int, out: int, err: int) -> None:
    """In the child: a session of its own, that ends with the shim, and nothing else of what the shim has."""
    os.setsid()
    check(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
    if os.getppid() != shim:
        os._exit(1)  # It died before the kernel knew that its death is to be passed on.
    # A signal that Python or the agent ignores, or this shim blocks, would stay so through the exec.
    for number in range(1, SIGNAL_MAX + 1):
        libc.signal(number, None)  # The default; KILL and STOP have no other.
    check(libc.sigprocmask(SIG_SETMASK, ctypes.create_string_buffer(SIGSET_BYTES), None))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)


def become(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, failed: int) -> None:
    """In the child: turn into the workload process, or tell `failed` why not."""
    try:
        os.chdir(cwd)
    except OSError as error:
        os.write(failed, f"cwd_missing {error.strerror}".encode())
        return
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(failed, f"{EXEC_FAILURES.get(error.errno or 0, 'spawn_failed')} {error.strerror}".encode())
    except ValueError as error:
        os.write(failed, f"spawn_failed {error}".encode())  # A NUL, or a name that no variable can have.


def block_signals() -> int:
    """Turn the signals that matter into something to select() on. HUP and INT are the terminal's, and ignored."""
    mask = ctypes.create_string_buffer(SIGSET_BYTES)
    for number in (SIGHUP, SIGINT, SIGTERM, SIGCHLD):
        check(libc.sigaddset(mask, number))
    check(libc.sigprocmask(SIG_BLOCK, mask, None))
    return check(libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))


def send(pids: list[int], signal: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal)
        except (ProcessLookupError, PermissionError):
            continue  # It has just ended; or it is another user's, and all one can do is wait for its end.


def descendants() -> list[int]:
    """Return every process below this one."""
    children: dict[int, list[int]] = {}
    with os.scandir("/proc") as entries:
        for pid in [entry.name for entry in entries if entry.name.isdecimal()]:
            children.setdefault(parent_of(pid), []).append(int(pid))
    found = children.get(os.getpid(), [])
    for below in found:  # It grows as it is walked.
        found += children.get(below, [])
    return found


def parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(b")")[2].split()[1])  # The name may hold parentheses.
    except (FileNotFoundError, ProcessLookupError):
        return 0  # It has just ended.


def runs(pid: int) -> bool:
    """Whether a process may go on by itself: one that is stopped, dead, or in the kernel for a while does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            return stat.read().rpartition(b")")[2].split()[0] not in STILL
    except (FileNotFoundError, ProcessLookupError):
        return False  # It has just ended.


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    with open("/proc/vmstat", "rb") as counters:  # noqa: PTH123
        return int(counters.read().partition(b"\noom_kill ")[2].partition(b"\n")[0] or 0)


def boot_ms() -> int:
    """The local clock that goes on while the machine sleeps, the same in every process of it."""
    return boot_us() // 1_000


def boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
