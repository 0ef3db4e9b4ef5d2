"""The file that leads a client to the control plane on this machine."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.sdk.scripted import answer, scripted
from volt.contracts import http
from volt.contracts.errors import MalformedMessage, NotFound
from volt.sdk import Client
from volt.sdk.context import Context, is_loopback, read_context


def test_a_client_is_made_from_the_file_or_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "context.json"
    balance = http.Balance(account="a", wallet_usd="1", on_hold_usd="0", pending_usd="0", earned_usd="0")
    with scripted(answer(balance), answer(balance)) as server:
        file.write_bytes(
            msgspec.json.encode({"gateway_url": server.url, "api_key": "k", "nats_url": "nats://x", "account": "a"})
        )
        for path in (file, str(tmp_path)):
            with Client.from_context(path) as client:
                assert client.balance() == balance
    assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer k"}


def test_without_the_file_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="volt up"):
        read_context(tmp_path / "context.json")


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"gateway_url":1,"api_key":"k"}', b"\xff"])
def test_a_file_that_is_no_context_is_malformed(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "context.json").write_bytes(data)
    with pytest.raises(MalformedMessage):
        read_context(tmp_path)


def test_a_context_does_not_show_its_key() -> None:
    assert "secret" not in repr(Context(gateway_url="http://127.0.0.1", api_key="secret"))


def test_no_proxy_is_asked_for_this_very_machine() -> None:
    assert all(is_loopback(url) for url in ("http://127.0.0.1:1", "http://localhost", "http://[::1]:2"))
    assert not any(is_loopback(url) for url in ("http://10.0.0.1", "https://volt.example", "nonsense"))
