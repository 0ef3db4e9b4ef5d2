"""What a newcomer is told: why nothing happens, what is refused before it starts, how to go on."""

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import structlog
from msgspec.structs import replace

from tests.unit.sdk.scripted import Step, answer, events, scripted
from volt.cli import account, dlq, jobs, main
from volt.contracts.errors import Reason
from volt.contracts.http import Balance, Health, Job, JobHappening, JobList, JobWaiting, Output, OutputLine
from volt.contracts.letters import DeadLetter
from volt.runtime.dead_letters import StoredLetter
from volt.sdk import retries

Ran = tuple[int, str, str]
Volt = Callable[..., Ran]

END = b"event: end\ndata: {}\n\n"
WELL = Health(status="ok", bus="ok", views="ok")
WAITING = JobWaiting(binding="free_gpus", message="largest node has 2 free, 8 needed", infeasible=False)
ADDRESSES = ("--nats-url", "nats://127.0.0.1:1", "--account", "lab", "--price", "1.85")


@pytest.fixture
def volt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Volt]:
    """Runs the command line against a gateway with these answers: its exit code, stdout and stderr."""

    def run(*arguments: str, answers: tuple[Step, ...] = ()) -> Ran:
        with scripted(*answers) as server:
            addresses = {"nats_url": "nats://127.0.0.1:1", "redis_url": "", "gateway_url": server.url}
            (tmp_path / "context.json").write_text(json.dumps({**addresses, "account": "lab", "api_key": "the key"}))
            monkeypatch.setattr(sys, "argv", ["volt", *arguments])
            code: object = 0
            try:
                main()
            except SystemExit as ended:
                code = ended.code
            seen_keys.extend(one.headers["authorization"] for one in server.seen)
        told = capsys.readouterr()
        assert isinstance(code, int)
        return code, told.out, told.err

    for variable in ("VOLT_NATS_URL", "VOLT_ACCOUNT", "VOLT_PROFILE", "VOLT_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("VOLT_DATA", str(tmp_path))
    monkeypatch.setattr(retries, "CALL_ATTEMPTS_MAX", 1)
    seen_keys.clear()
    yield run
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


seen_keys: list[str] = []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of the agents that were started."""
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda program, arguments, environment: environments.append(environment))
    return environments


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--gpus", "eight"), "invalid_gpus"),
        (("--gpus", "0xh100"), "invalid_gpus"),
        (("--gpus", "17xh100"), "invalid_gpus"),
        (("--gpus", "8xh10O"), "unknown_gpu_model"),
        (("--region", "EU"), "invalid_region"),
        (("--country", "de"), "invalid_country"),
        (("--nats-url", "nats://127.0.0.1:high"), "invalid_nats_url"),
    ],
)
def test_an_agent_that_intake_would_refuse_is_not_started(
    options: tuple[str, str], code: str, volt: Volt, started: list[dict[str, str]]
) -> None:
    exited, out, err = volt("agent", "run", *ADDRESSES, *options)
    assert (exited, out, started) == (3, "", [])
    assert err.startswith(f"error {code}: ")


@pytest.mark.parametrize("command", [("up",), ("agent", "run", *ADDRESSES)], ids=["up", "agent"])
def test_an_unknown_profile_is_refused_with_those_that_there_are(
    command: tuple[str, ...], volt: Volt, started: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLT_PROFILE", "nope")
    code, out, err = volt(*command)
    assert (code, out, started) == (3, "", [])
    assert err.startswith("error invalid_profile: ")
    assert "choices: embedded, served" in err


def test_an_agent_whose_bus_is_not_there_says_for_what_it_waits(volt: Volt, started: list[dict[str, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"nats://127.0.0.1:{server.getsockname()[1]}"
        assert volt("agent", "run", *ADDRESSES, "--nats-url", url)[2] == ""
    _, _, err = volt("agent", "run", *ADDRESSES, "--nats-url", url)
    assert f"waiting for the bus at {url}" in err
    assert [one["VOLT_NATS_URL"] for one in started] == [url, url]


def test_an_account_is_not_written_over_a_context_unless_it_is_forced(
    volt: Volt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(_: object) -> None:
        return

    monkeypatch.setattr(account, "_open", opened)
    code, out, err = volt("account", "open", "club", "--into", str(tmp_path))
    before = (tmp_path / "context.json").read_bytes()
    assert (code, out) == (3, "")
    assert err.startswith("error context_exists: ")
    assert b'"lab"' in before
    code, out, _ = volt("account", "open", "club", "--into", str(tmp_path), "--force")
    after = json.loads((tmp_path / "context.json").read_bytes())
    assert (code, after["account"], after["api_key"]) == (0, "club", out.strip())
    assert [path.name for path in tmp_path.iterdir()] == ["context.json"], "no half-written file is left"


def test_a_key_without_a_context_acts_for_its_account(volt: Volt, monkeypatch: pytest.MonkeyPatch) -> None:
    balance = Balance(account="club", wallet_usd="1", on_hold_usd="0", pending_usd="0", earned_usd="0")
    volt("balance", answers=(answer(balance),))
    monkeypatch.setenv("VOLT_API_KEY", "another")
    volt("balance", answers=(answer(balance),))
    assert seen_keys == ["Bearer the key", "Bearer another"]


def test_a_folder_named_with_the_command_is_the_account_that_acts(
    volt: Volt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    balance = Balance(account="lab", wallet_usd="1", on_hold_usd="0", pending_usd="0", earned_usd="0")
    monkeypatch.setenv("VOLT_API_KEY", "another")
    volt("balance", "--data", str(tmp_path), answers=(answer(balance),))
    assert seen_keys == ["Bearer the key"]


def test_an_agent_gets_no_key_of_an_account(
    volt: Volt, started: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLT_API_KEY", "another")
    volt("agent", "run", *ADDRESSES)
    assert [one.get("VOLT_API_KEY") for one in started] == [None]


def test_waiting_at_a_control_plane_that_is_away_says_so(volt: Volt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "STREAM_ATTEMPTS_MAX", retries.STREAM_ATTEMPTS_UNTOLD + 1)
    monkeypatch.setattr(retries, "PAUSE_SECONDS_MAX", 0.01)
    still_here = events(b": still here\n\n")
    code, out, err = volt("wait", "j1", answers=(still_here,) * (retries.STREAM_ATTEMPTS_UNTOLD + 1))
    assert (code, out) == (5, "")
    assert err.splitlines()[0].startswith("waiting for the control plane to come back: ")
    assert err.splitlines()[-1].startswith("error gateway_unreachable: ")


@pytest.mark.parametrize("group", [(), ("bid",), ("dlq",), ("market",), ("views",), ("account",)], ids=" ".join)
def test_a_list_of_commands_has_whole_sentences(group: tuple[str, ...], volt: Volt) -> None:
    assert "..." not in volt(*group, "--help")[1].partition("Commands:")[2]


@pytest.mark.parametrize(("letters", "said"), [(1, "1 dead letter\n"), (2, "2 dead letters\n")])
def test_dead_letters_are_counted(letters: int, said: str, volt: Volt, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = DeadLetter(
        service="s", stream="S", stream_seq=1, subject="a.b", payload=b"", error="e", cause="c", deliveries=1
    )
    kept = [StoredLetter(seq, dead) for seq in range(letters)]

    async def on_bus(*_: object) -> list[StoredLetter]:
        return kept

    monkeypatch.setattr(dlq, "_on_bus", on_bus)
    assert volt("dlq", "list")[2] == said


State = Literal["waiting", "unfunded", "rejected", "funded", "closed", "preparing"]


def a_job(state: State, *, id: str = "j1", granted: bool = False, **facts: object) -> Job:  # noqa: A002
    known = {"id": id, "request_id": "r", "state": state, "granted_at_ms": 5 if granted else None, **facts}
    return msgspec.convert(known, Job)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job("waiting", waiting=WAITING), "waiting; largest node has 2 free, 8 needed"),
        (a_job("unfunded", reason=Reason(code="c", message="the first hour needs $9")), "unfunded; the first hour"),
        (a_job("rejected", reason=Reason(code="c", message="no such model")), "rejected; no such model"),
        (a_job("funded"), "funded; the market is asked next"),
        (a_job("closed", release_accepted_at_ms=4), "closed; released"),
    ],
)
def test_logs_of_a_job_that_never_ran_say_why_there_are_none(job: Job, why: str, volt: Volt) -> None:
    code, out, err = volt("logs", "j1", answers=(answer(job),))
    assert (code, out) == (0, "")
    assert f"j1 has written nothing: it is {why}" in err


def test_logs_without_a_job_are_those_of_the_newest_that_ran(volt: Volt) -> None:
    listed = answer(JobList(jobs=(a_job("waiting", id="j3"), a_job("closed", id="j2"), a_job("closed", granted=True))))
    lines = Output(
        at_ms=1,
        node="n",
        node_rank=0,
        lines=tuple(OutputLine(generation=g, rank=0, stream="out", text=f"g{g}") for g in (1, 1, 2)),
    )
    stream = events(b"event: output\nid: 1\ndata: %s\n\n" % msgspec.json.encode(lines), END)
    code, out, err = volt("logs", "-f", answers=(listed, listed, stream))
    assert (code, out) == (0, "[1.0] g1\n[1.0] g1\n[2.0] g2\n")
    assert err == "j3, the newest, has not run: it is waiting; this is j1\ngeneration 2 begins\n"


def test_a_status_leaves_out_old_ends_but_nothing_that_goes_on(volt: Volt) -> None:
    ended = tuple(a_job("closed", id=f"e{number}") for number in range(12))
    newest, oldest = JobList(jobs=ended, next_before=7), JobList(jobs=(a_job("waiting", waiting=WAITING),))
    pages = (answer(newest), answer(oldest), answer(WELL))
    _, out, _ = volt("status", "--json", answers=pages)
    assert [one["id"] for one in json.loads(out)] == [*(f"e{number}" for number in range(10)), "j1"]
    _, out, _ = volt("status", "--all", "--json", answers=pages)
    assert len(json.loads(out)) == 13


def test_a_status_names_the_column_of_what_was_posted_and_has_notes_on_their_own_lines(volt: Volt) -> None:
    listed = answer(JobList(jobs=(a_job("waiting", waiting=WAITING),)))
    _, out, err = volt("status", answers=(listed, answer(WELL)))
    assert err == ""
    header, row, note = out.splitlines()
    assert "posted $" in header
    assert row.startswith("j1")
    assert note == f"j1  {WAITING.message}"


def test_a_status_says_that_losses_are_held_beside_what_a_program_reads(volt: Volt) -> None:
    held = replace(WELL, losses_held="40 of 100 nodes fell silent at once")
    code, out, err = volt("status", "--json", answers=(answer(JobList(jobs=())), answer(held)))
    assert (code, json.loads(out)) == (0, [])
    assert err == "losses are held: 40 of 100 nodes fell silent at once\n"


def test_a_release_says_what_the_job_cost_once_it_is_closed(volt: Volt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CLOSED_POLL_SECONDS", 0.0)
    released = Job(id="j1", request_id="r", state="released", release_accepted_at_ms=1)
    closed = msgspec.structs.replace(released, state="closed", posted_usd="0.125000")
    _, out, err = volt("release", "j1", answers=(answer(released), answer(released), answer(closed)))
    assert (out, err) == ("", "j1 is closed, released; it cost $0.125000\n")
    monkeypatch.setattr(jobs, "CLOSED_SECONDS_MAX", 0.0)
    assert "`volt status j1` shows" in volt("release", "j1", answers=(answer(released),))[2]


def test_progress_names_the_node(volt: Volt) -> None:
    told = JobHappening(seq=1, at_ms=1, event="MemberPrepared", message="prepared, at 10.0.0.1", node="n1")
    stream = events(b"event: happening\nid: 1\ndata: %s\n\n" % msgspec.json.encode(told), END)
    job = a_job("preparing", granted=True)
    gpu = ("--gpu", "h100", "--count", "1")
    _, _, err = volt("deploy", *gpu, "--", "true", answers=(answer(job, 201), stream, answer(job)))
    assert err == "  n1: prepared, at 10.0.0.1\n"
