"""Nobody starves: in any stream of small jobs a large gang is placed when the last GPU that it needs frees.

Time goes in minutes. Jobs that say how long they take begin at most two minutes after their grant, and end when they
said; the others end whenever they like, and the market is not told when that will be.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.matcher.builders import AT_MS, USD, Market, admitted, cleared, funded, released, spec
from volt.audit.market import audit_market
from volt.contracts.clusters import ClusterReady
from volt.contracts.jobs import JobSpec
from volt.contracts.market import MarketCleared, Reservation
from volt_matcher.effects import effects

MINUTE_MS = 60_000
GPUS = 4
LASTS_MINUTES_MAX = 50
MINUTES_MAX = 150
PAYS_WELL, PAYS_LITTLE = 3 * USD, 2 * USD
"""What small jobs and the gang pay: gains alone would always go to the small ones."""


@dataclass(frozen=True)
class Small:
    """A job on one node, for so many minutes; whether it says so, and how many minutes it takes to begin."""

    gpus: int
    minutes: int
    says_so: bool
    begins_after: int


@dataclass
class Stream:
    """A market minute by minute: what runs in it, and what was granted when."""

    market: Market = field(default_factory=Market)
    minute: int = 0
    smalls: dict[str, Small] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """The minutes in which the small jobs that were granted begin and end."""
    granted: dict[str, int] = field(default_factory=dict)
    due: int | None = None
    """When the gang has to have its place: once it has a reservation, when the last GPU that is kept for it frees."""

    @property
    def at_ms(self) -> int:
        return AT_MS + self.minute * MINUTE_MS

    def comes(self, small: Small) -> None:
        name = f"small-{len(self.smalls)}"
        self.smalls[name] = small
        self.asks(name, replace(spec(1, small.gpus), max_duration_seconds=60 * small.minutes), PAYS_WELL, small.says_so)

    def asks(self, name: str, what: JobSpec, cap_microusd: int, says_so: bool = False) -> None:
        told = what if says_so else replace(what, max_duration_seconds=None)
        self.market.add(admitted(name, told), replace(funded(name, cap_microusd), at_ms=self.at_ms))

    def goes_on(self) -> None:
        """The next minute: who ends gives back what it had, and who begins is ready."""
        self.minute += 1
        self._begin()
        for name in [name for name, minute in self.ends.items() if minute <= self.minute]:
            del self.ends[name]
            (lease,) = [lease for lease, one in self.market.state.leases.items() if one.job == name]
            self.market.add(released(name), cleared(name, lease, self.market.state.leases[lease].node))

    def matches(self) -> None:
        """The passes of this minute."""
        self.market.at_ms = self.at_ms
        while found := effects(self.market.state, self.at_ms):
            self.market.add(*found)
            for said in found:
                assert isinstance(said, MarketCleared)
                for gang in said.gangs:
                    self._grant(gang.job)
                for reservation in said.reservations:
                    if reservation.job == "gang" and self.due is None:
                        self.due = self._all_free_at(reservation)
            self._begin()

    def _begin(self) -> None:
        for name in [name for name, minute in self.begins.items() if minute <= self.minute]:
            del self.begins[name]
            self.market.add(ClusterReady(account="buyer", job=name, generation=1, at_ms=self.at_ms))

    def _grant(self, name: str) -> None:
        self.granted[name] = self.minute
        small = self.smalls.get(name)
        if small is not None:
            self.begins[name] = self.minute + small.begins_after
            self.ends[name] = self.begins[name] + small.minutes

    def _all_free_at(self, reservation: Reservation) -> int:
        """When the last GPU that is kept frees, of those that are leased now.

        If that can be known before, then by when it was known: what frees earlier than was said may be lent until then.
        """
        if reservation.free_ms is not None:
            return (reservation.free_ms - AT_MS) // MINUTE_MS
        latest = self.minute
        for lot in reservation.lots:
            leases = [one for one in self.market.state.leases.values() if one.node == lot.node]
            free = GPUS - sum(len(one.gpus) for one in leases)
            for minute, count in sorted((self.ends[one.job], len(one.gpus)) for one in leases):
                if free < lot.gpus:
                    free, latest = free + count, max(latest, minute)
        return latest


smalls = st.builds(Small, st.integers(1, GPUS), st.integers(1, LASTS_MINUTES_MAX), st.booleans(), st.integers(0, 2))
arrivals = st.lists(st.tuples(st.integers(0, 3), smalls), min_size=10, max_size=50)


@given(st.integers(2, 4), st.data(), arrivals)
@settings(max_examples=40, deadline=None)
def test_a_gang_is_placed_at_the_latest_when_the_last_of_what_is_kept_for_it_frees(
    nodes: int, data: st.DataObject, coming: list[tuple[int, Small]]
) -> None:
    stream = Stream()
    for number in range(nodes):
        stream.market.node(f"n{number}", GPUS)
        stream.comes(data.draw(smalls))
    stream.matches()
    wide, each = data.draw(st.integers(2, nodes)), data.draw(st.integers(2, GPUS))
    stream.asks("gang", spec(wide, each, interconnect="fabric"), PAYS_LITTLE)
    for after, small in coming:
        for _ in range(after):
            stream.matches()
            stream.goes_on()
        stream.comes(small)
    while "gang" not in stream.granted and stream.minute < MINUTES_MAX:
        stream.matches()
        stream.goes_on()
    if stream.due is not None:
        assert stream.granted["gang"] <= stream.due
    assert audit_market(stream.market.entries).findings == ()


def test_who_would_have_starved_is_placed_and_those_who_end_in_time_are_let_in_before_it() -> None:
    """Every minute a job comes that pays better, and every GPU that frees would go to it."""
    stream = Stream()
    for number in range(3):
        stream.market.node(f"n{number}", GPUS)
        stream.comes(Small(GPUS, 10 * (number + 1), says_so=True, begins_after=0))
    stream.matches()
    stream.asks("gang", spec(3, GPUS, interconnect="fabric"), PAYS_LITTLE)
    while "gang" not in stream.granted:
        stream.comes(Small(GPUS, 6, says_so=stream.minute % 2 == 0, begins_after=2))
        stream.matches()
        stream.goes_on()
    assert stream.granted["gang"] == 30
    borrowed = [name for name, minute in stream.granted.items() if 5 <= minute < 30 and name != "gang"]
    assert len(borrowed) == 3, "n0 was free for twenty minutes, and n1 for ten; each took six, and two to begin"
    assert all(stream.smalls[name].says_so for name in borrowed)
