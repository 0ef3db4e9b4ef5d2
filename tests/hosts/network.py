"""Hosts without machines: network namespaces, each with one cable to a switch, and who cuts it.

    host "control"  host "watch"  host "node-0" ...      a namespace each; its end of the cable is eth0
          │              │             │
    ──────┴──────────────┴─────────────┴──────           a bridge in a namespace of its own; a port per cable

A host is cut off by taking its port out of the bridge: its link stays up, so that it sees a network that is well, and
whatever it sends is gone, with no answer that says so. No namespace has a name, and no interface is ever in that of the
machine: all of it is held by descriptors of this process, and the kernel removes it with the last of its processes,
however those end.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

CLONE_NEWNET = 0x40000000
NETWORK_BITS = 24
FIRST_THREE = "10.77.0"
COMMAND_SECONDS_MAX = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


def why_no_hosts() -> str | None:
    """What hosts would need and this machine lacks, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "making network namespaces takes root on Linux"
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} on PATH (Debian's packages iproute2 and util-linux)"
    try:
        Namespace().close()
    except OSError as error:
        return f"no network namespace can be made here: {error}"
    return None


class Namespace:
    """One network namespace, for as long as it is open or a process is in it."""

    def __init__(self) -> None:
        with _home() as home:
            _check(_libc.unshare(CLONE_NEWNET))
            self._descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            _enter(home)
        self._inode = os.fstat(self._descriptor).st_ino

    @property
    def path(self) -> str:
        """A file by which other programs find it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in it meanwhile: what it opens and what it starts belongs there."""
        with _home() as home:
            _enter(self._descriptor)
            try:
                yield
            finally:
                _enter(home)

    def inside(self, *command: str) -> tuple[str, ...]:
        """The command line that runs a command in it, as the same process."""
        return ("nsenter", f"--net={self.path}", "--", *command)

    def processes(self) -> list[int]:
        """Who is in it; this process is not, though it may have entered."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and int(folder.name) != os.getpid():
                with suppress(OSError):  # It has just ended.
                    if (folder / "ns" / "net").stat().st_ino == self._inode:
                        found.append(int(folder.name))
        return found

    def running(self, word: str) -> list[int]:
        """Who is in it with this word on its command line."""
        return [pid for pid in self.processes() if word in _command_line(pid)]

    def kill_all(self) -> None:
        """SIGKILL to all that is in it, until nothing is: the machine loses its power."""
        while found := [pid for pid in self.processes() if not _is_zombie(pid)]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._descriptor)


class Network:
    """A switch, and the hosts on it, while the `with` block runs; what is left in them then is ended."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._names = tuple(hosts)
        self._stack = ExitStack()
        self._hosts: dict[str, Namespace] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self._switch = self._open()
            with self._switch.entered():
                _run("ip", "link", "add", "switch", "type", "bridge")
                _run("ip", "link", "set", "switch", "up")
            for number, name in enumerate(self._names, start=1):
                self._hosts[name] = self._open()
                self._connect(name, f"{FIRST_THREE}.{number}")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, name: str) -> Namespace:
        return self._hosts[name]

    @property
    def hosts(self) -> tuple[str, ...]:
        return self._names

    def address(self, name: str) -> str:
        return f"{FIRST_THREE}.{self._names.index(name) + 1}"

    def cut(self, *hosts: str) -> None:
        """The switch forwards nothing of these hosts any more."""
        self._set(hosts, "nomaster")

    def heal(self, *hosts: str) -> None:
        self._set(hosts, "master", "switch")

    def _open(self) -> Namespace:
        namespace = Namespace()
        self._stack.callback(namespace.close)
        self._stack.callback(namespace.kill_all)
        return namespace

    def _connect(self, name: str, address: str) -> None:
        cable = ("name", "eth0", "netns", self._hosts[name].path)
        with self._switch.entered():
            _run("ip", "link", "add", "name", name, "type", "veth", "peer", *cable)
            _run("ip", "link", "set", "dev", name, "master", "switch", "up")
        with self._hosts[name].entered():
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "address", "add", f"{address}/{NETWORK_BITS}", "dev", "eth0")
            _run("ip", "link", "set", "eth0", "up")

    def _set(self, ports: Sequence[str], *state: str) -> None:
        with self._switch.entered():
            for port in ports:
                _run("ip", "link", "set", "dev", port, *state)


@contextmanager
def _home() -> Iterator[int]:
    """The namespace that this thread is in."""
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(descriptor: int) -> None:
    _check(_libc.setns(descriptor, CLONE_NEWNET))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=COMMAND_SECONDS_MAX, stdin=subprocess.DEVNULL)


def _is_zombie(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _command_line(pid: int) -> list[str]:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
    except OSError:
        return []
