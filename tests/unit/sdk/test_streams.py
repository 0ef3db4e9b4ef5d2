"""Server-sent events, put together from bytes that are cut anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volt.contracts.errors import MalformedMessage
from volt.sdk import streams
from volt.sdk.streams import EventParser, ServerEvent

STREAM = (
    b": hello\n\n"
    b'id: 7\nevent: output\ndata: {"text":"sn\xc3\xb6w"}\n\n'
    b"event: two-lines\ndata: one\ndata:two\n\n"
    b"retry: 3\nunknown\n\n"
    b"data: crlf\r\n\r\n"
    b"event: end\ndata: {}\n\n"
)
EVENTS = [
    ServerEvent("output", "7", '{"text":"snöw"}'.encode()),
    ServerEvent("two-lines", "", b"one\ntwo"),
    ServerEvent("message", "", b"crlf"),
    ServerEvent("end", "", b"{}"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_bytes_cut_anywhere_give_the_same_events(cuts: list[int]) -> None:
    parser, found, edges = EventParser(), [], [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        found += list(parser.feed(STREAM[start:end]))
    assert found == EVENTS


@given(st.binary(max_size=300))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    assert all(event.data is not None for event in EventParser().feed(data))


@pytest.mark.parametrize("piece", [b"x", b"data: x\n"])
def test_an_event_without_end_is_refused_at_its_bound(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EVENT_BYTES_MAX", 100)
    parser = EventParser()
    with pytest.raises(MalformedMessage):
        list(itertools.chain.from_iterable(parser.feed(piece) for _ in range(200)))
