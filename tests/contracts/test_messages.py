"""Every message survives the wire, and bytes that are no message say why."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.strategies import IDS, messages
from volt.contracts import bids, jobs, letters, nodes
from volt.contracts.errors import MalformedMessage
from volt.contracts.ids import ID_CHARS_MAX, AccountId, is_id, job_id, lease_id
from volt.contracts.jobs import OpenAccount
from volt.contracts.log import EVENT_TYPES, decode_event
from volt.contracts.messages import MESSAGE_BYTES_MAX, Command, Decoder, Event, Signal, encode


def leaves(base: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """The types under a base that nothing derives from: those that travel."""
    below = base.__subclasses__()
    return [leaf for one in below for leaf in leaves(one)] if below else [base]


COMMAND_TYPES = [one for one in leaves(Command) if one.__module__.startswith("volt.contracts")]
SIGNAL_TYPES = [one for one in leaves(Signal) if one.__module__.startswith("volt.contracts")]

COMMANDS: Decoder[Command] = Decoder(
    jobs.OpenAccount,
    jobs.RequestJob,
    jobs.ReleaseJob,
    bids.PlaceBid,
    bids.WithdrawBid,
    nodes.ReportPrepared,
    nodes.ReportStarted,
    nodes.ReportFailed,
    nodes.ReportEnded,
    nodes.ReportCleared,
)
OPEN = OpenAccount(account="lab", request_id="r", key_sha256="k")
# There are many types, and each has a test of its own.
few = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])


def code_of(data: bytes, decoder: Decoder[Command] = COMMANDS) -> str:
    with pytest.raises(MalformedMessage) as malformed:
        decoder.decode(data)
    return malformed.value.code


def test_every_event_command_and_signal_is_known_to_these_tests() -> None:
    events = [one for one in leaves(Event) if one.__module__.startswith("volt.contracts")]
    assert set(events) == set(EVENT_TYPES)
    assert len(EVENT_TYPES) == len(set(EVENT_TYPES))
    assert {letters.DeadLetter, nodes.Heartbeat, nodes.Desired} <= set(SIGNAL_TYPES)
    assert {type(OPEN), nodes.ReportCleared} <= set(COMMAND_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@few
def test_an_event_survives_the_wire(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(messages(kind))
    assert decode_event(encode(event)) == event
    assert encode(decode_event(encode(event))) == encode(event), "equal messages are equal bytes"


@pytest.mark.parametrize("kind", [*COMMAND_TYPES, *SIGNAL_TYPES], ids=lambda kind: kind.__name__)
@given(data=st.data())
@few
def test_a_command_or_signal_survives_the_wire(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    assert Decoder(kind).decode(encode(message)) == message


@pytest.mark.parametrize("kind", [*EVENT_TYPES, *COMMAND_TYPES, *SIGNAL_TYPES], ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=1, suppress_health_check=[HealthCheck.too_slow])
def test_a_message_is_tagged_with_its_name_and_version_and_frozen(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    message = data.draw(messages(kind))
    assert msgspec.json.decode(encode(message))["type"] == f"{kind.__name__}.v1"
    assert kind.__struct_config__.frozen
    assert kind.__struct_config__.tag_field == "type"


def test_commands_refuse_fields_that_they_do_not_know_and_events_pass_over_them() -> None:
    assert code_of(encode(OPEN).replace(b"{", b'{"extra":1,', 1)) == "invalid_field"
    opened = jobs.AccountOpened(account="lab", at_ms=1, request_id="r", key_sha256="k")
    assert decode_event(encode(opened).replace(b"{", b'{"extra":1,', 1)) == opened


@pytest.mark.parametrize("kind", COMMAND_TYPES, ids=lambda kind: kind.__name__)
def test_every_command_refuses_fields_that_it_does_not_know(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_json"),
        (b"\xff", "not_json"),
        (b"{", "not_json"),
        (encode(OPEN) + b"x", "not_json"),
        (encode(OPEN).replace(b"lab", b"\xff"), "not_json"),
        (b'{"a":' + b"[" * 100_000, "not_json"),
        (b'{"type":"Unheard.v1","a":' + b"[" * 100_000, "not_json"),
        (b"null", "unknown_type"),
        (b"[]", "unknown_type"),
        (b"{}", "unknown_type"),
        (b'{"type":7}', "unknown_type"),
        (b'{"type":"Unheard.v1"}', "unknown_type"),
        (b'{"type":"AccountOpened.v1"}', "unknown_type"),
        (encode(OPEN).replace(b"OpenAccount.v1", b"OpenAccount"), "unknown_version"),
        (encode(OPEN).replace(b".v1", b".v2"), "unknown_version"),
        (b'{"type":"OpenAccount.v1"}', "invalid_field"),
        (encode(OPEN).replace(b'"k"', b"7"), "invalid_field"),
        (encode(OPEN).replace(b'"lab"', b'"La b"'), "invalid_field"),
        (encode(OPEN).replace(b'"lab"', b'"lab\\n"'), "invalid_field"),
        (encode(OPEN).replace(b'"lab"', b'"a.b"'), "invalid_field"),
        (encode(OPEN).replace(b'"lab"', b'">"'), "invalid_field"),
        (encode(OPEN).replace(b'"lab"', b'""'), "invalid_field"),
        (encode(OPEN).replace(b"lab", b"a" * (ID_CHARS_MAX + 1)), "invalid_field"),
        (encode(OPEN).replace(b'"r"', b'""'), "invalid_field"),
        (encode(OPEN).replace(b'"r"', b'"%b"' % (b"r" * 129)), "invalid_field"),
        (encode(OPEN) + b" " * MESSAGE_BYTES_MAX, "too_large"),
    ],
)
def test_bytes_that_are_no_command_say_why(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_a_message_of_the_greatest_size_is_read() -> None:
    data = encode(OPEN)
    assert COMMANDS.decode(data + b" " * (MESSAGE_BYTES_MAX - len(data))) == OPEN
    small: Decoder[Command] = Decoder(OpenAccount, bytes_max=len(data) - 1)
    assert code_of(data, small) == "too_large"


@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        COMMANDS.decode(data)


@given(cut=st.integers(0, 200), flipped=st.integers(0, 200), to=st.integers(0, 255))
def test_a_spoilt_message_is_another_message_or_malformed(cut: int, flipped: int, to: int) -> None:
    data = bytearray(encode(OPEN))
    data[flipped % len(data)] = to
    try:
        assert isinstance(COMMANDS.decode(bytes(data[: cut or None])), OpenAccount)
    except MalformedMessage as malformed:
        code = malformed.code
        assert code in {"not_json", "unknown_type", "unknown_version", "invalid_field"}


@given(st.text(max_size=70) | IDS | IDS.map(lambda one: one + "\n"))
def test_an_id_is_the_same_in_a_message_and_in_a_program(text: str) -> None:
    try:
        msgspec.convert(text, AccountId)
        accepted = True
    except msgspec.ValidationError:
        accepted = False
    assert accepted == is_id(text)


@given(account=IDS, request_id=st.text(max_size=128), number=st.integers(1, 10**6))
def test_derived_ids_are_ids_and_the_same_at_every_retry(account: str, request_id: str, number: int) -> None:
    job = job_id(account, request_id)
    assert is_id(job)
    assert is_id(lease_id(job, number))
    assert job == job_id(account, request_id)
    assert job not in {job_id(account + "x", request_id), job_id(account, request_id + "x")}


def test_an_id_cannot_be_made_alike_by_moving_the_boundary() -> None:
    assert job_id("ab", "c") != job_id("a", "bc")
