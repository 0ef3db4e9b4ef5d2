"""A local stand-in for S3 (moto's server) on a free loopback port, killed by its process id."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

READY_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
BUCKET = "volt-test"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


class S3Server:
    """One server with one bucket. `environment` is what a client of it needs."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port: int = taken.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.url = f"s3://{BUCKET}/checkpoints"
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and returns when its bucket is there."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}
        )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=READY_SECONDS_MAX).close()
            except (OSError, urllib.error.URLError):
                time.sleep(POLL_SECONDS)
            else:
                return
        self.kill()
        raise AssertionError("the stand-in for S3 did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
