"""What people send, read strictly: a command, or a typed refusal that says what was wrong."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volt.contracts.errors import MalformedMessage, Reason, Refused, VoltError
from volt.contracts.http import ConstraintsRequest, JobRequest, WorkloadRequest
from volt.contracts.jobs import RequestJob
from volt.contracts.messages import MESSAGE_BYTES_MAX, Decoder, encode
from volt_gateway.api import status_of
from volt_gateway.requests import job_command, read_flag, read_job_request, read_number, request_id

_decoder = Decoder(RequestJob)
_text = st.text(max_size=30)
_requests = st.builds(
    JobRequest,
    gpu=_text | st.lists(_text, max_size=3).map(tuple),
    count=st.integers(0, 10**9),
    nodes=st.none() | st.integers(0, 10**9),
    workload=st.builds(
        WorkloadRequest,
        command=st.lists(_text, max_size=3).map(tuple),
        env=st.dictionaries(_text, _text, max_size=3),
        image=_text,
    ),
    constraints=st.builds(ConstraintsRequest, regions=st.lists(_text, max_size=2).map(tuple)),
    max_price_usd_per_gpu_hour=st.none() | _text | st.decimals().map(str),
    max_duration=st.none() | _text,
)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_the_bytes_are_they_are_a_request_or_a_typed_refusal(body: bytes) -> None:
    assert _refused_by(lambda: read_job_request(body)) in (None, 400, 422)


@given(_requests)
def test_every_request_makes_a_command_that_can_be_read_again_or_is_refused(request: JobRequest) -> None:
    read = read_job_request(msgspec.json.encode(request))
    assert read == request
    refusal = _refused_by(lambda: job_command("alice", "r1", read))
    assert refusal in (None, 422)
    if refusal is None:
        command = job_command("alice", "r1", read)
        assert _decoder.decode(encode(command)) == command


@given(st.dictionaries(_text, _text, min_size=1, max_size=6))
def test_the_environment_in_any_order_is_the_same_command_to_the_byte(env: dict[str, str]) -> None:
    names = sorted(env)
    commands = {
        encode(job_command("alice", "r1", _with_env({name: env[name] for name in order})))
        for order in (names, names[::-1])
    }
    assert len(commands) == 1


@pytest.mark.parametrize("value", ["a b", 'say "hi"', "a=b=c", "two\nlines", "$HOME `x`", "schön ☃", ""])
def test_a_value_of_the_environment_arrives_as_it_was_sent(value: str) -> None:
    body = msgspec.json.encode(_with_env({"X": value}))
    assert job_command("alice", "r1", read_job_request(body)).workload.env == {"X": value}


def test_a_command_over_the_size_of_a_message_is_refused_before_it_is_sent() -> None:
    with pytest.raises(Refused) as refused:
        job_command("alice", "r1", _with_env({"X": "x" * MESSAGE_BYTES_MAX}))
    assert refused.value.code == "too_large"


@pytest.mark.parametrize("header", ["", "x" * 129])
def test_a_request_id_has_a_bounded_length(header: str) -> None:
    with pytest.raises(Refused):
        request_id(header)
    assert request_id("x" * 128) == "x" * 128


def test_parameters_are_read_strictly() -> None:
    assert read_flag("follow", None, default=True) is True
    assert read_flag("follow", "false", default=True) is False
    assert read_number("limit", None, 200) is None
    assert read_number("limit", "200", 200) == 200
    for text in ("0", "201", "-1", "+1", "1.0", " 1", "1_0", "٣", ""):
        with pytest.raises(Refused):
            read_number("limit", text, 200)
    for text in ("False", "1", "yes", ""):
        with pytest.raises(Refused):
            read_flag("follow", text, default=True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MalformedMessage("not_json", ""), 400),
        (Refused(Reason(code="request_id_reused", message="")), 409),
        (Refused(Reason(code="too_large", message="")), 413),
        (Refused(Reason(code="too_many_streams", message="")), 429),
        (Refused(Reason(code="unknown_gpu_model", message="")), 422),
        (VoltError(""), 500),
    ],
)
def test_every_class_of_error_has_its_status(error: VoltError, status: int) -> None:
    assert status_of(error) == status


def _refused_by(call: Callable[[], object]) -> int | None:
    """The status of the refusal, if it is one."""
    try:
        call()
    except VoltError as error:
        return status_of(error)
    return None


def _with_env(env: dict[str, str]) -> JobRequest:
    return JobRequest(gpu="h100", count=8, workload=WorkloadRequest(command=("x",), env=env))
