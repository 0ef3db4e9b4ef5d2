"""The command line against a server that answers by a script."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.sdk.scripted import Step, scripted
from volt.cli import main

Ran = tuple[int, str, str, list[msgspec.Raw]]
Volt = Callable[..., Ran]


@pytest.fixture
def volt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Volt:
    """Runs the command line against these answers: its exit code, stdout, stderr, and the bodies that were sent."""

    def run(*arguments: str, answers: tuple[Step, ...]) -> Ran:
        with scripted(*answers) as server:
            addresses = {"nats_url": "nats://127.0.0.1:1", "redis_url": "", "gateway_url": server.url}
            (tmp_path / "context.json").write_text(json.dumps({**addresses, "account": "lab", "api_key": "the key"}))
            monkeypatch.setattr(sys, "argv", ["volt", *arguments])
            monkeypatch.setenv("VOLT_DATA", str(tmp_path))
            code: object = 0
            try:
                main()
            except SystemExit as ended:
                code = ended.code
            told = capsys.readouterr()
            assert isinstance(code, int)
            return code, told.out, told.err, [msgspec.Raw(one.body) for one in server.seen]

    return run
