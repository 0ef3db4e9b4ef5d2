"""Every object store does the same: one suite for JetStream, S3 and a folder."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.nats_server import NatsServer
from tests.support.s3_server import S3Server
from volt.contracts.checkpoints import CHUNK_BYTES, OBJECT_SECONDS_MAX
from volt.contracts.errors import Refused
from volt_agent.store import opening
from volt_agent.store.opening import check_url, open_store
from volt_agent.store.port import ObjectMissing, Store, StoreUnavailable

pytest_plugins = ["tests.support.nats"]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["nats", "s3", "file"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    url = f"file://{tmp_path / 'a folder'}"
    if request.param == "nats":
        server = request.getfixturevalue("nats_server")
        assert isinstance(server, NatsServer)
        url = server.url
    elif request.param == "s3":
        server = request.getfixturevalue("s3_server")
        assert isinstance(server, S3Server)
        url = server.url
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
    check_url(url)
    opened = await open_store(url, "test")
    for name in await opened.names("lab"):
        await opened.delete(name)
    yield opened
    await opened.close()


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(CHUNK_BYTES)], ids=["empty", "small", "largest"])
async def test_what_was_put_is_got(store: Store, data: bytes) -> None:
    await store.put("lab/j1/1/0/aa", data)
    assert await store.get("lab/j1/1/0/aa") == data


async def test_an_object_that_is_put_again_is_the_new_one(store: Store) -> None:
    for data in (b"old", b"new"):
        await store.put("lab/j1/1/0/aa", data)
    assert await store.get("lab/j1/1/0/aa") == b"new"
    assert await store.names("lab/j1") == {"lab/j1/1/0/aa"}


async def test_an_object_that_is_not_there_is_missing(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="lab/j1/1/0/aa"):
        await store.get("lab/j1/1/0/aa")


async def test_names_are_those_below_whole_segments(store: Store) -> None:
    assert await store.names("lab/j1") == frozenset()
    for name in ("lab/j1/1/0/aa", "lab/j1/1/0/bb", "lab/j1/1/10/aa", "lab/j10/1/0/aa"):
        await store.put(name, b"x")
    assert await store.names("lab/j1") == {"lab/j1/1/0/aa", "lab/j1/1/0/bb", "lab/j1/1/10/aa"}
    assert await store.names("lab/j1/1/0") == {"lab/j1/1/0/aa", "lab/j1/1/0/bb"}


async def test_many_names_are_all_listed(store: Store) -> None:
    names = {f"lab/j1/1/0/{number}" for number in range(60)}
    for name in names:
        await store.put(name, b"x")
    assert await store.names("lab/j1/1/0") == names


async def test_what_is_removed_is_gone_and_removing_it_again_is_no_error(store: Store) -> None:
    await store.put("lab/j1/1/0/aa", b"x")
    await store.put("lab/j1/1/0/bb", b"x")
    for _ in range(2):
        await store.delete("lab/j1/1/0/aa")
    assert await store.names("lab/j1") == {"lab/j1/1/0/bb"}
    with pytest.raises(ObjectMissing):
        await store.get("lab/j1/1/0/aa")


@pytest.mark.parametrize("name", ["../a", "lab//a", "lab/A", "lab/a.b", "/lab", "lab/*", ""])
async def test_a_name_that_some_store_cannot_have_is_a_bug(store: Store, name: str) -> None:
    with pytest.raises(AssertionError):
        await store.put(name, b"x")


async def test_a_store_that_is_away_is_unavailable_and_is_there_again_after(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    store = await open_store(server.url, "test")
    await store.put("lab/j1/1/0/aa", b"x")
    server.kill()
    for ask in (store.put("lab/j1/1/0/bb", b"x"), store.get("lab/j1/1/0/aa"), store.delete("lab/j1/1/0/aa")):
        with pytest.raises(StoreUnavailable):
            await ask
    with pytest.raises(StoreUnavailable):
        await store.names("lab")
    server.start()
    again = await open_store(server.url, "again")
    assert await again.get("lab/j1/1/0/aa") == b"x"
    await again.close()
    await store.close()
    server.kill()


async def test_an_s3_store_that_says_no_is_unavailable(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = await open_store("s3://nobodys-bucket", "test")
    with pytest.raises(StoreUnavailable, match="lab/a"):
        await store.put("lab/a", b"x")


async def test_what_is_too_old_is_swept_from_a_folder_when_it_is_opened(tmp_path: Path) -> None:
    store = await open_store(f"file://{tmp_path}", "test")
    for name in ("lab/old", "lab/new"):
        await store.put(name, b"x")
    old = time.time() - OBJECT_SECONDS_MAX - 60
    os.utime(tmp_path / "lab/old", (old, old))
    again = await open_store(f"file://{tmp_path}", "test")
    assert await again.names("lab") == {"lab/new"}


@pytest.mark.parametrize("url", ["", "http://x", "bucket", "/folder"])
def test_a_url_that_means_no_store_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="no object store"):
        check_url(url)


def test_a_store_whose_library_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "S3_LIBRARY", "a_library_that_is_not_there")
    with pytest.raises(Refused, match=r"volt-gpu\[s3\]"):
        check_url("s3://bucket")
