"""The pytest plugin with the session's nats-server: `pytest_plugins = ["tests.support.nats"]`."""

from collections.abc import Iterator

import pytest

from tests.support.nats_server import NatsServer


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The session's server; a test that kills it starts it again."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()
