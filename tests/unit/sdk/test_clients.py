"""Both clients against a real server: what they ask, what they try again, and what they raise."""

import inspect
import itertools

import msgspec
import pytest

import volt
from tests.unit.sdk.scripted import DROP, Kind, Step, answer, call, events, failure, read, scripted
from volt.contracts import http
from volt.contracts.errors import MalformedMessage, NotFound, Refused, Unauthorized, Unavailable, VoltError
from volt.sdk import AsyncClient, Client, GatewayUnreachable, retries
from volt.sdk.awaited import AsyncJobs
from volt.sdk.blocking import Jobs

JOB = http.Job(id="j1", request_id="r1", state="admitted")
REQUEST: dict[str, object] = {"gpu": "h100", "count": 8, "command": ["python", "train.py"]}
END = b"event: end\ndata: {}\n\n"

both = pytest.mark.parametrize("kind", ["blocking", "awaited"])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSE_SECONDS_MIN", 0.001)


@both
async def test_a_create_says_what_is_wanted_and_who_asks(kind: Kind) -> None:
    with scripted(answer(JOB, 201)) as server:
        job = await call(
            kind,
            server.url,
            "jobs.create",
            **REQUEST,
            env={"A": "1"},
            max_price_usd_per_gpu_hour="2.50",
            max_duration="1h",
            idempotency_key="k1",
        )
    assert job == JOB
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", "/v1/jobs")
    assert seen.headers["authorization"] == "Bearer the key"
    assert seen.headers["idempotency-key"] == "k1"
    request = msgspec.json.decode(seen.body, type=http.JobRequest)
    assert (request.gpu, request.count, request.workload.env) == ("h100", 8, {"A": "1"})
    assert (request.max_price_usd_per_gpu_hour, request.max_duration) == ("2.50", "1h")


@both
@pytest.mark.parametrize("trouble", [DROP, failure(503, "views_rebuilding"), Step(502, b"<html>")])
async def test_a_create_is_tried_again_with_the_same_key_and_the_same_bytes(kind: Kind, trouble: Step) -> None:
    with scripted(trouble, trouble, answer(JOB, 201)) as server:
        assert await call(kind, server.url, "jobs.create", **REQUEST) == JOB
    assert len(server.seen) == 3
    assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 1
    assert len({seen.body for seen in server.seen}) == 1


@both
async def test_two_creates_have_two_keys(kind: Kind) -> None:
    with scripted(answer(JOB, 201), answer(JOB, 201)) as server:
        for _ in range(2):
            await call(kind, server.url, "jobs.create", **REQUEST)
    assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 2


@both
async def test_what_goes_on_failing_is_given_up_after_a_bounded_number_of_attempts(kind: Kind) -> None:
    with scripted(*itertools.repeat(failure(503, "bus_unavailable", "no bus"), 20)) as server:
        with pytest.raises(Unavailable, match="no bus") as raised:
            await call(kind, server.url, "balance")
    assert raised.value.code == "bus_unavailable"
    assert len(server.seen) == retries.CALL_ATTEMPTS_MAX


@both
async def test_a_gateway_that_is_not_there_is_unreachable(kind: Kind) -> None:
    with scripted() as server:
        url = server.url
    with pytest.raises(GatewayUnreachable):
        await call(kind, url, "jobs.get", "j1")


@both
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, MalformedMessage),
        (401, Unauthorized),
        (404, NotFound),
        (409, Refused),
        (413, Refused),
        (422, Refused),
        (429, Refused),
        (500, VoltError),
        (418, VoltError),
    ],
)
async def test_what_cannot_work_later_is_raised_by_its_class_and_not_tried_again(
    kind: Kind, status: int, error: type[VoltError]
) -> None:
    with scripted(failure(status, "some_code", "said so")) as server:
        with pytest.raises(error, match="said so") as raised:
            await call(kind, server.url, "jobs.get", "j1")
    assert type(raised.value) is error
    assert raised.value.code == "some_code"
    assert len(server.seen) == 1


@both
async def test_a_refusal_carries_its_whole_reason(kind: Kind) -> None:
    body = http.ErrorBody(code="unknown_gpu_model", message="m", field="gpu", seen="h1000", choices=("h100",))
    with scripted(answer(body, 422)) as server:
        with pytest.raises(Refused) as raised:
            await call(kind, server.url, "jobs.create", **REQUEST)
    reason = raised.value.reason
    assert (reason.field, reason.seen, reason.choices) == ("gpu", "h1000", ("h100",))


@both
async def test_an_error_that_is_not_the_gateways_own_is_quoted(kind: Kind) -> None:
    with scripted(Step(403, b"<html>proxy says no</html>", "text/html")) as server:
        with pytest.raises(VoltError, match="proxy says no") as raised:
            await call(kind, server.url, "offers")
    assert raised.value.code == "http_403"


@both
async def test_an_answer_that_cannot_be_read_is_malformed(kind: Kind) -> None:
    with scripted(Step(200, b"<html>")) as server:
        with pytest.raises(MalformedMessage):
            await call(kind, server.url, "jobs.get", "j1")


@both
async def test_fields_of_tomorrow_are_passed_over(kind: Kind) -> None:
    body = msgspec.json.decode(msgspec.json.encode(JOB)) | {"mood": "good"}
    with scripted(Step(200, msgspec.json.encode(body))) as server:
        assert await call(kind, server.url, "jobs.get", "j1") == JOB


@both
async def test_the_health_of_an_unhealthy_gateway_is_an_answer(kind: Kind) -> None:
    unwell = http.Health(status="unavailable", bus="ok", views="views_rebuilding")
    with scripted(answer(unwell, 503)) as server:
        assert await call(kind, server.url, "health") == unwell


@both
async def test_every_call_goes_to_its_path(kind: Kind) -> None:
    calls: list[tuple[str, tuple[object, ...], dict[str, object], msgspec.Struct, str]] = [
        ("jobs.get", ("j1",), {}, JOB, "GET /v1/jobs/j1"),
        ("jobs.list", (), {"limit": 2, "before": 9}, http.JobList(jobs=()), "GET /v1/jobs?limit=2&before=9"),
        ("jobs.release", ("j1",), {}, JOB, "DELETE /v1/jobs/j1"),
        ("offers", (), {"gpu": "a100 80gb"}, http.OfferList(offers=()), "GET /v1/offers?gpu=a100+80gb"),
        ("statement", (), {}, http.Statement(lines=()), "GET /v1/statement"),
    ]
    for name, args, kwargs, value, asked in calls:
        with scripted(answer(value)) as server:
            assert await call(kind, server.url, name, *args, **kwargs) == value
        assert f"{server.seen[0].method} {server.seen[0].path}" == asked


@both
@pytest.mark.parametrize("job", ["../keys", "a/b", "?x", "#", "%2e"])
async def test_an_id_stays_one_part_of_its_path(kind: Kind, job: str) -> None:
    with scripted(failure(404, "not_found")) as server:
        with pytest.raises(NotFound):
            await call(kind, server.url, "jobs.get", job)
    assert server.seen[0].path.count("/") == 3


@both
async def test_a_stream_goes_on_behind_its_last_event_after_a_break(kind: Kind) -> None:
    steps = [
        events(_output(1, "one"), _output(2, "two"), b"id: 3\nevent: out", short=True),
        DROP,
        failure(503, "views_rebuilding"),
        events(b": still here\n\n", _output(3, "three"), END),
    ]
    with scripted(*steps) as server:
        outputs = await read(kind, server.url, "jobs.logs", "j1")
    assert [_text(one) for one in outputs] == ["one", "two", "three"]
    assert [seen.headers.get("last-event-id") for seen in server.seen] == [None, "2", "2", "2"]


@both
async def test_a_stream_that_gets_on_is_taken_up_again_as_often_as_it_breaks(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "STREAM_ATTEMPTS_MAX", 2)
    breaks = [events(_output(number, str(number))) for number in range(1, 9)]
    with scripted(*breaks, events(END)) as server:
        assert len(await read(kind, server.url, "jobs.logs", "j1")) == len(breaks)


@both
async def test_a_stream_that_does_not_get_on_is_given_up(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "STREAM_ATTEMPTS_MAX", 4)
    with scripted(*itertools.repeat(events(b": still here\n\n"), 20)) as server:
        with pytest.raises(GatewayUnreachable):
            await read(kind, server.url, "jobs.events", "j1")
    assert len(server.seen) == 4


@both
async def test_a_stream_that_never_began_is_given_up_as_soon_as_a_call(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CALL_ATTEMPTS_MAX", 3)
    with scripted(*itertools.repeat(failure(503, "views_rebuilding"), 20)) as server:
        with pytest.raises(Unavailable):
            await read(kind, server.url, "jobs.events", "j1")
    assert len(server.seen) == 3


@both
async def test_who_follows_a_stream_is_told_once_of_each_break_that_lasts(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSE_SECONDS_MAX", 0.01)
    told: list[Unavailable] = []
    short = [DROP] * (retries.STREAM_ATTEMPTS_UNTOLD - 2)
    long = [DROP] * (retries.STREAM_ATTEMPTS_UNTOLD + 2)
    steps = [events(_output(number, "x")) for number in (1, 2, 3)]
    with scripted(steps[0], *short, steps[1], *long, steps[2], *long, events(END)) as server:
        assert len(await read(kind, server.url, "jobs.logs", "j1", on_break=told.append)) == 3
    assert len(told) == 2


@both
async def test_a_stream_of_a_job_that_is_not_there_is_not_tried_again(kind: Kind) -> None:
    with scripted(failure(404, "not_found")) as server:
        with pytest.raises(NotFound):
            await read(kind, server.url, "jobs.events", "j1", follow=False)
    assert server.seen[0].path == "/v1/jobs/j1/events?follow=false"
    assert len(server.seen) == 1


@both
async def test_a_wait_goes_on_through_a_break_until_the_job_is_closed(kind: Kind) -> None:
    closed = http.Job(id="j1", request_id="r1", state="closed", release_reason="completed")
    with scripted(events(b": still here\n\n"), events(END), answer(closed)) as server:
        assert await call(kind, server.url, "jobs.wait", "j1") == closed
    assert [seen.path for seen in server.seen] == ["/v1/jobs/j1/events", "/v1/jobs/j1/events", "/v1/jobs/j1"]


@both
async def test_a_wait_for_a_job_that_is_not_there_is_not_found(kind: Kind) -> None:
    with scripted(failure(404, "not_found")) as server:
        with pytest.raises(NotFound):
            await call(kind, server.url, "jobs.wait", "j1")
    assert len(server.seen) == 1


@both
async def test_a_failure_told_inside_a_stream_is_taken_up_again(kind: Kind) -> None:
    told = b'event: error\ndata: {"code":"views_rebuilding","message":"in a moment"}\n\n'
    with scripted(events(_output(1, "one"), told), events(END)) as server:
        assert len(await read(kind, server.url, "jobs.logs", "j1")) == 1
    assert server.seen[1].headers["last-event-id"] == "1"


def test_both_clients_have_the_same_calls_with_the_same_words() -> None:
    for blocking, awaited in ((Client, AsyncClient), (Jobs, AsyncJobs)):
        names = {name for name in vars(blocking) if not name.startswith("_")}
        assert names == {name for name in vars(awaited) if not name.startswith("_")}
        for name in names:
            assert inspect.getdoc(getattr(blocking, name)) == inspect.getdoc(getattr(awaited, name))


def test_the_package_offers_its_clients_and_errors() -> None:
    assert volt.Client is Client
    assert volt.AsyncClient is AsyncClient
    assert volt.errors.NotFound is NotFound
    assert not hasattr(volt, "Nothing")


def _output(seq: int, text: str) -> bytes:
    line = http.OutputLine(generation=1, rank=0, stream="stdout", text=text)
    data = msgspec.json.encode(http.Output(at_ms=1, node="n1", node_rank=0, lines=(line,)))
    return b"id: %d\nevent: output\ndata: %s\n\n" % (seq, data)


def _text(output: object) -> str:
    assert isinstance(output, http.Output)
    return output.lines[0].text
