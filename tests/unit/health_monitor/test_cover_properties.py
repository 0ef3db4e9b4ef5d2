"""Cover agrees with a naive reckoning of it, however the recording is cut, repeated, interrupted or begun again."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.health_monitor.builders import EPOCH_MS, SMALL, Monitor, beat, granted
from volt.contracts.nodes import BeatsCovered, Heartbeat
from volt_health_monitor import cover

GAP_MS = SMALL.cover_gap_ms
NODES = ("n1", "n2")
LEASES = {"n1": ("a1", "a2"), "n2": ("b1",)}

Millisecond = tuple[str, int, int]
"""A lease, its generation, and one millisecond since `EPOCH_MS`."""


@dataclass(frozen=True)
class Step:
    """What happens next, `after_ms` later."""

    what: str
    node: str
    running: tuple[bool, bool]
    generation: int
    after_ms: int


def steps(*kinds: str) -> st.SearchStrategy[list[Step]]:
    """Stories in which most beats follow the one before closely and report the same as it, so that most cover."""
    one = st.builds(
        Step,
        what=st.sampled_from(("beat",) * 8 + kinds),
        node=st.sampled_from(("n1", "n1", "n2")),
        running=st.tuples(st.sampled_from((True, True, True, False)), st.booleans()),
        generation=st.sampled_from((1,) * 7 + (2,)),
        after_ms=st.sampled_from((0, 1, 2, 3, 4, 5, 5, 5, 6, 7, GAP_MS - 1, GAP_MS, GAP_MS + 1)),
    )
    return st.lists(one, min_size=15, max_size=40)


STORED = ("new incarnation", "repeat", "overtaken")
PLAIN = steps(*STORED, "older incarnation", "act", "act", "probe", "reconnect")
BROKEN_OFF = steps(*STORED, "act", "act", "act once", "probe", "reconnect", "restart", "restart")


class Story:
    """Plays steps to a monitor, and keeps what the stream stored."""

    def __init__(self) -> None:
        self.monitor = Monitor(SMALL)
        self.monitor.append(
            granted("j1", *((lease, node) for node, leases in LEASES.items() for lease in leases)),
        )
        self._sent: dict[str, list[Heartbeat]] = {node: [] for node in NODES}
        self._newest_ms: dict[str, int] = {}

    def play(self, story: list[Step]) -> None:
        for step in story:
            self.monitor.now_ms += step.after_ms
            self._play(step)

    def finish(self) -> None:
        """Time passes until everything said so far is below the watermark."""
        self.monitor.now_ms += 3 * GAP_MS
        self.monitor.probe()
        self.monitor.act()

    def _play(self, step: Step) -> None:
        sent = self._sent[step.node]
        match step.what:
            case "beat" | "new incarnation":
                self._send(step)
            case "repeat" if sent and self._is_recent(step.node):
                self.monitor.hear(sent[-1])
            case "overtaken" if len(sent) > 1 and self._is_recent(step.node):
                if sent[-2].incarnation == sent[-1].incarnation:
                    self.monitor.hear(sent[-2])
            case "older incarnation" if sent and sent[0].incarnation != sent[-1].incarnation:
                self.monitor.hear(beat(1_000, node=step.node, incarnation=sent[0].incarnation, running=[("a1", 1)]))
            case "act":
                self.monitor.act()
            case "act once":
                self.monitor.act_once()
            case "probe":
                self.monitor.probe()
            case "reconnect":
                self.monitor.reconnect()
            case "restart":
                self.monitor.restart()

    def _send(self, step: Step) -> None:
        sent = self._sent[step.node]
        start = int(sent[-1].incarnation[1:]) if sent else 1
        start += step.what == "new incarnation"
        leases = [
            (lease, step.generation) for lease, runs in zip(LEASES[step.node], step.running, strict=False) if runs
        ]
        sent.append(beat(len(sent) + 1, node=step.node, incarnation=f"i{start}", running=leases))
        self._newest_ms[step.node] = self.monitor.now_ms
        self.monitor.hear(sent[-1])

    def _is_recent(self, node: str) -> bool:
        """A beat is repeated or overtaken within the gap: the agent sends one at a time and waits no longer."""
        return self.monitor.now_ms - self._newest_ms[node] <= GAP_MS


def reckoned(stream: list[tuple[int, Heartbeat | None]]) -> set[Millisecond]:
    """Every millisecond that the beats cover, straight from the definition."""
    found: set[Millisecond] = set()
    for node in NODES:
        fresh = fresh_beats([(at_ms, one) for at_ms, one in stream if one is not None and one.node == node])
        for (from_ms, one), (to_ms, following) in pairwise(fresh):
            if one.incarnation == following.incarnation and to_ms - from_ms <= GAP_MS:
                both = {(lease.lease, lease.generation) for lease in one.leases}
                both &= {(lease.lease, lease.generation) for lease in following.leases}
                found |= {(*tenure, at_ms - EPOCH_MS) for tenure in both for at_ms in range(from_ms, to_ms)}
    return found


def fresh_beats(stored: list[tuple[int, Heartbeat]]) -> list[tuple[int, Heartbeat]]:
    """Those with a higher incarnation, by start, or a higher sequence than everything before them."""
    order = list(dict.fromkeys(one.incarnation for _, one in stored))
    ranks = [(order.index(one.incarnation), one.sequence) for _, one in stored]
    return [pair for place, pair in enumerate(stored) if all(rank < ranks[place] for rank in ranks[:place])]


def recorded(monitor: Monitor) -> set[Millisecond]:
    """Every millisecond in the log's spans; fails if one is there twice, or below the watermark of its time."""
    found: set[Millisecond] = set()
    complete_to_ms = 0
    for event in monitor.log:
        if isinstance(event, BeatsCovered):
            for one in event.spans:
                assert one.from_ms >= complete_to_ms, "below the watermark"
                assert one.from_ms < one.to_ms
                span = {(one.lease, one.generation, at_ms - EPOCH_MS) for at_ms in range(one.from_ms, one.to_ms)}
                assert not span & found, "covered twice"
                found |= span
            assert event.complete_to_ms >= complete_to_ms, "the watermark goes back"
            complete_to_ms = event.complete_to_ms
    return found


@given(PLAIN)
@settings(deadline=None)
def test_recorded_cover_is_the_union_of_all_beats_however_it_is_cut(story: list[Step]) -> None:
    """Invariant: repeated, overtaken and superseded beats, reconnects and the times of recording change nothing."""
    told = Story()
    told.play(story)
    told.finish()

    assert recorded(told.monitor) == reckoned(told.monitor.stream)


@given(BROKEN_OFF)
@settings(deadline=None)
def test_recorded_cover_is_the_union_of_all_beats_wherever_the_monitor_is_restarted(story: list[Step]) -> None:
    """Invariant: a monitor that loses all but the log, at any point, loses and doubles no cover."""
    told = Story()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cover, "SPANS_PER_EVENT_MAX", 2)
        told.play(story)
        told.finish()

    assert recorded(told.monitor) == reckoned(told.monitor.stream)


@given(BROKEN_OFF)
@settings(deadline=None, max_examples=50)
def test_what_is_recorded_so_far_is_never_more_than_what_beats_cover(story: list[Step]) -> None:
    """Invariant: no heartbeat, no cover; and below the watermark nothing is missing."""
    told = Story()
    told.play(story)

    found, complete_to_ms = recorded(told.monitor), told.monitor.complete_to_ms()
    everything = reckoned(told.monitor.stream)
    assert found <= everything
    assert found >= {one for one in everything if one[2] < complete_to_ms}
