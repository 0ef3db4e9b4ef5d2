"""A service may be asked at any place of the log: what it calls for stands until it is there, and asking costs nothing.

The log and the beats are those of a whole run, so every place at which a service could have started is one of these.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.simulation.world import TIMING, Outcome, play
from tests.support.effects import sound
from volt.contracts.log import Entry
from volt.contracts.messages import Decoder, Event, encode
from volt.contracts.nodes import Heartbeat
from volt.runtime.engine import Definition
from volt.runtime.ports import Record
from volt.runtime.subjects import matches
from volt_bid_intake.effects import DEFINITION as BID_INTAKE
from volt_billing.effects import DEFINITION as BILLING
from volt_health_monitor.brake import Brake
from volt_health_monitor.domain import Beats, observe_beat, observe_probe
from volt_health_monitor.domain import State as MonitorState
from volt_health_monitor.effects import definition as health_monitor
from volt_matcher.effects import DEFINITION as MATCHER
from volt_matcher.state import State as MatcherState
from volt_provisioner.domain import State as ProvisionerState
from volt_provisioner.effects import definition as provisioner

S = TypeVar("S")
LONG_MS = 3_600_000
"""Enough for every deadline to pass."""


@pytest.fixture(scope="module")
def run() -> Outcome:
    return asyncio.run(play())


def test_bid_intake_can_be_asked_at_any_place(run: Outcome) -> None:
    assert list(_asked_everywhere(BID_INTAKE, run, lambda state: state)) == [], "it answers commands alone"


def test_the_matcher_can_be_asked_at_any_place(run: Outcome) -> None:
    def lasting(state: MatcherState) -> MatcherState:
        return replace(state, settled=0)

    _every_event_was_called_for(MATCHER, run, lasting)


def test_the_provisioner_can_be_asked_at_any_place(run: Outcome) -> None:
    def lasting(state: ProvisionerState) -> ProvisionerState:
        return replace(state, watch=None)

    assert {"ClusterForming", "MembersWanted", "ClusterStarting", "ClusterReady", "ClusterReleased"} <= {
        type(event).__name__ for event in _asked_everywhere(provisioner(TIMING), run, lasting)
    }


def test_billing_can_be_asked_at_any_place(run: Outcome) -> None:
    _every_event_was_called_for(BILLING, run, lambda state: state)


def test_the_health_monitor_can_be_asked_at_any_place_with_the_beats_before_it(run: Outcome) -> None:
    def lasting(state: MonitorState) -> MonitorState:
        brake = Brake(phase=state.brake.phase)
        return replace(state, beats=Beats(), brake=brake, cover=replace(state.cover, broken=[]))

    def see(state: MonitorState, at_ms: int) -> None:
        _see(state, [record for record in run.heartbeats if record.at_ms <= at_ms], at_ms)

    called_for = _asked_everywhere(health_monitor(TIMING), run, lasting, see)
    assert {"NodeAlive", "BeatsCovered"} <= {type(event).__name__ for event in called_for}


def _every_event_was_called_for(definition: Definition[S], run: Outcome, lasting: Callable[[S], S]) -> None:
    """Each of its own events in the log was called for, to the byte, at some place."""
    called_for = set(map(encode, _asked_everywhere(definition, run, lasting)))
    own = _own(definition, run)
    assert own
    assert [event for event in own if encode(event) not in called_for] == []


def _asked_everywhere(
    definition: Definition[S],
    run: Outcome,
    lasting: Callable[[S], S],
    see: Callable[[S, int], None] = lambda _state, _at_ms: None,
) -> Iterator[Event]:
    """Folds every prefix from scratch and asks it twice, then folds on. `lasting` is what follows from the log."""
    entries = [entry for entry in run.entries if any(matches(entry.event.subject(), one) for one in definition.reads)]
    own_ms = {at_ms for event in _own(definition, run) if isinstance(at_ms := getattr(event, "at_ms", None), int)}
    unasked = _folded(definition, definition.initial(), entries)
    told_in_the_end, final = _told(definition, unasked), lasting(unasked)
    for length in range(len(entries) + 1):
        before = entries[:length]
        state = _folded(definition, definition.initial(), before)
        at_ms = before[-1].at_ms if before else entries[0].at_ms
        see(state, at_ms)
        for asked_ms in sorted({at_ms, at_ms + LONG_MS, *own_ms}):
            first, second = (sound(definition.effects(state, asked_ms)) for _ in range(2))
            assert list(map(encode, first)) == list(map(encode, second)), f"after {length} entries"
            yield from first
        told = _told(definition, state)
        _folded(definition, state, entries[length:])
        told |= _told(definition, state)
        assert (lasting(state), told) == (final, told_in_the_end), f"asked after {length} entries"


def _folded(definition: Definition[S], state: S, entries: Sequence[Entry]) -> S:
    for entry in entries:
        definition.evolve(state, entry)
    return state


def _told(definition: Definition[S], state: S) -> dict[str, bytes]:
    """What is to be published by now. It is asked for once: the engine keeps it until it is stored."""
    return {publication.subject: publication.data for publication in definition.publications(state)}


def _see(state: MonitorState, beats: Sequence[Record], at_ms: int) -> None:
    """Beats as a fresh monitor reads them, all at once, and then its own probe."""
    decoder = Decoder(Heartbeat)
    for record in beats:
        observe_beat(state, decoder.decode(record.data), record.at_ms, 0)
    observe_probe(state, 0, at_ms, 0)


def _own(definition: Definition[S], run: Outcome) -> list[Event]:
    """What the service wrote itself."""
    return [entry.event for entry in run.entries if entry.event.subject() in run.writes[definition.name]]
