"""A market to test with: events as the other services write them, folded one behind the other."""

from collections.abc import Iterable

from volt.contracts.bids import (
    BidAccepted,
    BidWithdrawn,
    Gpu,
    NodeDrainAccepted,
    NodeResumeAccepted,
    Place,
    Runtime,
    Terms,
)
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReleased,
    LeaseCleared,
    Member,
    MembersWanted,
    Wanted,
)
from volt.contracts.jobs import JobAdmitted, JobReleaseAccepted, JobSpec, Level, QuoteAdmitted, Shape, Workload
from volt.contracts.ledger import JobFunded, MembersFunded
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared, Waiting
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeLost, NodeUnknown
from volt_matcher.clear import clear
from volt_matcher.domain import evolve
from volt_matcher.state import State

MODEL = "rtx-4090-24gb"
USD = 1_000_000
AT_MS = 1_800_000_000_000
A = Place(region="eu", site="s1", fabric="A")
B = Place(region="eu", site="s1", fabric="B")
C = Place(region="us", site="s2", fabric="C")
NOWHERE = Place()


def spec(
    nodes: int = 1,
    each: int = 8,
    *,
    models: tuple[str, ...] = (MODEL,),
    interconnect: Level = "any",
    regions: tuple[str, ...] = (),
    regions_denied: tuple[str, ...] = (),
    min_memory_mib: int = 0,
    image: str = "",
) -> JobSpec:
    return JobSpec(
        models=models,
        shapes=(Shape(nodes=nodes, gpus_per_node=each),),
        workload=Workload(command=("train",), image=image),
        interconnect=interconnect,
        regions=regions,
        regions_denied=regions_denied,
        min_memory_mib=min_memory_mib,
    )


def bid(
    node: str,
    gpus: int | Iterable[str] = 8,
    *,
    ask_microusd: int = USD,
    place: Place = A,
    model: str = MODEL,
    memory_mib: int = 24_576,
    account: str = "",
    runtime: Runtime = "process",
) -> BidAccepted:
    """A bid of so many GPUs of the node's own, or of these UUIDs; each node is its own account's unless told."""
    uuids = [f"{node}-{number}" for number in range(gpus)] if isinstance(gpus, int) else list(gpus)
    return BidAccepted(
        account=account or f"owner-{node}",
        node=node,
        request_id="b",
        at_ms=AT_MS,
        request_digest="",
        gpus=tuple(Gpu(uuid=uuid, model=model, memory_mib=memory_mib) for uuid in uuids),
        terms=Terms(ask_microusd_per_gpu_hour=ask_microusd),
        place=place,
        runtime=runtime,
    )


def drained(node: str, account: str = "") -> NodeDrainAccepted:
    return NodeDrainAccepted(
        account=account or f"owner-{node}",
        node=node,
        request_id="d",
        at_ms=AT_MS,
        request_digest="d",
        reason="",
        deadline_ms=AT_MS + 1,
    )


def resumed(node: str) -> NodeResumeAccepted:
    return NodeResumeAccepted(account=f"owner-{node}", node=node, request_id="e", at_ms=AT_MS)


def withdrawn(node: str) -> BidWithdrawn:
    return BidWithdrawn(account=f"owner-{node}", node=node, request_id="w", at_ms=AT_MS)


def alive(node: str, account: str = "") -> NodeAlive:
    return NodeAlive(account=account or f"owner-{node}", node=node, incarnation="1", at_ms=AT_MS)


def unknown(node: str) -> NodeUnknown:
    return NodeUnknown(account=f"owner-{node}", node=node, incarnation="1", at_ms=AT_MS)


def lost(node: str) -> NodeLost:
    return NodeLost(account=f"owner-{node}", node=node, incarnation="1", at_ms=AT_MS, cause="silent")


def admitted(job: str, what: JobSpec) -> JobAdmitted:
    return JobAdmitted(account="buyer", job=job, request_id=job, at_ms=AT_MS, request_digest="", spec=what)


def funded(job: str, cap_microusd: int = 2 * USD) -> JobFunded:
    return JobFunded(account="buyer", at_ms=AT_MS, job=job, cap_microusd_per_gpu_hour=cap_microusd)


def released(job: str) -> JobReleaseAccepted:
    return JobReleaseAccepted(account="buyer", job=job, request_id="r", at_ms=AT_MS)


def completed(job: str) -> ClusterReleased:
    return ClusterReleased(account="buyer", job=job, generation=1, at_ms=AT_MS, reason="completed", exit_code=0)


def cleared(job: str, lease: str, node: str) -> LeaseCleared:
    return LeaseCleared(account="buyer", job=job, generation=1, at_ms=AT_MS, lease=lease, node=node)


def forming(job: str, generation: int, *gangs: Gang, replaces: tuple[str, ...] = ()) -> ClusterForming:
    """A generation of the members that these gangs brought, and that wants so many more."""
    members = tuple(
        Member(
            lease=grant.lease,
            rank=grant.rank,
            node=grant.node,
            provider=grant.provider,
            gpus=grant.gpus,
            price_microusd_per_gpu_hour=gang.price_microusd_per_gpu_hour,
        )
        for gang in gangs
        for grant in gang.grants
        if grant.lease not in replaces
    )
    return ClusterForming(
        account="buyer",
        job=job,
        generation=generation,
        at_ms=AT_MS,
        members=members,
        replaces=replaces,
        prepare_by_ms=AT_MS + 60_000,
    )


def wanted(
    job: str,
    *ranks_and_attempts: tuple[int, int],
    generation: int = 2,
    excluded: tuple[str, ...] = (),
    within: str = "",
    replaces: str | None = "j-lost",
    relieves: str | None = None,
) -> MembersWanted:
    """Of a replacement, or of growth if it replaces nobody."""
    return MembersWanted(
        account="buyer",
        job=job,
        generation=generation,
        at_ms=AT_MS,
        wanted=tuple(
            Wanted(rank=rank, attempt=attempt, replaces=replaces, relieves=relieves)
            for rank, attempt in ranks_and_attempts
        ),
        excluded=excluded,
        within=within,
    )


def members_funded(job: str, *attempts: int, generation: int = 2, cap_microusd: int = 2 * USD) -> MembersFunded:
    return MembersFunded(
        account="buyer",
        at_ms=AT_MS,
        job=job,
        generation=generation,
        attempts=attempts,
        cap_microusd_per_gpu_hour=cap_microusd,
    )


class Market:
    """The matcher's state and the log that it follows from."""

    def __init__(self, *events: Event) -> None:
        self.state = State()
        self.entries: list[Entry] = []
        self.at_ms = AT_MS
        """When passes are."""
        self.add(*events)

    def add(self, *events: Event) -> None:
        """Appends events to the log, and folds them."""
        for event in events:
            entry = Entry(len(self.entries) + 1, AT_MS + len(self.entries), event)
            self.entries.append(entry)
            evolve(self.state, entry)

    def node(self, node: str, gpus: int | Iterable[str] = 8, *, ask_microusd: int = USD, place: Place = A) -> None:
        """A live node that offers these."""
        self.add(bid(node, gpus, ask_microusd=ask_microusd, place=place), alive(node))

    def job(self, job: str, what: JobSpec, cap_microusd: int = 2 * USD) -> None:
        """A job that may be matched."""
        self.add(admitted(job, what), funded(job, cap_microusd))

    def ask(self, quote: str, what: JobSpec) -> None:
        """A question what a job would get."""
        asked = QuoteAdmitted(account="buyer", job=quote, request_id=quote, at_ms=AT_MS, request_digest="", spec=what)
        self.add(asked)

    def want(self, job: str, rank: int, attempt: int, *, excluded: tuple[str, ...] = (), within: str = "") -> None:
        """A funded vacancy of generation 2."""
        self.add(wanted(job, (rank, attempt), excluded=excluded, within=within), members_funded(job, attempt))

    def plan(self) -> MarketCleared | None:
        """What a pass would say now, without saying it."""
        return clear(self.state, self.at_ms)

    def run(self) -> MarketCleared | None:
        """One pass, appended if it has something to say."""
        said = self.plan()
        if said is not None:
            self.add(said)
        return said

    def settle(self) -> list[MarketCleared]:
        """Passes until nothing is left to say."""
        said = []
        while (one := self.run()) is not None:
            said.append(one)
        return said

    def gangs(self) -> dict[str, Gang]:
        """Settles, and returns the gangs that were granted by it, the last of each job."""
        return {gang.job: gang for said in self.settle() for gang in said.gangs}

    def waiting(self) -> dict[str, Waiting]:
        """Settles, and returns the reasons that were told by it, the last of each job."""
        return {waiting.job: waiting for said in self.settle() for waiting in said.waiting}

    def free(self, node: str) -> int:
        """How many GPUs of a node can be granted."""
        return sum(self.state.book.free(lot.key) for lot in self.state.lots.get(node, ()))


def nodes_of(gang: Gang) -> list[str]:
    """The gang's nodes, by rank."""
    return [grant.node for grant in sorted(gang.grants, key=lambda grant: grant.rank)]
