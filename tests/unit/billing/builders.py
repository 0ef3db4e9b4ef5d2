"""Short ways to say what happens to a job, and a log with billing at work on it."""

from collections.abc import Sequence

from volt.audit.ledger import audit
from volt.contracts.bids import BidAccepted, BidWithdrawn, Gpu, Place, Terms
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterReleased,
    Exit,
    GenerationEnded,
    GrowthGivenUp,
    Member,
    MemberDropped,
    MemberEnded,
    MemberJoined,
    MemberLost,
    MemberStarted,
    MembersWanted,
    Wanted,
)
from volt.contracts.jobs import AccountOpened, JobAdmitted, JobReleaseAccepted, JobSpec, Shape, Workload, WorkloadKind
from volt.contracts.ledger import JobClosed, LedgerEvent, hold, wallet
from volt.contracts.log import Entry
from volt.contracts.market import Gang, Grant, MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import BeatsCovered, CoverSpan
from volt_billing.domain import evolve
from volt_billing.effects import effects
from volt_billing.states import State

START_MS = 1_700_000_040_000
"""A whole number of posting periods, so that tests can count minutes from it."""
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
DOLLAR = 1_000_000
ROUNDS_MAX = 200
BUYER, JOB = "buyer", "job"


class World:
    """A log, and billing that reads it and acts. Time is what `now_ms` says."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.state = State()
        self.read_to = 0
        self.now_ms = START_MS

    def append(self, *events: Event) -> None:
        """Stores events that billing has not read yet."""
        for event in events:
            self.now_ms = max(self.now_ms, getattr(event, "at_ms", 0))
            self.entries.append(Entry(len(self.entries) + 1, self.now_ms, event))

    def read(self, to: int | None = None) -> None:
        """Billing reads all that there is, or so many entries."""
        for entry in self.entries[self.read_to : to]:
            evolve(self.state, entry)
        self.read_to = max(self.read_to, len(self.entries) if to is None else to)

    def act(self, at_ms: int | None = None) -> list[LedgerEvent]:
        """Billing reads, then appends whatever its state calls for until there is nothing more."""
        self.now_ms = max(self.now_ms, at_ms or 0)
        self.read()
        said: list[LedgerEvent] = []
        while events := effects(self.state, self.now_ms):
            assert len(said) < ROUNDS_MAX, f"billing does not come to rest: {said[-2:]}"
            said.append(events[0])
            self.append(events[0])
            self.read()
        return said

    def act_unread(self) -> None:
        """Billing appends what follows from what it has read, which may be no more than the ledger itself."""
        self.read(max((entry.seq for entry in self.entries if isinstance(entry.event, LedgerEvent)), default=0))
        for event in effects(self.state, self.now_ms)[:1]:
            self.append(event)

    def say(self, *events: Event) -> list[LedgerEvent]:
        """Something happens, and billing answers."""
        self.append(*events)
        return self.act()

    def restart(self) -> None:
        """Billing forgets everything and reads the log from the beginning."""
        self.state, self.read_to = State(), 0
        self.read()

    def ledger(self) -> list[LedgerEvent]:
        """Every event of the ledger."""
        return [entry.event for entry in self.entries if isinstance(entry.event, LedgerEvent)]

    def balance(self, account: str) -> int:
        return self.state.balances_microusd.get(account, 0)

    def wallet(self, account: str = BUYER) -> int:
        return self.balance(wallet(account))

    def held(self, job: str = JOB) -> int:
        return self.balance(hold(job))


def kinds(events: Sequence[Event]) -> list[str]:
    """The names of their types."""
    return [type(event).__name__ for event in events]


def opened(account: str = BUYER, at_ms: int = START_MS) -> AccountOpened:
    return AccountOpened(account=account, at_ms=at_ms, request_id="r", key_sha256="0")


def admitted(
    job: str = JOB,
    *,
    account: str = BUYER,
    kind: WorkloadKind = "batch",
    nodes: int = 1,
    gpus_per_node: int = 1,
    cap: int | None = DOLLAR,
    max_seconds: int | None = None,
    models: tuple[str, ...] = ("h100",),
    at_ms: int = START_MS,
) -> JobAdmitted:
    spec = JobSpec(
        models=models,
        shapes=(Shape(nodes=nodes, gpus_per_node=gpus_per_node),),
        workload=Workload(kind=kind, command=("train",)),
        interconnect="any",
        max_price_microusd_per_gpu_hour=cap,
        max_duration_seconds=max_seconds,
    )
    return JobAdmitted(account=account, job=job, request_id=job, at_ms=at_ms, request_digest="d", spec=spec)


def release_accepted(at_ms: int, job: str = JOB, account: str = BUYER) -> JobReleaseAccepted:
    return JobReleaseAccepted(account=account, job=job, request_id="stop", at_ms=at_ms)


def bid(node: str, ask: int, model: str = "h100", at_ms: int = START_MS) -> BidAccepted:
    gpu = Gpu(uuid=f"{node}-gpu0", model=model)
    return BidAccepted(
        account="provider",
        node=node,
        request_id="b",
        at_ms=at_ms,
        request_digest="d",
        gpus=(gpu,),
        terms=Terms(ask_microusd_per_gpu_hour=ask),
        place=Place(),
    )


def withdrawn(node: str, at_ms: int = START_MS) -> BidWithdrawn:
    return BidWithdrawn(account="provider", node=node, request_id="w", at_ms=at_ms)


def node_of(lease: str) -> str:
    return f"node-of-{lease}"


def provider_of(lease: str) -> str:
    return f"provider-of-{lease}"


def gang(
    *leases: str,
    price: int,
    gpus: int = 1,
    job: str = JOB,
    account: str = BUYER,
    generation: int = 1,
    provider: str | None = None,
    at_ms: int = START_MS,
) -> MarketCleared:
    """A pass that grants these leases, one node each, as the only gang."""
    grants = tuple(
        Grant(
            lease=lease,
            rank=rank,
            node=node_of(lease),
            provider=provider or provider_of(lease),
            gpus=tuple(f"{node_of(lease)}-gpu{index}" for index in range(gpus)),
        )
        for rank, lease in enumerate(leases)
    )
    granted = Gang(
        job=job,
        account=account,
        generation=generation,
        attempt=generation,
        grants=grants,
        price_microusd_per_gpu_hour=price,
        domain="",
    )
    return MarketCleared(through_seq=0, at_ms=at_ms, gangs=(granted,))


def member(lease: str) -> Member:
    return Member(lease=lease, rank=0, node=node_of(lease), provider="ignored", gpus=(), price_microusd_per_gpu_hour=0)


def forming(number: int, *leases: str, at_ms: int, job: str = JOB, account: str = BUYER) -> ClusterForming:
    members = tuple(member(lease) for lease in leases)
    return ClusterForming(
        account=account, job=job, generation=number, at_ms=at_ms, members=members, prepare_by_ms=at_ms + MINUTE
    )


def wanted(
    number: int, *attempts: int, at_ms: int, job: str = JOB, account: str = BUYER, replaces: str | None = "lost"
) -> MembersWanted:
    """Ranks that lost leases left, or to grow by if nothing is replaced."""
    ranks = tuple(Wanted(rank=attempt, attempt=attempt, replaces=replaces) for attempt in attempts)
    return MembersWanted(account=account, job=job, generation=number, at_ms=at_ms, wanted=ranks, excluded=(), within="")


def joined(number: int, lease: str, *, at_ms: int, job: str = JOB, account: str = BUYER) -> MemberJoined:
    return MemberJoined(
        account=account,
        job=job,
        generation=number,
        at_ms=at_ms,
        member=member(lease),
        attempt=1,
        prepare_by_ms=at_ms + MINUTE,
    )


def started(number: int, lease: str, *, at_ms: int, job: str = JOB, account: str = BUYER) -> MemberStarted:
    return MemberStarted(account=account, job=job, generation=number, at_ms=at_ms, lease=lease)


def ready(number: int, *, at_ms: int, job: str = JOB, account: str = BUYER) -> ClusterReady:
    return ClusterReady(account=account, job=job, generation=number, at_ms=at_ms)


def ended(number: int, lease: str, *codes: int | None, at_ms: int, job: str = JOB, account: str = BUYER) -> MemberEnded:
    exits = tuple(Exit(local_rank=index, code=code) for index, code in enumerate(codes))
    return MemberEnded(account=account, job=job, generation=number, at_ms=at_ms, lease=lease, exits=exits)


def lost(number: int, lease: str, *, at_ms: int, job: str = JOB, account: str = BUYER) -> MemberLost:
    return MemberLost(
        account=account,
        job=job,
        generation=number,
        at_ms=at_ms,
        lease=lease,
        node=node_of(lease),
        cause="node_lost",
    )


def generation_ended(number: int, lease: str, *, at_ms: int, job: str = JOB, account: str = BUYER) -> GenerationEnded:
    return GenerationEnded(account=account, job=job, generation=number, at_ms=at_ms, lease=lease)


def ended_to_grow(number: int, *, at_ms: int, job: str = JOB, account: str = BUYER) -> GenerationEnded:
    return GenerationEnded(account=account, job=job, generation=number, at_ms=at_ms, cause="growth")


def ended_to_shrink(number: int, *leaves: str, at_ms: int, job: str = JOB, account: str = BUYER) -> GenerationEnded:
    return GenerationEnded(account=account, job=job, generation=number, at_ms=at_ms, cause="shrink", leaves=leaves)


def dropped(number: int, lease: str, *, at_ms: int, job: str = JOB, account: str = BUYER) -> MemberDropped:
    """Who was to join the next generation, `number`, does not."""
    return MemberDropped(
        account=account,
        job=job,
        generation=number,
        at_ms=at_ms,
        lease=lease,
        node=node_of(lease),
        cause="prepare_failed",
    )


def given_up(
    number: int, *leases: str, attempts: tuple[int, ...] = (), at_ms: int, job: str = JOB, account: str = BUYER
) -> GrowthGivenUp:
    return GrowthGivenUp(
        account=account,
        job=job,
        generation=number,
        at_ms=at_ms,
        ranks=(9,),
        attempts=attempts,
        leases=leases,
        cause="unwanted",
    )


def released(number: int, *, at_ms: int, job: str = JOB, account: str = BUYER) -> ClusterReleased:
    return ClusterReleased(account=account, job=job, generation=number, at_ms=at_ms, reason="completed")


def covered(*spans: tuple[str, int, int, int], complete_to_ms: int, at_ms: int | None = None) -> BeatsCovered:
    """Cover as (lease, generation, from, to)."""
    return BeatsCovered(
        spans=tuple(
            CoverSpan(lease=lease, generation=number, from_ms=from_ms, to_ms=to_ms)
            for lease, number, from_ms, to_ms in spans
        ),
        complete_to_ms=complete_to_ms,
        at_ms=complete_to_ms if at_ms is None else at_ms,
    )


def generation(number: int, *leases: str, ready_ms: int, job: str = JOB, account: str = BUYER) -> list[Event]:
    """A generation that forms, starts and is ready, all at once."""
    return [
        forming(number, *leases, at_ms=ready_ms, job=job, account=account),
        *(started(number, lease, at_ms=ready_ms, job=job, account=account) for lease in leases),
        ready(number, at_ms=ready_ms, job=job, account=account),
    ]


def running(*leases: str, kind: WorkloadKind = "batch", price: int = DOLLAR, gpus: int = 1) -> World:
    """A job capped at a dollar whose first generation is ready at START_MS."""
    world = World()
    world.say(opened(), admitted(kind=kind, nodes=len(leases), gpus_per_node=gpus))
    world.say(gang(*leases, price=price, gpus=gpus))
    world.say(*generation(1, *leases, ready_ms=START_MS))
    return world


def closed(world: World) -> dict[str, int]:
    """What each lease owes by the last bill, which has to be the last thing said, and right."""
    event = world.ledger()[-1]
    assert isinstance(event, JobClosed)
    assert audit(world.entries).findings == ()
    return {line.lease: line.due_microusd for line in event.lines}
