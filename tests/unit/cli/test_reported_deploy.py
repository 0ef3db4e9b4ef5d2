"""What a person who deploys sees: data on stdout, progress on stderr, readiness, failures, Ctrl-C and retries."""

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from tests.unit.sdk.scripted import DROP, Seen, Step, answer, events, failure, scripted
from volt.cli import main
from volt.contracts.http import EVENT_STREAM, Job, JobHappening, JobRequest
from volt.sdk import retries

Ran = tuple[int, str, str]
Volt = Callable[..., Ran]

ADMITTED = Job(id="j1", request_id="r1", state="admitted")
READY = Job(id="j1", request_id="r1", state="ready")
FAILED = Job(
    id="j1",
    request_id="r1",
    state="released",
    release_reason="workload_failed",
    exit_code=1,
    first_cause="rank 2 on node n2: process 0 exited with 1",
)
END = b"event: end\ndata: {}\n\n"
GPU = ("--gpu", "h100-80gb", "--count", "1")
INTERRUPTED_SECONDS_MAX = 5.0


@dataclass
class Gateway:
    """A gateway that stops answering: `stuck` is set once a request waits for ever."""

    url: str
    seen: list[Seen] = field(default_factory=list)
    stuck: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def silent_gateway(*, admits: bool) -> Iterator[Gateway]:
    """Admits a job and says nothing of what happens to it; or does not even answer that it is admitted."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            gateway.seen.append(Seen(self.command, self.path, headers, body))
            is_stream = self.command == "GET"
            if self.command == "DELETE" or (self.command == "POST" and admits):
                self._begin("application/json")
                self.wfile.write(msgspec.json.encode(ADMITTED))
                return
            if is_stream:
                self._begin(EVENT_STREAM)
                self.wfile.write(b": here\n\n")
            gateway.stuck.set()
            gateway.closing.wait()

        do_GET = do_POST = do_DELETE = answer  # noqa: N815  # the names are the library's

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # so is this
            return

        def _begin(self, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gateway = Gateway(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        gateway.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def volt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Volt:
    """Runs the command line of somebody who has no control plane of their own: its exit code, stdout and stderr."""

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

    monkeypatch.delenv("VOLT_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(retries, "PAUSE_SECONDS_MIN", 0.001)
    monkeypatch.setattr(retries, "CALL_ATTEMPTS_MAX", 2)
    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "of a control plane"
    folder.mkdir()
    return folder


def deploy(volt: Volt, data: Path, url: str, *options: str) -> Ran:
    return volt("deploy", "--data", context(data, url), *GPU, *options, "--", "true")


def context(data: Path, url: str) -> str:
    addresses = {"nats_url": "nats://127.0.0.1:1", "redis_url": "", "gateway_url": url}
    (data / "context.json").write_text(json.dumps({**addresses, "account": "lab", "api_key": "the key"}))
    return str(data)


def happening(seq: int, event: str, message: str) -> bytes:
    told = JobHappening(seq=seq, at_ms=seq, event=event, message=message)
    return b"event: happening\nid: %d\ndata: %s\n\n" % (seq, msgspec.json.encode(told))


def interrupted(gateway: Gateway, run: Callable[[], Ran]) -> Ran:
    """Presses Ctrl-C as soon as the gateway is stuck; the command has to end at once."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    pressed_at: list[float] = []

    def press() -> None:
        assert gateway.stuck.wait(INTERRUPTED_SECONDS_MAX)
        pressed_at.append(time.monotonic())
        signal.pthread_kill(main_thread, signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    ran = run()
    finger.join()
    assert time.monotonic() - pressed_at[0] < INTERRUPTED_SECONDS_MAX
    return ran


@pytest.mark.parametrize(("options", "out"), [((), b"j1\n"), (("--json",), msgspec.json.encode(READY) + b"\n")])
def test_stdout_has_the_data_alone_while_progress_is_told_on_stderr(
    options: tuple[str, ...], out: bytes, volt: Volt, data: Path
) -> None:
    """Reported as vast-cli#28 and runpodctl#319."""
    progress = [happening(1, "JobFunded", "funded [so]"), happening(2, "ClusterReady", "ready; it is billed from here")]
    with scripted(answer(ADMITTED, 201), events(*progress, END), answer(READY)) as server:
        code, stdout, stderr = deploy(volt, data, server.url, *options)
    assert (code, stdout.encode()) == (0, out)
    assert stderr == "  funded [so]\n  ready; it is billed from here\n"


def test_a_deploy_returns_when_the_cluster_is_ready_and_not_when_processes_have_started(volt: Volt, data: Path) -> None:
    """Reported as runpodctl#317."""
    begun = events(happening(1, "ClusterStarting", "starting"), happening(2, "MemberStarted", "started"), short=True)
    ready = events(happening(3, "ClusterReady", "ready"), END)
    with scripted(answer(ADMITTED, 201), begun, ready, answer(READY)) as server:
        assert deploy(volt, data, server.url)[0] == 0
    assert [seen.path for seen in server.seen] == ["/v1/jobs", *["/v1/jobs/j1/events"] * 2, "/v1/jobs/j1"]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["plain", "json"])
def test_a_job_that_fails_before_it_is_ready_exits_1_and_names_the_culprit(
    options: tuple[str, ...], volt: Volt, data: Path
) -> None:
    """Reported as skypilot#8928 and skypilot#4599."""
    with scripted(answer(ADMITTED, 201), events(END), answer(FAILED)) as server:
        code, out, err = deploy(volt, data, server.url, *options)
    assert code == 1
    assert out == ("j1\n" if not options else msgspec.json.encode(FAILED).decode() + "\n")
    assert err == f"the job ended: workload_failed, exit code 1, {FAILED.first_cause}\n"


def test_a_failed_job_is_not_shown_as_a_success(volt: Volt, data: Path) -> None:
    with scripted(answer(FAILED)) as server:
        _, out, _ = volt("status", "--data", context(data, server.url), "j1")
    assert f"workload_failed, exit code 1, {FAILED.first_cause}" in out


@pytest.mark.parametrize("trouble", [DROP, failure(503, "bus_unavailable")], ids=["dropped", "503"])
def test_a_request_id_is_the_key_of_every_attempt(trouble: Step, volt: Volt, data: Path) -> None:
    with scripted(trouble, answer(ADMITTED, 201)) as server:
        assert deploy(volt, data, server.url, "--detach", "--request-id", "mine")[:2] == (0, "j1\n")
    assert [seen.headers["idempotency-key"] for seen in server.seen] == ["mine", "mine"]


@pytest.mark.parametrize("trouble", [DROP, failure(503, "bus_unavailable")], ids=["dropped", "503"])
def test_a_deploy_that_nobody_answers_says_how_to_ask_again_without_a_second_job(
    trouble: Step, volt: Volt, data: Path
) -> None:
    with scripted(trouble, trouble) as server:
        code, out, err = deploy(volt, data, server.url, "--detach")
    assert (code, out) == (5, "")
    (key,) = {seen.headers["idempotency-key"] for seen in server.seen}
    assert f"--request-id {key}" in err


def test_ctrl_c_detaches_at_once_and_says_what_goes_on_and_costs(volt: Volt, data: Path) -> None:
    """Reported as dstack#2527."""
    with silent_gateway(admits=True) as gateway:
        code, out, err = interrupted(gateway, lambda: deploy(volt, data, gateway.url))
    assert (code, out) == (130, "j1\n")
    assert "j1 goes on" in err
    assert "costs" in err
    assert "volt release j1" in err


def test_the_command_that_ctrl_c_prints_stops_the_job_as_it_stands(volt: Volt, data: Path) -> None:
    """Reported as dstack#2527: a command that has to be completed first does not stop what costs."""
    with silent_gateway(admits=True) as gateway:
        _, _, err = interrupted(gateway, lambda: deploy(volt, data, gateway.url))
        _, verb, rest = err.partition("volt release ")
        code, _, _ = volt(*shlex.split(verb + rest.splitlines()[0])[1:])
    assert code == 0
    assert [(seen.method, seen.path) for seen in gateway.seen][-1] == ("DELETE", "/v1/jobs/j1")


def test_ctrl_c_before_the_answer_says_that_the_job_may_exist_and_how_to_find_it(volt: Volt, data: Path) -> None:
    """Reported as dstack#2527: whoever goes away has to know whether something goes on to cost."""
    with silent_gateway(admits=False) as gateway:
        code, out, err = interrupted(gateway, lambda: deploy(volt, data, gateway.url))
    assert (code, out) == (130, "")
    assert f"--request-id {gateway.seen[0].headers['idempotency-key']}" in err


@pytest.mark.parametrize(
    "value", ["", " a  b ", "'\"`\\", "=x=", "one\ntwo\r\n", "$HOME ${x} $(id)", "żółw 🐢", "%s", "--"]
)
def test_a_variable_is_sent_character_by_character(value: str, volt: Volt, data: Path) -> None:
    """Reported as skypilot#9314 and dstack#4161."""
    with scripted(answer(ADMITTED, 201)) as server:
        assert deploy(volt, data, server.url, "--detach", "--env", f"X={value}")[0] == 0
    assert msgspec.json.decode(server.seen[0].body, type=JobRequest).workload.env == {"X": value}


@pytest.mark.parametrize("where", ["env", "command"])
def test_bytes_that_are_no_text_are_refused_and_not_changed(where: str, volt: Volt, data: Path) -> None:
    text = os.fsdecode(b"\xff\xfe")
    options = ("--env", f"X={text}") if where == "env" else ()
    command = ("true", text) if where == "command" else ("true",)
    with scripted() as server:
        code, out, err = volt("deploy", "--data", context(data, server.url), *GPU, *options, "--", *command)
    assert (code, out, server.seen) == (3, "", [])
    assert err.startswith("error ")


def test_limits_are_sent_as_they_were_written(volt: Volt, data: Path) -> None:
    """Reported as dstack#1886 and akash helm-charts#37: no unit is changed or guessed on the way."""
    with scripted(answer(ADMITTED, 201), answer(ADMITTED, 201)) as server:
        limits = ("--max-price", "1.00", "--max-duration", "24h")
        assert deploy(volt, data, server.url, "--detach", *limits)[0] == 0
        assert deploy(volt, data, server.url, "--detach")[0] == 0
    asked = [msgspec.json.decode(seen.body, type=JobRequest) for seen in server.seen]
    assert [(one.max_price_usd_per_gpu_hour, one.max_duration) for one in asked] == [("1.00", "24h"), (None, None)]
