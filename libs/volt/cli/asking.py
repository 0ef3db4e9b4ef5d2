"""What a job may ask for, as options of the command line."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import click
import msgspec

from volt.contracts.bids import Tier
from volt.contracts.errors import Reason, Refused
from volt.contracts.gpus import Interface, parse_ask
from volt.contracts.jobs import PREFERENCE_PERCENT, Level, OnLoss, WorkloadKind
from volt.contracts.units import parse_permille
from volt.sdk.calls import JobTerms

KINDS: tuple[WorkloadKind, ...] = ("ddp", "fsdp", "ray", "service", "sweep", "batch", "inference")
LEVELS: tuple[Level, ...] = ("nvlink", "fabric", "site", "region", "any")
INTERFACES: tuple[Interface, ...] = ("sxm", "pcie", "oam", "superchip")
POLICIES: tuple[OnLoss, ...] = ("replace", "shrink", "stop")
TIERS: tuple[Tier, ...] = ("community", "datacenter")

F = TypeVar("F", bound=Callable[..., object])


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The values of `OPTIONS`."""

    gpus: tuple[str, ...]
    count: int | None
    nodes: int | None
    kind: WorkloadKind
    processes_per_node: int | None
    image: str
    variables: tuple[str, ...]
    interconnect: Level | None
    prefer: Level | None
    prefer_percent: int
    min_bandwidth: int
    interface: Interface | None
    regions: tuple[str, ...]
    regions_denied: tuple[str, ...]
    countries: tuple[str, ...]
    countries_denied: tuple[str, ...]
    min_memory_gib: int
    min_reliability: str
    tier: Tier | None
    providers_excluded: tuple[str, ...]
    max_price: str | None
    max_duration: str | None
    max_wait: str | None
    on_loss: OnLoss
    min_nodes: int
    retries: int


OPTIONS = (
    click.option(
        "--gpu",
        "gpus",
        required=True,
        multiple=True,
        help="A model such as h100 or h100-80gb, or MODEL:COUNT:MEMORY; several, or a list with commas: any will do.",
    ),
    click.option("--count", type=int, help="GPUs in all, unless --gpu says so."),
    click.option("--nodes", type=int, help="Nodes to spread them over; the default is what clears cheapest."),
    click.option(
        "--kind", type=click.Choice(KINDS), default="ddp", show_default=True, help="It sets how near nodes must be."
    ),
    click.option("--processes-per-node", type=int, help="The default is one per GPU for ddp and fsdp, else one."),
    click.option(
        "--image",
        default="",
        help="A container image: only nodes that run images are taken then, and without one only others.",
    ),
    click.option("--env", "variables", multiple=True, help="NAME=VALUE for every process."),
    click.option("--interconnect", type=click.Choice(LEVELS), help="How near the nodes must be."),
    click.option("--prefer", type=click.Choice(LEVELS), help="A nearer level that may cost more."),
    click.option(
        "--prefer-percent", type=int, default=PREFERENCE_PERCENT, show_default=True, help="How much more, per cent."
    ),
    click.option("--min-bandwidth", type=int, default=0, help="Of each node on its fabric, in gigabits per second."),
    click.option("--interface", type=click.Choice(INTERFACES), help="How the GPUs are built in."),
    click.option("--region", "regions", multiple=True, help="A region to allow."),
    click.option("--not-region", "regions_denied", multiple=True, help="A region to leave out."),
    click.option("--country", "countries", multiple=True, help="A country to allow, like DE."),
    click.option("--not-country", "countries_denied", multiple=True, help="A country to leave out."),
    click.option("--min-memory", "min_memory_gib", type=int, default=0, help="Of each GPU, in GiB."),
    click.option("--min-reliability", default="0", help="Of each node, per cent, like 99.5."),
    click.option("--tier", type=click.Choice(TIERS), help="The least kind of house that a node stands in."),
    click.option("--not-provider", "providers_excluded", multiple=True, help="An account whose nodes to leave out."),
    click.option("--max-price", help="The most to pay in dollars per GPU-hour, like 2.50."),
    click.option("--max-duration", help="End the job after this long, like 24h."),
    click.option("--max-wait", help="How long to wait for a cluster, like 10m; 0s is for an answer now."),
    click.option(
        "--on-loss",
        type=click.Choice(POLICIES),
        default="replace",
        show_default=True,
        help="When a node is lost: another takes its place; the others go on without it; or the job ends.",
    ),
    click.option("--min-nodes", type=int, default=1, help="With --on-loss shrink: with fewer nodes left it ends."),
    click.option("--retries", type=int, default=0, show_default=True, help="How often to begin again when it fails."),
)


def job_options(command: F) -> F:
    """Gives a command all of `OPTIONS`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def terms_of(options: dict[str, object], command: Sequence[str]) -> JobTerms:
    """The terms of a request for a job that runs `command`. Raises Refused."""
    asked = msgspec.convert(options, Asked)
    asks = [parse_ask(text) for text in asked.gpus]
    counts = {ask.count for ask in asks if ask.count is not None} | ({asked.count} - {None})
    if len(counts) != 1:
        raise click.UsageError("say once how many GPUs, by --count or in --gpu")
    return JobTerms(
        gpu=[name for ask in asks for name in ask.names],
        count=next(count for count in counts if count is not None),
        nodes=asked.nodes,
        command=command,
        kind=asked.kind,
        processes_per_node=asked.processes_per_node,
        image=asked.image,
        env=_environment(asked.variables),
        interconnect=asked.interconnect,
        preferred_interconnect=asked.prefer,
        preference_percent=asked.prefer_percent,
        min_bandwidth_gbps=asked.min_bandwidth,
        interface=asked.interface,
        regions=asked.regions,
        regions_denied=asked.regions_denied,
        countries=asked.countries,
        countries_denied=asked.countries_denied,
        min_memory_mib=max([asked.min_memory_gib * 1024, *(ask.memory_mib for ask in asks)]),
        min_reliability_permille=_permille(asked.min_reliability),
        tier=asked.tier,
        providers_excluded=asked.providers_excluded,
        max_price_usd_per_gpu_hour=asked.max_price,
        max_duration=asked.max_duration,
        max_wait=asked.max_wait,
        on_loss=asked.on_loss,
        min_nodes=asked.min_nodes,
        retries=asked.retries,
    )


def _environment(variables: Sequence[str]) -> dict[str, str]:
    environment = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not equals:
            message = f"{variable!r} sets nothing; write it like NAME=VALUE"
            raise Refused(Reason(code="invalid_env", message=message, field="env", seen=variable))
        environment[name] = value
    return environment


def _permille(text: str) -> int:
    try:
        return parse_permille(text)
    except ValueError as error:
        raise Refused(Reason(code="invalid_percent", message=str(error), field="min_reliability", seen=text)) from error
