"""Markets as hypothesis tells them: nodes that come and go, jobs, losses and passes, one chapter after the other."""

from typing import Literal, NamedTuple

from hypothesis import strategies as st

from tests.unit.matcher.auditor import Auditor
from tests.unit.matcher.builders import (
    Market,
    alive,
    bid,
    cleared,
    forming,
    lost,
    members_funded,
    released,
    spec,
    wanted,
    withdrawn,
)
from volt.contracts.bids import BidAccepted, BidWithdrawn, Place
from volt.contracts.jobs import JobSpec
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeLost

NODES = [f"n{number}" for number in range(6)]
HOME = Place(region="eu", site="s1", fabric="A")

places = st.one_of(
    st.just(HOME),
    st.builds(
        Place,
        region=st.sampled_from(["eu", "us", ""]),
        site=st.sampled_from(["s1", "s2", ""]),
        fabric=st.sampled_from(["A", "B", ""]),
    ),
)
models = st.sampled_from(["old", "old", "new"])


def bids_of(node: str) -> st.SearchStrategy[BidAccepted]:
    return st.builds(
        bid,
        st.just(node),
        st.integers(1, 4),
        ask_microusd=st.integers(1, 4),
        place=places,
        model=models,
        memory_mib=st.sampled_from([20, 20, 10]),
    )


specs = st.builds(
    spec,
    st.integers(1, 3),
    st.integers(1, 2),
    models=st.sampled_from([("old",), ("old", "new"), ("new",)]),
    interconnect=st.sampled_from(["fabric", "site", "region", "any"]),
    regions=st.sampled_from([(), (), ("eu",)]),
    regions_denied=st.sampled_from([(), (), ("us",)]),
    min_memory_mib=st.sampled_from([0, 0, 15]),
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


class Story(Market):
    """A market whose log is audited as it grows, one chapter after the other."""

    def __init__(self) -> None:
        self.auditor = Auditor()
        self.number = 0
        self.generations: dict[str, int] = {}
        self.late: MarketCleared | None = None
        super().__init__()

    def add(self, *events: Event) -> None:
        for event in events:
            super().add(event)
            self.auditor.follow(self.entries[-1])

    def chapter(self, chapter: "Chapter") -> None:
        """What happens; then a message that was on its way arrives, unless it has just been sent."""
        match chapter:
            case "pass" if self.late is None:
                self.run()
            case "late pass" if self.late is None:
                self.late = self.plan()
                return
            case BidAccepted(node=node):
                self.add(chapter, alive(node))
            case BidWithdrawn() | NodeAlive() | NodeLost():
                self.add(chapter)
            case Asked(spec=what, cap_microusd=cap_microusd):
                self.admit(what, cap_microusd)
            case Picked():
                self._happen_to(chapter)
        self.arrive()

    def _happen_to(self, picked: "Picked") -> None:
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

    def admit(self, what: JobSpec, cap_microusd: int) -> None:
        self.number += 1
        self.job(f"j{self.number}", what, cap_microusd)

    def release(self, which: int) -> None:
        """Ends a job, one whose grant is on its way if there is any."""
        on_their_way = {gang.job for gang in self.late.gangs} if self.late else set()
        names = sorted(on_their_way or self.auditor.caps)
        if names:
            self.add(released(names[which % len(names)]))

    def clear_one(self, which: int) -> None:
        names = sorted(self.auditor.held)
        if names:
            name = names[which % len(names)]
            job, node, _ = self.auditor.held[name]
            self.add(cleared(job, name, node))

    def want_one(self, which: int, rank: int) -> None:
        names = sorted(self.auditor.gangs)
        if names:
            job = names[which % len(names)]
            self.number += 1
            first, generation = self.auditor.gangs[job][0], self.generations.get(job, 1)
            event = wanted(
                job,
                (rank % len(first.grants), self.number),
                generation=generation,
                excluded=(first.grants[0].node,),
                within=first.domain,
            )
            money = members_funded(job, self.number, generation=generation, cap_microusd=self.auditor.caps[job])
            self.add(event, money)

    def form_anew(self, which: int) -> None:
        names = sorted(self.auditor.gangs)
        if names:
            job = names[which % len(names)]
            self.generations[job] = self.generations.get(job, 1) + 1
            self.add(forming(job, self.generations[job]))


def poaching(thief: str, owner: str) -> BidAccepted:
    """A bid that offers another node's GPUs beside its own."""
    return bid(thief, [f"{thief}-0", f"{owner}-0", f"{owner}-1"], ask_microusd=1, model="old", memory_mib=20)


Chapter = BidAccepted | BidWithdrawn | NodeAlive | NodeLost | Asked | Picked | Literal["pass", "late pass"]
numbers = st.integers(0, 20)
asked = st.builds(Asked, specs, st.integers(2, 5))
happenings = ["want", "want", "want", "clear", "clear", "release", "form anew"]
picked = st.builds(Picked, st.sampled_from(happenings), numbers, numbers)
passes: st.SearchStrategy[Chapter] = st.sampled_from(["pass", "late pass"])
supply: st.SearchStrategy[Chapter] = st.one_of(
    st.sampled_from(NODES).flatmap(bids_of),
    st.permutations(NODES).map(lambda nodes: poaching(*nodes[:2])),
    st.sampled_from(NODES).map(withdrawn),
    st.sampled_from(NODES).map(lost),
    st.sampled_from(NODES).map(alive),
)
chapters: st.SearchStrategy[Chapter] = st.one_of(supply, asked, picked, picked, passes, passes)


class Telling(NamedTuple):
    """Every node is there and somebody waits; then things happen."""

    bids: tuple[BidAccepted, ...]
    waiting: list[Asked]
    chapters: list[Chapter]


stories = st.builds(
    Telling, st.tuples(*map(bids_of, NODES)), st.lists(asked, min_size=1, max_size=3), st.lists(chapters, min_size=10)
)


def told(telling: Telling) -> Story:
    story = Story()
    for chapter in (*telling.bids, *telling.waiting, *telling.chapters):
        story.chapter(chapter)
    return story
