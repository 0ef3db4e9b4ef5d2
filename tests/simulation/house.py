"""One log and the three services that decide by it, folded in one thread, and nodes that do what they are told.

Faster and plainer than a bus, for what depends on what they decide and not on how messages travel.
"""

from collections.abc import Iterator
from typing import Generic, Protocol, TypedDict, TypeVar

from tests.support.effects import sound
from volt.contracts.bids import BidAccepted, Gpu, Place, Terms
from volt.contracts.clusters import Exit
from volt.contracts.jobs import AccountOpened, JobAdmitted, JobReleaseAccepted, JobSpec
from volt.contracts.ledger import Transfer
from volt.contracts.log import Entry, decode_event
from volt.contracts.messages import Asked, Event, encode
from volt.contracts.nodes import (
    BeatsCovered,
    CoverSpan,
    DesiredLease,
    NodeAlive,
    NodeLost,
    Report,
    ReportCleared,
    ReportEnded,
    ReportPrepared,
    ReportStarted,
)
from volt.contracts.subjects import command_report
from volt.contracts.timing import EMBEDDED
from volt.runtime.engine import Definition
from volt.runtime.subjects import matches
from volt_billing.effects import DEFINITION as BILLING
from volt_matcher.effects import DEFINITION as MATCHER
from volt_provisioner.domain import desired_of
from volt_provisioner.effects import definition as provisioner

T0_MS = 1_800_000_000_000
BUYER, RIVAL, OWNER, MODEL = "lab", "rival", "farm", "rtx-4090-24gb"
GPUS_PER_NODE = 2
STEP_MS = 5_000
"""No longer than what the provisioner takes for a pause of its own."""
ROUNDS_MAX = 2_000
S = TypeVar("S")
E = TypeVar("E", bound=Event)


class Whose(TypedDict):
    """What every report says first."""

    account: str
    node: str
    lease: str
    generation: int


class Decider(Protocol):
    """A service, whatever its state."""

    def fold(self, entry: Entry) -> None: ...

    def due(self, at_ms: int) -> list[Event]: ...


class Folded(Generic[S]):
    """A service's state, followed from the log."""

    def __init__(self, definition: Definition[S]) -> None:
        self.definition, self.state = definition, definition.initial()

    def fold(self, entry: Entry) -> None:
        if any(matches(entry.event.subject(), one) for one in self.definition.reads):
            self.definition.evolve(self.state, entry)

    def due(self, at_ms: int) -> list[Event]:
        return sound(self.definition.effects(self.state, at_ms))


class House:
    """Nodes of one owner on one fabric, and two buyers with their first credit."""

    def __init__(self, *nodes: str, ask_microusd: int = 1_000_000) -> None:
        self._ask_microusd = ask_microusd
        self.entries: list[Entry] = []
        self.now_ms = T0_MS
        self.matcher, self.provisioner = Folded(MATCHER), Folded(provisioner(EMBEDDED))
        self.billing = Folded(BILLING)
        self.away: set[str] = set()
        """Nodes that hear and say nothing."""
        self.buyers: dict[str, str] = {}
        """Whose each job is."""
        self._has: dict[str, tuple[int, str]] = {}
        """What each lease's node has of it: a generation, and how far it is."""
        for account in (BUYER, RIVAL):
            self.write(AccountOpened(account=account, request_id="o", at_ms=T0_MS, key_sha256=""))
        for node in nodes:
            self.offer(node)
        self.settle()

    @property
    def _services(self) -> tuple[Decider, ...]:
        return (self.matcher, self.provisioner, self.billing)

    def write(self, *events: Event) -> None:
        """Appends events, as bytes would bring them back."""
        for event in events:
            entry = Entry(len(self.entries) + 1, self.now_ms, decode_event(encode(event)))
            self.entries.append(entry)
            for service in self._services:
                service.fold(entry)

    def settle(self) -> None:
        """Whatever is called for happens, and the nodes that are there do what they are told."""
        for _ in range(ROUNDS_MAX):
            due = next((found for service in self._services if (found := service.due(self.now_ms))), None)
            if due is not None:
                self.write(due[0])
            elif not self._obey():
                return
        raise AssertionError("something is called for, for ever")

    def passes(self, seconds: float) -> None:
        """Time goes by, under the eyes of all."""
        until_ms = self.now_ms + round(seconds * 1_000)
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, self.now_ms + STEP_MS)
            self.settle()

    def covered(self) -> None:
        """All time of the leases that run is covered so far, and the rest is known not to be."""
        spans = tuple(
            CoverSpan(lease=lease, generation=generation, from_ms=T0_MS, to_ms=self.now_ms)
            for lease, (generation, how) in self._has.items()
            if how == "running"
        )
        self.write(BeatsCovered(spans=spans, complete_to_ms=self.now_ms, at_ms=self.now_ms))
        self.settle()

    # What people and machines do.

    def offer(self, node: str) -> None:
        bid = BidAccepted(
            account=OWNER,
            node=node,
            request_id="b",
            at_ms=self.now_ms,
            request_digest="",
            gpus=tuple(Gpu(uuid=f"{node}-{number}", model=MODEL) for number in range(GPUS_PER_NODE)),
            terms=Terms(ask_microusd_per_gpu_hour=self._ask_microusd),
            place=Place(region="eu", site="s", fabric="A"),
        )
        self.write(bid, NodeAlive(account=OWNER, node=node, incarnation="1", at_ms=self.now_ms))

    def lose(self, node: str) -> None:
        self.away.add(node)
        self.write(lost(node, self.now_ms))
        self.settle()

    def come_back(self, *nodes: str) -> None:
        """They are alive again, and have what they had: nothing was lost but time."""
        for node in nodes:
            self.away.discard(node)
            self.write(NodeAlive(account=OWNER, node=node, incarnation="2", at_ms=self.now_ms))
        self.settle()

    def ask(self, job: str, spec: JobSpec, account: str = BUYER) -> None:
        self.buyers[job] = account
        self.write(admitted(job, spec, account, self.now_ms))
        self.settle()

    def release(self, job: str) -> None:
        self.write(released(job, self.buyers[job], self.now_ms))
        self.settle()

    def exits(self, job: str, code: int) -> None:
        """Every process of the job ends with this code."""
        for node, lease in list(self._told()):
            if lease.job == job and self._has.get(lease.lease) == (lease.generation, "running"):
                exits = tuple(Exit(local_rank=rank, code=code) for rank in range(lease.processes))
                self._has[lease.lease] = (lease.generation, "ended")
                self._report(ReportEnded(**_whose(node, lease), exits=exits))
        self.settle()

    # What the log says.

    def all(self, kind: type[E]) -> list[E]:
        return [entry.event for entry in self.entries if isinstance(entry.event, kind)]

    def balance_microusd(self, account: str) -> int:
        moved: list[Transfer] = [one for event in self.all(Event) for one in getattr(event, "transfers", ())]
        came = sum(one.amount_microusd for one in moved if one.credit == account)
        return came - sum(one.amount_microusd for one in moved if one.debit == account)

    def told(self, node: str) -> list[DesiredLease]:
        """What the node should be doing."""
        key = (OWNER, node)
        state = self.provisioner.state
        return list(desired_of(state, key).leases) if key in state.nodes else []

    # How nodes converge.

    def _told(self) -> Iterator[tuple[str, DesiredLease]]:
        for _, node in sorted(self.provisioner.state.nodes):
            if node not in self.away:
                yield from ((node, lease) for lease in self.told(node))

    def _obey(self) -> bool:
        """One node takes one step; whether there was one to take."""
        for node, lease in self._told():
            answer = self._step(node, lease)
            if answer is not None:
                self._report(answer)
                return True
        return False

    def _step(self, node: str, lease: DesiredLease) -> Report | None:
        generation, how = self._has.get(lease.lease, (0, "nothing"))
        whose = _whose(node, lease)
        match lease.phase, how:
            case "stop", _ if (generation, how) != (lease.generation, "cleared"):
                self._has[lease.lease] = (lease.generation, "cleared")
                return ReportCleared(**whose)
            case (("prepare" | "halt"), "running"):
                self._has[lease.lease] = (generation, "ended")
                whose["generation"] = generation
                return ReportEnded(**whose, exits=())
            case "prepare", _ if (generation, how) != (lease.generation, "prepared"):
                self._has[lease.lease] = (lease.generation, "prepared")
                return ReportPrepared(**whose, address="10.0.0.1", port=29_500)
            case "start", "prepared" if generation == lease.generation:
                self._has[lease.lease] = (generation, "running")
                return ReportStarted(**whose)
            case _:
                return None

    def _report(self, report: Report) -> None:
        asked = Asked(command_report(report.account, report.node), 1, 1, self.now_ms)
        self.write(*self.provisioner.definition.decide(self.provisioner.state, report, asked))


def _whose(node: str, lease: DesiredLease) -> Whose:
    return Whose(account=OWNER, node=node, lease=lease.lease, generation=lease.generation)


def admitted(job: str, spec: JobSpec, account: str, at_ms: int) -> JobAdmitted:
    return JobAdmitted(account=account, job=job, request_id=job, at_ms=at_ms, request_digest="", spec=spec)


def released(job: str, account: str, at_ms: int) -> JobReleaseAccepted:
    return JobReleaseAccepted(account=account, job=job, request_id="r", at_ms=at_ms)


def lost(node: str, at_ms: int) -> NodeLost:
    return NodeLost(account=OWNER, node=node, incarnation="1", at_ms=at_ms, cause="silent")
