"""A Docker daemon of the tests' own: in a folder of its own, on a socket of its own, stopped by its process id.

It has no bridge and writes no firewall rule, so it changes nothing of the machine's network; containers use the host's.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0
COMMAND_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
LOG_CHARACTERS_MAX = 2_000
# In memory, where there is room: images are thousands of small files, and the daemon syncs each to a disk.
MEMORY_FOLDER = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3


class DockerFailed(Exception):
    """A docker command ended with an error; the message is what it printed."""


class Docker:
    """The docker command, talking to one daemon."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder}/docker.sock"
        # A configuration of its own: the user's may name a registry's password or another builder.
        self._environment = {**os.environ, "DOCKER_HOST": self.url, "DOCKER_CONFIG": str(folder / "config")}

    def run(self, *arguments: str, seconds_max: float = COMMAND_SECONDS_MAX) -> str:
        """What `docker <arguments>` prints, both outputs together. Raises DockerFailed."""
        done = subprocess.run(
            ["docker", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
            check=False,
        )
        if done.returncode != 0:
            raise DockerFailed(f"docker {arguments[0]} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout.strip()


def why_no_daemon() -> str | None:
    """What a daemon of one's own would need and this machine lacks, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "starting a Docker daemon takes root on Linux"
    missing = [name for name in ("unshare", "dockerd", "docker") if shutil.which(name) is None]
    return f"there is no {' and no '.join(missing)} on PATH (Debian's package docker.io)" if missing else None


@contextmanager
def docker_daemon() -> Iterator[Docker]:
    """The daemon while the block runs; then it is gone, with all that it stored. Raises DockerFailed."""
    # A short path, not pytest's: a socket's may have no more than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="volt-docker-", dir=_fast_folder()))
    try:
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(_command(folder), stdout=log, stderr=log, start_new_session=True)
        try:
            docker = Docker(folder)
            _wait_until_ready(docker, daemon, folder / "log")
            yield docker
        finally:
            _stop(daemon)
    finally:
        shutil.rmtree(folder)


def _fast_folder() -> Path | None:
    usable = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_MIN
    return MEMORY_FOLDER if usable else None


def _command(folder: Path) -> list[str]:
    return [
        # What it mounts, it may leave mounted; in a namespace of its own that is gone when it is.
        "unshare",
        "--mount",
        "dockerd",
        f"--host=unix://{folder}/docker.sock",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
    ]


def _wait_until_ready(docker: Docker, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            docker.run("version")
        except DockerFailed as error:
            if daemon.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(errors="replace")[-LOG_CHARACTERS_MAX:]
                raise DockerFailed(f"no daemon could be started: {error}\n{end}") from error
            time.sleep(POLL_SECONDS)
        else:
            return


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    """Ends it. Its containerd ends with it, since the kernel is asked to see to that."""
    daemon.terminate()
    try:
        daemon.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
