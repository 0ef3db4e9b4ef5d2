"""Markets as hypothesis tells them: nodes that come and go, jobs, losses, time and passes, one chapter after the other.

Nodes have one model or two, each on terms of its own; jobs have one shape or several, and may say how long they take or
wait. Reservations come by themselves, once somebody has waited for long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.matcher.builders import (
    AT_MS,
    Market,
    admitted,
    alive,
    bid,
    cleared,
    forming,
    funded,
    lost,
    members_funded,
    released,
    spec,
    unknown,
    wanted,
    withdrawn,
)
from volt.contracts.bids import BidAccepted, BidWithdrawn, Gpu, ModelTerms, Place, Terms
from volt.contracts.jobs import JobSpec, Level, Shape
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeLost, NodeUnknown
from volt.contracts.units import MS_PER_SECOND

NODES = [f"n{number}" for number in range(6)]
HOME = Place(region="eu", site="s1", fabric="A")
SHAPES = [((1, 1),), ((1, 2),), ((2, 1),), ((3, 1),), ((2, 2),), ((3, 2),), ((1, 2), (2, 1)), ((1, 4), (2, 2), (4, 1))]
"""Nodes and GPUs on each."""
LATER_MS = [*[None] * 8, AT_MS + 120_000, AT_MS + 600_000]
LASTS_SECONDS = [None, None, 60, 600]

places = st.one_of(
    st.just(HOME),
    st.just(HOME),
    st.builds(
        Place,
        region=st.sampled_from(["eu", "us", ""]),
        site=st.sampled_from(["s1", "s2", ""]),
        fabric=st.sampled_from(["A", "B", ""]),
    ),
)
terms = st.builds(
    Terms,
    ask_microusd_per_gpu_hour=st.integers(1, 4),
    gpus_min=st.sampled_from([1, 1, 1, 1, 1, 2]),
    max_duration_seconds=st.sampled_from([*[None] * 7, 300]),
    available_from_ms=st.sampled_from(LATER_MS),
    available_until_ms=st.sampled_from(LATER_MS),
    paused=st.sampled_from([False] * 15 + [True]),
)


def bids_of(node: str) -> st.SearchStrategy[BidAccepted]:
    """One model, or two with terms of its own for the second."""
    return st.builds(_bid, st.just(node), gpus, gpus, places, terms, st.none() | terms)


class Stock(NamedTuple):
    """GPUs of one model."""

    model: str
    gpus: int
    memory_mib: int


gpus = st.builds(
    Stock, st.sampled_from(["old", "old", "old", "new"]), st.integers(1, 4), st.sampled_from([20, 20, 20, 10])
)


def _bid(node: str, first: Stock, second: Stock, place: Place, own: Terms, other: Terms | None) -> BidAccepted:
    offered = bid(node, first.gpus, model=first.model, memory_mib=first.memory_mib, place=place)
    offered = replace(offered, terms=own)
    if other is None or second.model == first.model:
        return offered
    more = tuple(
        Gpu(uuid=f"{node}-{second.model}-{number}", model=second.model, memory_mib=second.memory_mib)
        for number in range(second.gpus)
    )
    return replace(offered, gpus=offered.gpus + more, changed=(ModelTerms(model=second.model, terms=other),))


levels: st.SearchStrategy[Level] = st.sampled_from(["fabric", "site", "region", "any"])


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    plain = spec(
        models=draw(st.sampled_from([("old",), ("old", "new"), ("new",)])),
        interconnect=draw(levels),
        regions=draw(st.sampled_from([(), (), ("eu",)])),
        regions_denied=draw(st.sampled_from([(), (), ("us",)])),
        min_memory_mib=draw(st.sampled_from([0, 0, 15])),
    )
    return replace(
        plain,
        shapes=tuple(Shape(nodes=nodes, gpus_per_node=each) for nodes, each in draw(st.sampled_from(SHAPES))),
        preferred_interconnect=draw(st.sampled_from([None, None, "fabric"])),
        max_duration_seconds=draw(st.sampled_from(LASTS_SECONDS)),
        max_wait_seconds=draw(st.sampled_from([None, None, None, None, 0, 400])),
    )


supplies = st.lists(st.sampled_from(NODES), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(*map(bids_of, names))
)


class Asked(NamedTuple):
    """A job that comes, and its cap."""

    spec: JobSpec
    cap_microusd: int


class Picked(NamedTuple):
    """Something that happens to one of the jobs or leases that there are by then."""

    what: str
    which: int
    rank: int


@dataclass(frozen=True)
class Waited:
    """Time goes by."""

    seconds: int


class Story(Market):
    """A market that remembers what it has to know to go on."""

    def __init__(self) -> None:
        self.number = 0
        self.asked: dict[str, Asked] = {}
        self.gangs_of: dict[str, list[Gang]] = {}
        """Of each job, those that were granted before it ended."""
        self.generations: dict[str, int] = {}
        self.late: MarketCleared | None = None
        super().__init__()

    def add(self, *events: Event) -> None:
        for event in events:
            for gang in event.gangs if isinstance(event, MarketCleared) else ():
                if gang.job not in self.state.ended:
                    self.gangs_of.setdefault(gang.job, []).append(gang)
            super().add(event)

    def chapter(self, chapter: "Chapter") -> None:
        """What happens; then a message that was on its way arrives, unless it has just been sent."""
        match chapter:
            case "pass" if self.late is None:
                self.run()
            case "late pass" if self.late is None:
                self.late = self.plan()
                return
            case "overtaken pass" if self.late is None:
                self.overtake()
            case BidAccepted(node=node):
                self.add(chapter, alive(node))
            case BidWithdrawn() | NodeAlive() | NodeUnknown() | NodeLost():
                self.add(chapter)
            case Asked():
                self.admit(chapter)
            case Picked():
                self._happen_to(chapter)
            case Waited(seconds=seconds):
                self.at_ms += seconds * MS_PER_SECOND
        self.arrive()

    def overtake(self) -> None:
        """The job of a gang that is on its way ends, or forms anew without the member that it wanted."""
        self.late = self.plan()
        for gang in self.late.gangs[:1] if self.late else ():
            if gang.attempt == 0:
                self.add(released(gang.job))
            else:
                self.generations[gang.job] = gang.generation + 1
                self.add(forming(gang.job, gang.generation + 1))

    def _happen_to(self, picked: Picked) -> None:
        match picked.what:
            case "release":
                self.release(picked.which)
            case "clear":
                self.clear_one(picked.which)
            case "want":
                self.want_one(picked.which, picked.rank)
            case "form anew":
                self.form_anew(picked.which)

    def arrive(self) -> None:
        if self.late is not None:
            said, self.late = self.late, None
            self.add(said)

    def admit(self, asked: Asked) -> None:
        self.number += 1
        job = f"j{self.number}"
        self.asked[job] = asked
        self.add(admitted(job, asked.spec), replace(funded(job, asked.cap_microusd), at_ms=self.at_ms))

    def release(self, which: int) -> None:
        """Ends a job, one whose grant is on its way if there is any."""
        on_their_way = {gang.job for gang in self.late.gangs} if self.late else set()
        names = sorted(on_their_way or self.asked)
        if names:
            self.add(released(names[which % len(names)]))

    def clear_one(self, which: int) -> None:
        names = sorted(self.state.leases)
        if names:
            name = names[which % len(names)]
            held = self.state.leases[name]
            self.add(cleared(held.job, name, held.node))

    def want_one(self, which: int, rank: int) -> None:
        names = sorted(self.gangs_of)
        if names:
            job = names[which % len(names)]
            self.number += 1
            first, generation = self.gangs_of[job][0], self.generations.get(job, 1)
            event = wanted(
                job,
                (rank % len(first.grants), self.number),
                generation=generation,
                excluded=(first.grants[0].node,),
                within=first.domain,
            )
            money = members_funded(job, self.number, generation=generation, cap_microusd=self.asked[job].cap_microusd)
            self.add(event, money)

    def form_anew(self, which: int) -> None:
        names = sorted(self.gangs_of)
        if names:
            job = names[which % len(names)]
            self.generations[job] = self.generations.get(job, 1) + 1
            self.add(forming(job, self.generations[job]))


def poaching(thief: str, owner: str) -> BidAccepted:
    """A bid that offers another node's GPUs beside its own."""
    return bid(thief, [f"{thief}-0", f"{owner}-0", f"{owner}-1"], ask_microusd=1, model="old", memory_mib=20)


Chapter = (
    BidAccepted
    | BidWithdrawn
    | NodeAlive
    | NodeUnknown
    | NodeLost
    | Asked
    | Picked
    | Waited
    | Literal["pass", "late pass", "overtaken pass"]
)
numbers = st.integers(0, 20)
asked = st.builds(Asked, specs(), st.integers(2, 5))
happenings = ["want", "want", "want", "clear", "clear", "release", "form anew"]
picked = st.builds(Picked, st.sampled_from(happenings), numbers, numbers)
waited = st.builds(Waited, st.sampled_from([1, 60, 200, 400, 3_600]))
passes: st.SearchStrategy[Chapter] = st.sampled_from(["pass", "pass", "late pass", "overtaken pass"])
supply: st.SearchStrategy[Chapter] = st.one_of(
    st.sampled_from(NODES).flatmap(bids_of),
    st.permutations(NODES).map(lambda nodes: poaching(*nodes[:2])),
    st.sampled_from(NODES).map(withdrawn),
    st.sampled_from(NODES).map(lost),
    st.sampled_from(NODES).map(unknown),
    st.sampled_from(NODES).map(alive),
)
chapters: st.SearchStrategy[Chapter] = st.one_of(supply, asked, asked, picked, picked, waited, passes, passes, passes)


class Telling(NamedTuple):
    """Every node is there and somebody waits; then things happen."""

    bids: tuple[BidAccepted, ...]
    waiting: list[Asked]
    chapters: list[Chapter]


stories = st.builds(
    Telling,
    st.tuples(*map(bids_of, NODES)),
    st.lists(asked, min_size=1, max_size=3),
    st.lists(chapters, min_size=20, max_size=60),
)


def told(telling: Telling, each: Callable[[Story], None] = lambda _: None) -> Story:
    """The whole story; `each` is called after every chapter of it."""
    story = Story()
    for chapter in (*telling.bids, *telling.waiting, *telling.chapters):
        story.chapter(chapter)
        each(story)
    return story
