"""A house to test in: a control plane and two nodes, each in a terminal of its own, and commands typed into others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from volt.contracts.http import Job
from volt.sdk import Client

NODES = ("node-1", "node-2")
SECONDS_MAX = 90.0
POLL_SECONDS = 0.1


def until(condition: Callable[[], bool]) -> None:
    """Asks again until it is so. Fails after `SECONDS_MAX`."""
    give_up_at = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < give_up_at, f"not so within {SECONDS_MAX} s"
        time.sleep(POLL_SECONDS)


class Terminal:
    """One command in a terminal of its own: its output, Ctrl-C, and its exit code."""

    def __init__(self, folder: Path, name: str, command: list[str], more: Mapping[str, str] | None = None) -> None:
        """`more` is what its environment has besides."""
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VOLT_")}
        environment |= more or {}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def says(self, text: str) -> None:
        """Waits until the text is on either output."""
        until(lambda: text in self.stdout + self.stderr or self.process.poll() is not None)
        assert text in self.stdout + self.stderr, self.stdout + self.stderr

    def ends(self) -> int:
        """Waits for its end; its exit code."""
        return self.process.wait(SECONDS_MAX)

    def interrupt(self) -> None:
        """Ctrl-C, which a terminal sends to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class House:
    """A control plane and two nodes, each in a terminal, and a folder for all that they keep."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "control"
        self.terminals: list[Terminal] = []
        self.up = self.start_up()
        self.agents = [self.start_agent(node) for node in NODES]

    def open(self, name: str, *arguments: str, more: Mapping[str, str] | None = None) -> Terminal:
        """Types `volt ...` into a new terminal, whose environment has `more` besides."""
        terminal = Terminal(self.folder, name, [sys.executable, "-m", "volt", *arguments], more)
        self.terminals.append(terminal)
        return terminal

    def start_up(self) -> Terminal:
        up = self.open("up", "up", "--data", str(self.data))
        up.says("Ctrl-C stops it")
        return up

    def volt(self, *arguments: str, data: Path | None = None) -> Terminal:
        """A command that ends by itself; options go before anything after `--`."""
        verb, *rest = arguments
        words = 2 if verb in ("ledger", "dlq", "views", "account", "market", "bid", "provider") else 1
        head, tail = arguments[:words], rest[words - 1 :]
        terminal = self.open(f"run-{len(self.terminals)}", *head, "--data", str(data or self.data), *tail)
        terminal.ends()
        return terminal

    def deploy(self, *options: str, command: str) -> str:
        """Deploys a Python one-liner; the job's id, which is all that is on stdout."""
        deployed = self.volt("deploy", *options, "--", sys.executable, "-c", command)
        assert deployed.process.returncode == 0, deployed.stderr
        (job,) = deployed.stdout.split()
        return job

    def job(self, job: str) -> Job:
        with Client.from_context(self.data) as client:
            return client.jobs.get(job)

    def alive(self) -> int:
        with Client.from_context(self.data) as client:
            return sum(offer.state == "alive" for offer in client.offers().offers)

    def left(self) -> list[str]:
        """What still runs of all that was started here, by its environment or its command."""
        return [text for process in psutil.process_iter() if str(self.folder) in (text := _words(process))]

    def start_agent(self, node: str) -> Terminal:
        place = ("--runtime", "process", "--fabric", "A", "--region", "eu", "--workdir", str(self.folder))
        return self.open(
            *(node, "agent", "run", "--data", str(self.data), "--gpus", "1xh100-80gb", "--price", "1.85", *place),
            *("--state", str(self.folder / node)),
        )


def _words(process: psutil.Process) -> str:
    try:
        return " ".join([*process.cmdline(), *process.environ().values()])
    except psutil.Error:
        return ""
