"""Commands as a test needs them, and a bid-intake to answer them."""

from collections.abc import Iterable

from msgspec.structs import replace

from volt.contracts.bids import ChangeBid, DrainNode, Gpu, PlaceBid, ResumeNode, Terms, WithdrawBid
from volt.contracts.errors import Refused
from volt.contracts.ids import key_sha256
from volt.contracts.jobs import Constraints, OpenAccount, ReleaseJob, RequestJob, RequestQuote, ScaleJob, Workload
from volt.contracts.log import Entry
from volt.contracts.messages import Asked, Command, Event
from volt.contracts.subjects import command_account, command_bid, command_job
from volt_bid_intake.domain import State, decide, evolve

USD = 1_000_000
AT_MS = 1_700_000_000_000


def open_account(account: str = "lab", request_id: str = "open", key: str = "secret") -> OpenAccount:
    return OpenAccount(account=account, request_id=request_id, key_sha256=key_sha256(key))


def request(
    *,
    account: str = "lab",
    request_id: str = "r1",
    gpu: str | tuple[str, ...] = "h100-80gb",
    count: int = 8,
    nodes: int | None = None,
    workload: Workload | None = None,
    constraints: Constraints | None = None,
    cap_microusd: int | None = None,
    duration_seconds: int | None = None,
) -> RequestJob:
    return RequestJob(
        account=account,
        request_id=request_id,
        gpu=gpu,
        count=count,
        nodes=nodes,
        workload=workload or run(),
        constraints=constraints or Constraints(),
        max_price_microusd_per_gpu_hour=cap_microusd,
        max_duration_seconds=duration_seconds,
    )


def run(*command: str) -> Workload:
    return Workload(command=command or ("python", "train.py"))


def with_env(**env: str) -> Workload:
    return replace(run(), env=env)


def release(job: str, *, account: str = "lab", request_id: str = "end") -> ReleaseJob:
    return ReleaseJob(account=account, request_id=request_id, job=job)


def gpu(uuid: str = "GPU-0", model: str = "NVIDIA H100 80GB HBM3", memory_mib: int = 81_559) -> Gpu:
    return Gpu(uuid=uuid, model=model, memory_mib=memory_mib)


def gpus(count: int, prefix: str = "GPU") -> tuple[Gpu, ...]:
    return tuple(gpu(f"{prefix}-{number}") for number in range(count))


def bid(
    *,
    account: str = "lab",
    node: str = "n1",
    request_id: str = "b1",
    cards: tuple[Gpu, ...] | None = None,
    ask_microusd: int = 2 * USD,
) -> PlaceBid:
    return PlaceBid(
        account=account,
        node=node,
        request_id=request_id,
        gpus=gpus(8, f"GPU-{node}") if cards is None else cards,
        terms=Terms(ask_microusd_per_gpu_hour=ask_microusd),
    )


def change(
    *,
    account: str = "lab",
    node: str = "n1",
    request_id: str = "c1",
    model: str | None = None,
    offer: bool = False,
    ask_microusd: int | None = None,
    paused: bool | None = None,
) -> ChangeBid:
    return ChangeBid(
        account=account,
        node=node,
        request_id=request_id,
        model=model,
        offer=offer,
        ask_microusd_per_gpu_hour=ask_microusd,
        paused=paused,
    )


def withdraw(*, account: str = "lab", node: str = "n1", request_id: str = "w1") -> WithdrawBid:
    return WithdrawBid(account=account, node=node, request_id=request_id)


def subject_of(command: Command) -> str:
    """Where a command arrives."""
    match command:
        case OpenAccount(account=account):
            return command_account(account)
        case RequestJob() | ReleaseJob() | RequestQuote() | ScaleJob():
            return command_job(command.account)
        case PlaceBid() | ChangeBid() | WithdrawBid() | DrainNode() | ResumeNode():
            account, node = command.account, command.node
            return command_bid(account, node)
        case _:
            raise AssertionError(f"bid-intake takes no {type(command).__name__}")


class Intake:
    """Bid-intake without a bus: its answers are folded as they are given."""

    def __init__(self, *accounts: str) -> None:
        self.state = State()
        self.log: list[Event] = []
        self._asked = 0
        for account in accounts:
            self.ask(open_account(account))

    def ask(self, command: Command, *, seq: int | None = None) -> tuple[Event, ...]:
        """Delivers a command, for the first time unless it says as which."""
        self._asked += 1
        events = decide(self.state, command, self.asked(command, self._asked if seq is None else seq))
        for event in events:
            self.fold(event)
        return events

    def fold(self, event: Event) -> None:
        """Takes in an event, of its own or of the market."""
        self.log.append(event)
        evolve(self.state, Entry(len(self.log), event_at_ms(event), event))

    def answers(self, command: Command) -> Event:
        """The one event that answers a command."""
        (event,) = self.ask(command)
        return event

    def asked(self, command: Command, seq: int) -> Asked:
        return Asked(subject_of(command), seq, AT_MS + seq, AT_MS + seq)

    def dead(self, command: Command) -> str:
        """The code with which nobody is answered."""
        try:
            events = self.ask(command)
        except Refused as refused:
            return refused.code
        raise AssertionError(f"answered: {events}")


def folded(log: Iterable[Event]) -> State:
    """The state that a process has which starts from this log."""
    state = State()
    for seq, event in enumerate(log, start=1):
        evolve(state, Entry(seq, event_at_ms(event), event))
    return state


def event_at_ms(event: Event) -> int:
    at_ms = getattr(event, "at_ms", None)
    assert isinstance(at_ms, int)
    return at_ms
