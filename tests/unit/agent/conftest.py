"""What the tests of the agent share."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.unit.agent.shims import SHIM, Shim, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Start shims, and leave none of them behind."""
    started: list[Shim] = []

    def start_one() -> Shim:
        started.append(subprocess.Popen(SHIM, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start_one
    for one in started:
        below = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
        one.kill()
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with one:
            pass
