"""What happens in a demo, as anybody with the log can see it: milestones with their times."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from volt.contracts.bids import BidAccepted, BidRejected
from volt.contracts.clusters import (
    CheckpointCommitted,
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    Member,
    MemberJoined,
    MemberLost,
    MembersWanted,
)
from volt.contracts.jobs import JobAdmitted, JobRejected
from volt.contracts.ledger import BillLine, JobClosed, JobFunded, JobUnfunded
from volt.contracts.letters import LogLines
from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.nodes import NodeAlive, NodeLost
from volt.contracts.units import format_usd

STEP_WORD = "step"
COMMITTED_WORDS = "checkpoint of step "


@dataclass(frozen=True)
class Moment:
    """Something worth a line: when, in milliseconds of the observer's clock, and what."""

    at_ms: int
    text: str


@dataclass
class Story:
    """Follows one job. Feed it the log and the output; wait for conditions."""

    clock_ms: Callable[[], int]
    job: str = ""
    moments: list[Moment] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    offered: set[str] = field(default_factory=set)
    members: dict[int, Member] = field(default_factory=dict)
    node_of_lease: dict[str, str] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    """First instant of each milestone: matched, ready/<generation>, first_step, lost, released, closed, failed."""
    generation: int = 0
    steps: int = 0
    """Step lines received in this generation."""
    first_step: dict[int, int] = field(default_factory=dict)
    """The number of the first step that each generation was seen to take."""
    last_step: dict[int, int] = field(default_factory=dict)
    """The number of the last one."""
    committed: int | None = None
    """The step of the last committed checkpoint."""
    last_line: str = ""
    released: ClusterReleased | None = None
    bill: tuple[BillLine, ...] = ()
    problem: str = ""
    entries: list[Entry] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition: Callable[[], bool], seconds_max: float, what: str) -> None:
        """Waits for a condition on this story. Raises TimeoutError naming what did not come."""
        try:
            async with asyncio.timeout(seconds_max), self._changed:
                await self._changed.wait_for(lambda: condition() or bool(self.problem))
        except TimeoutError:
            raise TimeoutError(f"{what} did not come within {seconds_max:.0f} s") from None

    @property
    def resumed_step(self) -> int:
        """The step that the second generation began after, by what it did first."""
        return self.first_step.get(2, 1) - 1

    @property
    def steps_lost(self) -> int:
        """The steps of the first generation that the second had to take again."""
        return max(0, self.last_step.get(1, 0) - self.resumed_step)

    def say(self, text: str) -> None:
        """Adds a line of one's own."""
        self.moments.append(Moment(self.clock_ms(), text))

    async def see(self, entry: Entry) -> None:
        """Takes in an event of the log."""
        self.entries.append(entry)
        self._see(entry)
        async with self._changed:
            self._changed.notify_all()

    async def hear(self, lines: LogLines) -> None:
        """Takes in output of the job."""
        for line in lines.lines:
            if not line.text.startswith(STEP_WORD):
                continue
            number = int(line.text.split()[1])
            self.first_step.setdefault(line.generation, number)
            self.last_step[line.generation] = number
            if line.generation != self.generation:
                continue
            self._mark("first_step")
            self._mark(f"first_step/{self.generation}")
            self.steps += 1
            self.last_line = line.text
        async with self._changed:
            self._changed.notify_all()

    def _see(self, entry: Entry) -> None:
        match entry.event:
            case NodeAlive(node=node):
                self.alive.add(node)
            case NodeLost(node=node):
                self.alive.discard(node)
                self._mark("lost")
                self.say(f"node {node} is lost: silent for longer than a fenced node runs on")
            case BidAccepted(node=node):
                self.offered.add(node)
            case BidRejected(reason=reason):
                self.problem = f"a bid was rejected: {reason.message}"
            case _:
                if getattr(entry.event, "job", self.job) == self.job:
                    self._see_job(entry)

    def _see_job(self, entry: Entry) -> None:
        match entry.event:
            case JobAdmitted():
                self.say("admitted")
            case JobRejected(reason=reason):
                self.problem = f"the job was rejected: {reason.message}"
            case JobFunded() as funded:
                held_microusd = sum(transfer.amount_microusd for transfer in funded.transfers)
                self.say(f"funded: ${format_usd(held_microusd, 2)} on hold at the cap")
            case JobUnfunded():
                self.problem = "the job was not funded"
            case MarketCleared() as cleared:
                self._see_market(cleared)
            case JobClosed(lines=lines):
                self.bill = lines
                self._mark("closed")
            case _:
                self._see_cluster(entry)

    def _see_market(self, cleared: MarketCleared) -> None:
        for gang in cleared.gangs:
            if gang.job != self.job:
                continue
            self._mark("matched")
            nodes = ", ".join(grant.node for grant in gang.grants)
            price = format_usd(gang.price_microusd_per_gpu_hour, 2)
            word = "matched" if gang.generation == 1 else "replacement matched"
            self.say(f"{word} on {gang.domain or 'no one domain'} at ${price} per GPU-hour: {nodes}")
        for waiting in cleared.waiting:
            if waiting.job == self.job:
                self.say(f"waiting: {waiting.message}")

    def _see_cluster(self, entry: Entry) -> None:
        match entry.event:
            case ClusterForming(generation=generation, members=members):
                self.generation, self.steps = generation, 0
                self.members = {}
                for member in members:
                    self._join(member)
                self.say(f"generation {generation}: preparing")
            case MemberJoined(member=member):
                self._join(member)
            case MembersWanted(wanted=wanted):
                self.say(f"wants rank {', '.join(str(one.rank) for one in wanted)} again")
            case MemberLost(lease=lease, cause=cause):
                self.say(f"lease {lease} ends: {cause}")
            case ClusterReady(generation=generation):
                self._mark(f"ready/{generation}")
                self.say(f"generation {generation}: ready, billed from now on")
            case CheckpointCommitted(checkpoint=checkpoint):
                self.committed = checkpoint.step
                if self.moments[-1].text.startswith(COMMITTED_WORDS):
                    self.moments.pop()
                self.say(f"{COMMITTED_WORDS}{checkpoint.step} committed: every rank has stored it")
            case ClusterReleased(reason=reason) as released:
                self.released = released
                self._mark("released")
                self.say(f"released ({reason}): the bill stops here")
            case _:
                pass

    def _join(self, member: Member) -> None:
        self.members[member.rank] = member
        self.node_of_lease[member.lease] = member.node

    def _mark(self, name: str) -> None:
        self.marks.setdefault(name, self.clock_ms())
