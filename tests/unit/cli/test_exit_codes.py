"""The exit code tells the class of a failure; stdout holds data and nothing else."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from tests.unit.sdk.scripted import Step, answer, failure, scripted
from volt.cli import account, audit, dlq, main
from volt.contracts.http import ErrorBody, Health, JobList, OfferList
from volt.sdk import retries

Ran = tuple[int, str, str]
Volt = Callable[..., Ran]

GPU = ("--gpu", "h100-80gb", "--count", "1")
EVERY_READER = (
    ("offers",),
    ("deploy", *GPU, "--", "true"),
    ("status",),
    ("status", "j1"),
    ("logs", "-f"),
    ("release", "j1"),
    ("explain",),
    ("balance",),
    ("ledger", "audit"),
    ("market", "audit"),
    ("market", "verify"),
    ("dlq", "list"),
    ("dlq", "show", "1"),
    ("dlq", "replay", "1"),
    ("views", "rebuild"),
    ("account", "open", "lab"),
    ("agent", "run", "--price", "1.85"),
)


@pytest.fixture
def volt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Volt]:
    """Runs the command line: its exit code, stdout and stderr."""

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["volt", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        told = capsys.readouterr()
        assert isinstance(code, int)
        return code, told.out, told.err

    for variable in ("VOLT_NATS_URL", "VOLT_ACCOUNT", "VOLT_DATA"):
        monkeypatch.delenv(variable, raising=False)
    yield run
    # A command logs on the stderr that was captured for it alone.
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "CALL_ATTEMPTS_MAX", 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bogus",),
        ("nosuch",),
        ("status", "--output", "yaml"),
        ("status", "j1", "j2"),
        ("deploy", "--gpu", "h100-80gb", "--", "true"),
        ("deploy", *GPU),
        ("deploy", *GPU, "--bogus", "3", "--", "true"),
        ("deploy", "--gpu", "h100-80gb", "--count", "two", "--", "true"),
        ("deploy", *GPU, "--kind", "mpi", "--", "true"),
        ("agent", "run"),
        ("dlq", "show", "first"),
        ("account", "open"),
        ("account", "open", "lab", "--nats-url", "nats://127.0.0.1:1", "--into", "lab"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_tells_how_it_is_used(arguments: tuple[str, ...], volt: Volt) -> None:
    code, out, err = volt(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ")
    assert "Error: " in err


@pytest.mark.parametrize("arguments", EVERY_READER, ids=" ".join)
def test_without_a_control_plane_every_command_exits_4_and_says_what_starts_one(
    arguments: tuple[str, ...], volt: Volt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLT_DATA", str(tmp_path / "nothing here"))
    code, out, err = volt(*arguments)
    assert (code, out) == (4, "")
    assert f"{tmp_path / 'nothing here'}" in err
    assert "`volt up`" in err


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 3), (401, 6), (404, 4), (409, 3), (413, 3), (422, 3), (429, 3), (500, 1), (503, 5), (504, 5)],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["plain", "json"])
def test_each_class_of_failure_has_its_exit_code(
    status: int, code: int, options: tuple[str, ...], volt: Volt, tmp_path: Path
) -> None:
    exited, out, err = served(volt, tmp_path, failure(status, "some_code", "said so"), "status", "j1", *options)
    assert (exited, out) == (code, "")
    assert err == "error some_code: said so\n"


def test_a_gateway_that_is_not_there_exits_5(volt: Volt, tmp_path: Path) -> None:
    with scripted() as server:
        write_context(tmp_path, server.url)
    code, out, err = volt("balance", "--json", "--data", str(tmp_path))
    assert (code, out) == (5, "")
    assert "gateway_unreachable" in err


def test_a_refusal_shows_what_was_seen_and_what_may_be_meant(volt: Volt, tmp_path: Path) -> None:
    body = ErrorBody(code="unknown_gpu_model", message="no [such] model", seen="h10O", choices=("h100-80gb", "h200"))
    code, out, err = served(volt, tmp_path, answer(body, 422), "deploy", *GPU, "--", "true")
    assert (code, out) == (3, "")
    assert err == "error unknown_gpu_model: no [such] model\n  seen: h10O\n  choices: h100-80gb, h200\n"


@pytest.mark.parametrize(
    ("command", "answers"),
    [
        ("status", (JobList(jobs=()), Health(status="ok", bus="ok", views="ok"))),
        ("offers", (OfferList(offers=(), more=False),)),
    ],
)
def test_an_empty_list_is_a_success(
    command: str, answers: tuple[msgspec.Struct, ...], volt: Volt, tmp_path: Path
) -> None:
    steps = tuple(map(answer, answers))
    code, out, err = served(volt, tmp_path, steps, command, "--json")
    assert (code, json.loads(out), err) == (0, [], "")
    code, out, err = served(volt, tmp_path, steps, command)
    assert code == 0
    assert "makes one" in err, "and what to do about it"
    assert len(out.splitlines()) == 1, "a header and no row"


@pytest.mark.parametrize("command", ["logs", "release", "explain"])
def test_the_newest_of_no_jobs_is_not_found(command: str, volt: Volt, tmp_path: Path) -> None:
    code, out, err = served(volt, tmp_path, answer(JobList(jobs=())), command)
    assert (code, out) == (4, "")
    assert "there is no" in err


@pytest.mark.parametrize("variable", ["NAME", ""])
def test_a_variable_without_a_value_is_refused_before_anything_is_sent(
    variable: str, volt: Volt, tmp_path: Path
) -> None:
    with scripted() as server:
        write_context(tmp_path, server.url)
        code, out, err = volt("deploy", "--data", str(tmp_path), *GPU, "--env", variable, "--", "true")
    assert (code, out, server.seen) == (3, "", [])
    assert "invalid_env" in err
    assert "NAME=VALUE" in err


def test_what_follows_the_command_is_its_own(volt: Volt, tmp_path: Path) -> None:
    write = ("python", "train.py", "--count", "7", "-x", "--env", "A")
    for dashes in ((), ("--",)):
        with scripted(failure(422, "no")) as server:
            write_context(tmp_path, server.url)
            arguments = ("--env", "A=b=c d", "--env", "E=", *dashes, *write)
            assert volt("deploy", "--data", str(tmp_path), *GPU, *arguments)[0] == 3
        sent = json.loads(server.seen[0].body)
        assert (sent["count"], tuple(sent["workload"]["command"])) == (1, write)
        assert sent["workload"]["env"] == {"A": "b=c d", "E": ""}


@pytest.mark.parametrize("price", ["", "0", "-1.85", "1e3", "1,85", "$2", "NaN", "0.0000001", "1e999999"])
def test_an_agent_with_a_price_that_is_none_is_refused(price: str, volt: Volt) -> None:
    addresses = ("--nats-url", "nats://127.0.0.1:1", "--account", "lab")
    code, out, err = volt("agent", "run", *addresses, "--gpus", "8xh100-80gb", f"--price={price}")
    assert (code, out) == (3, "")
    assert "invalid_price" in err


@pytest.mark.parametrize("name", ["Lab", "a.b", "", "x" * 65, "-lab", "lab\n"])
def test_what_is_no_account_name_is_refused_before_anybody_is_asked(name: str, volt: Volt) -> None:
    code, out, err = volt("account", "open", "--nats-url", "nats://127.0.0.1:1", "--", name)
    assert (code, out) == (3, "")
    assert "invalid_account" in err


@pytest.mark.parametrize("arguments", [("status",), ("dlq", "list"), ("ledger", "audit")], ids=" ".join)
def test_a_context_that_cannot_be_read_is_named(arguments: tuple[str, ...], volt: Volt, tmp_path: Path) -> None:
    (tmp_path / "context.json").write_text("{")
    code, out, err = volt(*arguments, "--data", str(tmp_path))
    assert (code, out) == (3, "")
    assert f"{tmp_path / 'context.json'}" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "list", "--json"),
        ("ledger", "audit", "--json"),
        ("market", "audit", "--json"),
        ("market", "verify", "--json"),
        ("account", "open", "lab", "--json"),
    ],
    ids=" ".join,
)
def test_a_bus_that_is_not_there_exits_5_and_says_so_on_stderr_alone(
    arguments: tuple[str, ...], volt: Volt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (account, audit, dlq):
        monkeypatch.setattr(module, "CONNECT_SECONDS_MAX", 0.2)
    monkeypatch.setenv("VOLT_LOG_LEVEL", "debug")
    write_context(tmp_path, "http://127.0.0.1:1")
    code, out, err = volt(*arguments, "--data", str(tmp_path))
    assert (code, out) == (5, "")
    assert "error bus_unavailable: no bus at nats://127.0.0.1:1 within" in err
    assert "`volt up` starts one" in err
    assert "bus_error" in err, "the client's own complaints are there, too"


def test_views_that_nobody_serves_here_are_a_failure_of_their_class(volt: Volt, tmp_path: Path) -> None:
    write_context(tmp_path, "http://127.0.0.1:1")
    code, out, err = volt("views", "rebuild", "--data", str(tmp_path))
    assert (code, out) == (5, "")
    assert "redis://127.0.0.1:1" in err
    write_context(tmp_path, "http://127.0.0.1:1", redis_url="")
    assert volt("views", "rebuild", "--data", str(tmp_path))[0] == 3


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("deploy", "--help"), ("dlq", "--help")], ids=" ".join
)
def test_help_is_a_success(arguments: tuple[str, ...], volt: Volt) -> None:
    code, out, err = volt(*arguments)
    assert (code, err) == (0, "")
    assert out


def served(volt: Volt, folder: Path, steps: Step | tuple[Step, ...], *arguments: str) -> Ran:
    """Runs the command line against a gateway that has these answers."""
    with scripted(*(steps if isinstance(steps, tuple) else (steps,))) as server:
        write_context(folder, server.url)
        split = arguments.index("--") if "--" in arguments else len(arguments)
        return volt(*arguments[:split], "--data", str(folder), *arguments[split:])


def write_context(folder: Path, gateway_url: str, redis_url: str = "redis://127.0.0.1:1/0") -> None:
    addresses = {"nats_url": "nats://127.0.0.1:1", "redis_url": redis_url, "gateway_url": gateway_url}
    (folder / "context.json").write_text(json.dumps({**addresses, "account": "lab", "api_key": "the key"}))


def test_what_the_system_refuses_is_one_line_and_no_traceback(volt: Volt) -> None:
    code, out, err = volt("up", "--data", "/proc/none")
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("error ")


def test_a_demo_that_is_too_short_to_be_killed_in_is_wrong_usage(volt: Volt) -> None:
    code, _, err = volt("demo", "--steps", "5")
    assert code == 2
    assert "x>=20" in err
