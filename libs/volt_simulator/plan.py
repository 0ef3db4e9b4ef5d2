"""What happens in a run, as data: drawn from a seed, and made smaller to find what of it matters."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from volt.contracts.jobs import OnLoss, Recovery, WorkloadKind
from volt.contracts.units import MS_PER_SECOND

SECOND_MS = MS_PER_SECOND
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
MODELS = ("h100-80gb", "a100-80gb", "l4-24gb")
GPUS_PER_NODE = 4
NODES_PER_FABRIC = 8
FABRICS_PER_SITE = 2
SITES_PER_REGION = 2
NODES_PER_PROVIDER = 6
JOBS_PER_BUYER = 5
FAULTS_END_PERMILLE = 800
"""Of the run: from then on nothing fails, so that all has to settle."""
ServiceName = Literal["bid-intake", "matcher", "provisioner", "health-monitor", "billing"]
SERVICES: tuple[ServiceName, ...] = ("bid-intake", "matcher", "provisioner", "health-monitor", "billing")
Ending = Literal["succeeds", "fails", "endless"]
POLICIES: tuple[OnLoss, ...] = ("replace", "shrink", "stop")
ENDINGS: tuple[Ending, ...] = ("succeeds", "fails", "endless")
FaultKind = Literal[
    "bus_away",
    "switch_fails",
    "service_dies",
    "service_cut",
    "node_cut",
    "node_freezes",
    "agent_freezes",
    "node_dies",
    "agent_dies",
    "gpu_fails",
    "gpu_vanishes",
    "twin",
    "withdraws",
    "pauses",
    "reprices",
    "drains",
]
NODE_FAULTS: tuple[tuple[FaultKind, float, int], ...] = (
    ("node_cut", 0.5, 15 * SECOND_MS),
    ("node_freezes", 0.2, 15 * SECOND_MS),
    ("agent_freezes", 0.2, 15 * SECOND_MS),
    ("node_dies", 0.3, 60 * SECOND_MS),
    ("agent_dies", 0.3, 5 * SECOND_MS),
    ("twin", 0.1, 60 * SECOND_MS),
    ("withdraws", 0.1, 0),
    ("pauses", 0.1, 120 * SECOND_MS),
    ("reprices", 0.3, 0),
    ("gpu_fails", 0.4, 120 * SECOND_MS),
    ("gpu_vanishes", 0.4, 120 * SECOND_MS),
    ("drains", 0.3, 300 * SECOND_MS),
)
"""What befalls nodes: how often for four nodes in an hour, and for how long, typically."""


@dataclass(frozen=True)
class NodePlan:
    """A machine with its agent. `drift_ppm` is how much faster its clock runs."""

    node: str
    account: str
    model: str
    ask_microusd: int
    region: str
    site: str
    fabric: str
    drift_ppm: int


@dataclass(frozen=True)
class JobPlan:
    """A request and what its buyer does later. Times after the request."""

    at_ms: int
    account: str
    request: str
    model: str
    nodes: int
    gpus_per_node: int
    kind: WorkloadKind
    cap_microusd: int | None
    works_ms: int
    ending: Ending
    max_duration_seconds: int | None
    max_wait_seconds: int | None
    cancel_after_ms: int | None
    scale_after_ms: int | None
    scale_to_nodes: int
    recovery: Recovery


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at `at_ms` and is over after `for_ms`. `whom` is a service or a node.

    bus_away: nobody reaches the bus. switch_fails: no node of a site, which `whom` is, does. service_dies: it starts
    afresh after that time. service_cut, node_cut: it does not reach the bus. node_freezes: the whole machine stands
    still; agent_freezes: its agent alone does. node_dies: the machine is off, and starts afresh; agent_dies: its agent
    alone. gpu_fails, gpu_vanishes: the driver tells so of one of its GPUs, and after that time its agent starts afresh
    and finds it well. twin: while the node does not reach the bus, another agent of its identity starts.
    withdraws, pauses, reprices, drains: what its provider does with its bid, and with the node.
    """

    at_ms: int
    kind: FaultKind
    whom: str
    for_ms: int


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    nodes: tuple[NodePlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]
    run_ms: int
    ack_loss_permyriad: int = 20
    """How many acknowledgements of ten thousand are lost while there are faults."""
    death_permyriad: int = 50
    """At how many of ten thousand writes a service dies, before or behind it."""

    @property
    def faults_end_ms(self) -> int:
        return self.run_ms * FAULTS_END_PERMILLE // 1000


@dataclass
class _Draw:
    """Draws a plan."""

    seed: int
    nodes: int
    jobs: int
    run_ms: int
    chance: Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = Random(f"volt/{self.seed}")


def draw(seed: int, nodes: int, jobs: int, hours: float) -> Plan:
    """The plan of a seed."""
    drawing = _Draw(seed, nodes, jobs, round(hours * HOUR_MS))
    return Plan(
        seed=seed,
        nodes=tuple(_node(drawing, number) for number in range(nodes)),
        jobs=tuple(sorted((_job(drawing, number) for number in range(jobs)), key=lambda job: job.at_ms)),
        faults=tuple(sorted(_faults(drawing), key=lambda fault: (fault.at_ms, fault.kind, fault.whom))),
        run_ms=drawing.run_ms,
    )


def _node(drawing: _Draw, number: int) -> NodePlan:
    chance = drawing.chance
    fabric = number // NODES_PER_FABRIC
    site, region = fabric // FABRICS_PER_SITE, fabric // FABRICS_PER_SITE // SITES_PER_REGION
    model = MODELS[fabric % len(MODELS)]
    return NodePlan(
        node=f"n{number}",
        account=f"provider{number // NODES_PER_PROVIDER}",
        model=model,
        ask_microusd=chance.randrange(300_000, 2_000_000, 1_000),
        region=f"region{region}",
        site=f"site{site}",
        fabric=f"fabric{fabric}" if chance.random() < 0.9 else "",
        drift_ppm=chance.randint(-900, 900),
    )


def _job(drawing: _Draw, number: int) -> JobPlan:
    chance = drawing.chance
    nodes = chance.choices((1, 2, 3, 4), (5, 3, 1, 1))[0]
    ending: Ending = chance.choices(ENDINGS, (6, 1, 3))[0]
    is_scaled = chance.random() < 0.3
    gang: WorkloadKind = chance.choices(("ddp", "fsdp", "batch"), (6, 2, 2))[0]
    return JobPlan(
        at_ms=chance.randrange(0, drawing.run_ms * 7 // 10),
        account=f"buyer{number // JOBS_PER_BUYER}",
        request=f"r{number}",
        model=chance.choice(MODELS),
        nodes=nodes,
        gpus_per_node=chance.choice((1, 2, GPUS_PER_NODE)),
        kind=gang,
        cap_microusd=chance.choice((None, 1_000_000, 2_000_000)),
        works_ms=round(chance.lognormvariate(0, 1) * 10 * MINUTE_MS),
        ending=ending,
        max_duration_seconds=chance.choice((None, None, 1_800)),
        max_wait_seconds=chance.choice((None, None, None, 0, 600)),
        cancel_after_ms=round(chance.expovariate(1 / (20 * MINUTE_MS))) if chance.random() < 0.3 else None,
        scale_after_ms=round(chance.expovariate(1 / (10 * MINUTE_MS))) if is_scaled else None,
        scale_to_nodes=chance.randint(1, 6),
        recovery=_recovery(Random(f"recovery/{drawing.seed}/{number}"), nodes),
    )


def _recovery(chance: Random, nodes: int) -> Recovery:
    on_loss: OnLoss = chance.choices(POLICIES, (6, 3, 1))[0]
    fewest = chance.randint(1, nodes) if on_loss == "shrink" else 1
    return Recovery(on_loss=on_loss, min_nodes=fewest, retries=chance.choice((0, 0, 2)))


def _faults(drawing: _Draw) -> Iterator[Fault]:
    chance, nodes = drawing.chance, [f"n{number}" for number in range(drawing.nodes)]
    hours = drawing.run_ms / HOUR_MS
    end_ms = drawing.run_ms * FAULTS_END_PERMILLE // 1000

    def some(per_hour: float) -> range:
        return range(round(per_hour * hours * chance.uniform(0.5, 1.5) + chance.random()))

    def moment() -> int:
        return chance.randrange(0, end_ms)

    def lasting(typical_ms: int) -> int:
        return min(round(chance.lognormvariate(0, 1.2) * typical_ms), end_ms)

    for _ in some(2):
        yield Fault(moment(), "bus_away", "", lasting(15 * SECOND_MS))
    yield from _switches(drawing, hours, end_ms)
    for _ in some(12):
        yield Fault(moment(), "service_dies", chance.choice(SERVICES), lasting(2 * SECOND_MS))
    for _ in some(4):
        yield Fault(moment(), "service_cut", chance.choice(SERVICES), lasting(20 * SECOND_MS))
    per_node_hour = len(nodes) / 4
    for kind, share, typical_ms in NODE_FAULTS:
        for _ in some(per_node_hour * share):
            yield Fault(moment(), kind, chance.choice(nodes), lasting(typical_ms) if typical_ms else 0)


def _switches(drawing: _Draw, hours: float, end_ms: int) -> Iterator[Fault]:
    """Many nodes at once that are silent and live."""
    chance = Random(f"switch/{drawing.seed}")
    sites = -(-drawing.nodes // (NODES_PER_FABRIC * FABRICS_PER_SITE))
    for _ in range(round(hours * chance.uniform(0.5, 1.5) + chance.random())):
        for_ms = min(round(chance.lognormvariate(0, 1) * 30 * SECOND_MS), end_ms)
        yield Fault(chance.randrange(0, end_ms), "switch_fails", f"site{chance.randrange(sites)}", for_ms)
