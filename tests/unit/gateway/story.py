"""A story that the log could tell: one buyer, one job on two nodes, a lost node, the bill."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.unit.gateway.failing import faults
from volt.contracts import bids, clusters, jobs, ledger, market, nodes
from volt.contracts.errors import Reason
from volt.contracts.ids import job_id, key_sha256, lease_id, quote_id
from volt.contracts.log import Entry
from volt.contracts.messages import Event
from volt_gateway.domain import Views, evolve

T0_MS = 1_700_000_000_000
BUYER, PROVIDER, STRANGER = "alice", "lab", "mallory"
BUYER_KEY = "alice's key"
REQUEST = "request-1"
JOB = job_id(BUYER, REQUEST)
QUOTE = quote_id(BUYER, "q")
MODEL = "h100-80gb"
PRICE_MICROUSD = 1_900_000
CAP_MICROUSD = 2_500_000

SPEC = jobs.JobSpec(
    models=(MODEL,),
    shapes=(jobs.Shape(nodes=2, gpus_per_node=2),),
    workload=jobs.Workload(command=("python", "train.py"), env={"TOKEN": "a secret"}),
    interconnect="fabric",
    max_price_microusd_per_gpu_hour=CAP_MICROUSD,
    max_duration_seconds=3_600,
)
REASON = Reason(code="unknown_gpu_model", message="there is no such GPU", field="gpu", seen="h1000", choices=("h100",))


def account_opened(account: str = BUYER, key: str = BUYER_KEY) -> Event:
    return jobs.AccountOpened(account=account, at_ms=T0_MS, request_id="open", key_sha256=key_sha256(key))


def bid(node: str, *, provider: str = PROVIDER, ask_microusd: int = PRICE_MICROUSD, region: str = "eu") -> Event:
    return bids.BidAccepted(
        account=provider,
        node=node,
        request_id=f"bid-{node}",
        at_ms=T0_MS,
        request_digest="d",
        gpus=tuple(bids.Gpu(uuid=f"GPU-{node}-{number}", model=MODEL, memory_mib=81_920) for number in (0, 1)),
        terms=bids.Terms(ask_microusd_per_gpu_hour=ask_microusd),
        place=bids.Place(region=region, fabric="A"),
    )


def withdrawn(node: str) -> Event:
    return bids.BidWithdrawn(account=PROVIDER, node=node, request_id="w", at_ms=T0_MS)


def alive(node: str, provider: str = PROVIDER) -> Event:
    return nodes.NodeAlive(account=provider, node=node, incarnation="i1", at_ms=T0_MS)


def node_lost(node: str, provider: str = PROVIDER) -> Event:
    return nodes.NodeLost(account=provider, node=node, incarnation="i1", at_ms=T0_MS, cause="silent")


def admitted(request: str = REQUEST, account: str = BUYER, digest: str = "d1") -> Event:
    return jobs.JobAdmitted(
        account=account,
        job=job_id(account, request),
        request_id=request,
        at_ms=T0_MS + 1,
        request_digest=digest,
        spec=SPEC,
    )


def rejected(request: str = REQUEST, reason: Reason = REASON, digest: str = "d2") -> Event:
    return jobs.JobRejected(
        account=BUYER,
        job=job_id(BUYER, request),
        request_id=request,
        at_ms=T0_MS + 2,
        request_digest=digest,
        reason=reason,
    )


def release_accepted(job: str = JOB) -> Event:
    return jobs.JobReleaseAccepted(account=BUYER, job=job, request_id="r", at_ms=T0_MS + 90)


def asked_of_the_market() -> list[Event]:
    """A quote, answered and refused."""
    return [
        jobs.QuoteAdmitted(account=BUYER, job=QUOTE, request_id="q", at_ms=T0_MS, request_digest="d", spec=SPEC),
        jobs.QuoteRejected(account=BUYER, job=QUOTE, request_id="q", at_ms=T0_MS, request_digest="e", reason=REASON),
    ]


def credited(account: str = BUYER) -> Event:
    grant = transfer("credit", ledger.CREDIT, ledger.wallet(account), ledger.FIRST_CREDIT_MICROUSD)
    return ledger.AccountCredited(account=account, at_ms=T0_MS, transfers=(grant,))


def transfer(name: str, debit: str, credit: str, amount_microusd: int) -> ledger.Transfer:
    return ledger.Transfer(id=name, debit=debit, credit=credit, amount_microusd=amount_microusd)


def funded(job: str = JOB, amount_microusd: int = 10_000_000) -> Event:
    held = transfer(f"hold/{job}", ledger.wallet(BUYER), ledger.hold(job), amount_microusd)
    return ledger.JobFunded(
        account=BUYER, job=job, at_ms=T0_MS + 3, transfers=(held,), cap_microusd_per_gpu_hour=CAP_MICROUSD
    )


def unfunded() -> Event:
    return ledger.JobUnfunded(
        account=BUYER, job=JOB, at_ms=T0_MS + 3, needed_microusd=10_000_000, balance_microusd=5_000_000
    )


def waiting(job: str = JOB) -> market.Waiting:
    return market.Waiting(
        job=job,
        account=BUYER,
        binding="free_gpus",
        message="the largest node has 1 free",
        infeasible=False,
        funnel=(market.FilterCount(filter="model", seen=4, kept=2),),
        alternatives=(market.Alternative(nodes=1, price_microusd_per_gpu_hour=PRICE_MICROUSD, gpus=2),),
    )


def cleared(*gangs: market.Gang, waiting: Sequence[market.Waiting] = ()) -> Event:
    return market.MarketCleared(through_seq=1, at_ms=T0_MS + 4, gangs=gangs, waiting=tuple(waiting))


def gang(*hosts: str, job: str = JOB, generation: int = 1, first_lease: int = 1, first_rank: int = 0) -> market.Gang:
    grants = [
        market.Grant(
            lease=lease_id(job, first_lease + number),
            rank=first_rank + number,
            node=host,
            provider=PROVIDER,
            gpus=(f"GPU-{host}-0", f"GPU-{host}-1"),
        )
        for number, host in enumerate(hosts)
    ]
    return market.Gang(
        job=job,
        account=BUYER,
        generation=generation,
        attempt=generation,
        grants=tuple(grants),
        price_microusd_per_gpu_hour=PRICE_MICROUSD,
        domain="fabric:eu/A",
    )


def member(host: str, number: int, rank: int) -> clusters.Member:
    return clusters.Member(
        lease=lease_id(JOB, number),
        rank=rank,
        node=host,
        provider=PROVIDER,
        gpus=(f"GPU-{host}-0", f"GPU-{host}-1"),
        price_microusd_per_gpu_hour=PRICE_MICROUSD,
    )


def forming(*members: clusters.Member, generation: int = 1, replaces: tuple[str, ...] = ()) -> Event:
    return clusters.ClusterForming(
        account=BUYER,
        job=JOB,
        generation=generation,
        at_ms=T0_MS + 5,
        members=members,
        replaces=replaces,
        prepare_by_ms=T0_MS + 60_000,
    )


@dataclass(frozen=True)
class Cluster:
    """Events of one generation of the story's cluster."""

    generation: int = 1

    def prepared(self, number: int) -> Event:
        return clusters.MemberPrepared(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 6,
            lease=lease_id(JOB, number),
            address=f"10.0.0.{number}",
            port=29_500,
        )

    def starting(self) -> Event:
        manifest = clusters.Manifest(
            job=JOB,
            generation=self.generation,
            master_address="10.0.0.1",
            master_port=29_500,
            world_size=4,
            nodes=(),
        )
        return clusters.ClusterStarting(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 7,
            manifest=manifest,
            start_by_ms=T0_MS + 60_000,
        )

    def started(self, number: int) -> Event:
        return clusters.MemberStarted(
            account=BUYER, job=JOB, generation=self.generation, at_ms=T0_MS + 8, lease=lease_id(JOB, number)
        )

    def ready(self) -> Event:
        return clusters.ClusterReady(account=BUYER, job=JOB, generation=self.generation, at_ms=T0_MS + 9)

    def lost(self, number: int, host: str) -> Event:
        return clusters.MemberLost(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 20,
            lease=lease_id(JOB, number),
            node=host,
            cause="node_lost",
        )

    def ended(self, number: int) -> Event:
        return clusters.GenerationEnded(
            account=BUYER, job=JOB, generation=self.generation, at_ms=T0_MS + 21, lease=lease_id(JOB, number)
        )

    def wanted(self, rank: int) -> Event:
        return clusters.MembersWanted(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 22,
            wanted=(clusters.Wanted(rank=rank, attempt=2),),
            excluded=(),
            within="fabric:eu/A",
        )

    def joined(self, joining: clusters.Member) -> Event:
        return clusters.MemberJoined(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 24,
            member=joining,
            attempt=2,
            prepare_by_ms=T0_MS + 60_000,
        )

    def exited(self, number: int, code: int = 0) -> Event:
        return clusters.MemberEnded(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 50,
            lease=lease_id(JOB, number),
            exits=(clusters.Exit(local_rank=0, code=code), clusters.Exit(local_rank=1, signal=9, out_of_memory=True)),
        )

    def released(self, reason: clusters.ReleaseReason = "completed", exit_code: int | None = 0) -> Event:
        return clusters.ClusterReleased(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 60,
            reason=reason,
            exit_code=exit_code,
            first_cause="" if reason == "completed" else "rank 1 exited 1",
        )

    def cleared(self, number: int, host: str) -> Event:
        return clusters.LeaseCleared(
            account=BUYER,
            job=JOB,
            generation=self.generation,
            at_ms=T0_MS + 61,
            lease=lease_id(JOB, number),
            node=host,
        )


def bill_line(number: int, due_microusd: int) -> ledger.BillLine:
    return ledger.BillLine(
        lease=lease_id(JOB, number),
        provider=PROVIDER,
        gpus=2,
        price_microusd_per_gpu_hour=PRICE_MICROUSD,
        through_ms=T0_MS + 60,
        billable_ms=50,
        due_microusd=due_microusd,
        fee_microusd=due_microusd * ledger.FEE_BASIS_POINTS // 10_000,
    )


def charged(name: str, *lines: ledger.BillLine, amount_microusd: int) -> Event:
    paid = transfer(name, ledger.hold(JOB), ledger.pending(PROVIDER), amount_microusd)
    return ledger.ChargesPosted(account=BUYER, job=JOB, at_ms=T0_MS + 70, transfers=(paid,), lines=lines)


def closed(*lines: ledger.BillLine, returned_microusd: int) -> Event:
    back = transfer("return", ledger.hold(JOB), ledger.wallet(BUYER), returned_microusd)
    return ledger.JobClosed(account=BUYER, job=JOB, at_ms=T0_MS + 80, transfers=(back,), lines=lines)


def funds_events() -> list[Event]:
    return [
        ledger.MembersFunded(
            account=BUYER,
            job=JOB,
            at_ms=T0_MS + 23,
            generation=2,
            attempts=(2,),
            cap_microusd_per_gpu_hour=CAP_MICROUSD,
        ),
        ledger.HoldAdjusted(account=BUYER, job=JOB, at_ms=T0_MS + 25, covers_to_ms=T0_MS + 3_600_000),
        ledger.FundsLow(account=BUYER, job=JOB, at_ms=T0_MS + 26, exhausted_at_ms=T0_MS + 1_800_000),
    ]


def whole_story() -> list[Event]:
    """A job from its request to its bill, with one lost node replaced."""
    first, second = Cluster(1), Cluster(2)
    return [
        account_opened(),
        account_opened(PROVIDER, "the lab's key"),
        credited(),
        *(bid(node) for node in ("n1", "n2", "n3")),
        *(alive(node) for node in ("n1", "n2", "n3")),
        admitted(),
        funded(),
        cleared(waiting=[waiting()]),
        cleared(gang("n1", "n2")),
        forming(member("n1", 1, 0), member("n2", 2, 1)),
        first.prepared(1),
        first.prepared(2),
        first.starting(),
        first.started(1),
        first.started(2),
        first.ready(),
        nodes.NodeUnknown(account=PROVIDER, node="n2", incarnation="i1", at_ms=T0_MS + 18),
        node_lost("n2"),
        first.lost(2, "n2"),
        first.ended(2),
        forming(member("n1", 1, 0), generation=2, replaces=(lease_id(JOB, 2),)),
        second.wanted(1),
        *funds_events(),
        cleared(gang("n3", generation=2, first_lease=3, first_rank=1)),
        second.joined(member("n3", 3, 1)),
        second.prepared(1),
        second.prepared(3),
        second.starting(),
        second.started(1),
        second.started(3),
        second.ready(),
        *asked_of_the_market(),
        charged("c1", bill_line(1, 100), bill_line(2, 90), amount_microusd=190),
        second.exited(1),
        second.exited(3),
        second.released(),
        second.cleared(1, "n1"),
        second.cleared(3, "n3"),
        closed(bill_line(1, 150), bill_line(3, 60), returned_microusd=9_999_700),
        rejected("request-2"),
        jobs.CommandRejected(account=BUYER, at_ms=T0_MS, command_subject="cmd.alice.job", command_seq=7, reason=REASON),
        bids.BidRejected(account=STRANGER, node="n1", request_id="x", at_ms=T0_MS, request_digest="d", reason=REASON),
        withdrawn("n3"),
        *faults(PROVIDER, "n1", T0_MS),
    ]


def entries(events: Iterable[Event], first_seq: int = 1) -> list[Entry]:
    """Events at consecutive places of the log."""
    return [Entry(first_seq + number, T0_MS + number, event) for number, event in enumerate(events)]


@dataclass
class Projected:
    """Views in memory, as if every document were loaded."""

    views: Views = field(default_factory=Views)
    seq: int = 0

    def tell(self, *events: Event) -> "Projected":
        for entry in entries(events, self.seq + 1):
            evolve(self.views, entry)
            self.seq = entry.seq
        return self
