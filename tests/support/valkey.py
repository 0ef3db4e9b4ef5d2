"""The pytest plugin with the session's Valkey: `pytest_plugins = ["tests.support.valkey"]`."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from tests.support.valkey_server import ValkeyServer
from volt.runtime.views import views_at

CONNECTIONS_MAX = 16


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """The session's server; a test that kills it starts it again."""
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def redis(valkey_server: ValkeyServer) -> AsyncIterator[Redis]:
    """A connection to the session's server, which is empty when the test begins."""
    async with views_at(valkey_server.url, CONNECTIONS_MAX) as client:
        await client.flushall()
        yield client
