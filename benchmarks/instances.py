"""Markets to clear in one pass: seeded ones, and those of a file.

An instance is JSON; prices are integers in one unit per GPU-hour, names are opaque. A request gets exactly `nodes`
different nodes of its model with `gpus` each, all of them asking at most `max_price`, or none.
"""

from random import Random
from typing import NamedTuple

import msgspec

from volt.contracts.bids import Place
from volt.contracts.jobs import Level
from volt_matcher.book import Book
from volt_matcher.fields import Competitor
from volt_matcher.lots import Lot, Request, Shape
from volt_matcher.topology import EVERYWHERE, Domains

REGIONS = ("ap", "eu", "sa", "us")


class Node(msgspec.Struct):
    """A node's free GPUs."""

    id: str
    model: str
    free: int
    ask: int
    fabric: str | None = None
    region: str | None = None


class Asked(msgspec.Struct):
    """What somebody wants."""

    id: str
    nodes: int
    gpus: int
    model: str
    max_price: int
    regions: list[str] | None = None
    single_fabric: bool = False


class Instance(msgspec.Struct):
    """One pass. Requests are given in the order of age."""

    nodes: list[Node]
    requests: list[Asked]

    @property
    def answerable(self) -> list[Asked]:
        """The requests that allow any region at all."""
        return [one for one in self.requests if one.regions is None or one.regions]

    @property
    def pressure(self) -> float:
        """Demand over supply, in GPUs."""
        supply = sum(node.free for node in self.nodes)
        return sum(one.nodes * one.gpus for one in self.requests) / max(1, supply)


class Kind(NamedTuple):
    """How requests look, and how much more of them there is than supply; None: as it comes."""

    name: str
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    pressure: float | None


KINDS = (
    Kind("slack", (1, 1, 2, 2, 4), (1, 2, 4, 8), None),
    Kind("large", (1, 2, 4, 8, 8, 12, 16), (2, 4, 8, 8, 8), None),
    Kind("tight-2", (1, 2, 3, 4, 6), (1, 2, 4, 8, 8), 2.0),
    Kind("tight-3", (1, 2, 4, 8, 8, 12, 16), (2, 4, 8, 8, 8), 3.0),
    Kind("tight-4", (1, 1, 2, 2, 4), (1, 2, 4, 8), 4.0),
)


def generate(requests: int, nodes: int, kind: Kind, seed: int) -> Instance:
    """A market of this size. About 40% of the requests are gangs on one fabric."""
    chance = Random(f"{requests}/{nodes}/{kind.name}/{seed}")
    models = [f"m{number}" for number in range(2 + nodes // 1500 + (nodes >= 1000))]
    supply = list(_nodes(chance, nodes, models))
    asked = [_asked(chance, f"r{number}", models, kind) for number in range(requests)]
    if kind.pressure is not None:
        _lease_out(chance, supply, int(sum(one.nodes * one.gpus for one in asked) / kind.pressure))
    return Instance(supply, asked)


def book_of(instance: Instance) -> Book:
    """The matcher's book of the instance's nodes."""
    book = Book()
    for node in instance.nodes:
        book.put(lot_of(node))
    return book


def competitors_of(instance: Instance) -> list[Competitor]:
    """The instance's answerable requests as the matcher has them."""
    return [Competitor(_request(one)) for one in instance.answerable]


def lot_of(node: Node) -> Lot:
    """A node as the matcher has it. A fabric is one wherever its nodes are."""
    region = node.region or ""
    return Lot(
        node=node.id,
        model=node.model,
        provider="provider",
        place=Place(region=region, fabric=node.fabric or ""),
        domains=_domains(node.fabric or "", region),
        ask_microusd_per_gpu_hour=node.ask,
        alive=True,
        total=node.free,
        free=tuple(f"{node.id}-{gpu}" for gpu in range(node.free)),
        memory_mib=0,
    )


def _domains(fabric: str, region: str) -> Domains:
    return {
        "fabric": f"fabric:{fabric}" if fabric else "",
        "site": f"site:{region}",
        "region": f"region:{region}" if region else "",
        "any": EVERYWHERE,
    }


def _request(one: Asked) -> Request:
    level: Level = "fabric" if one.single_fabric else "any"
    return Request(
        models=frozenset({one.model}),
        shapes=(Shape(one.nodes, one.gpus),),
        interconnect=level,
        cap_microusd_per_gpu_hour=one.max_price,
        regions=frozenset(one.regions or ()),
    )


def _nodes(chance: Random, count: int, models: list[str]) -> list[Node]:
    nodes = list[Node]()
    while len(nodes) < count:
        model, region, fabric = chance.choice(models), chance.choice(REGIONS), f"f{len(nodes)}"
        base = chance.randint(1200, 2400)
        for _ in range(min(count - len(nodes), chance.choice((8, 16, 32) if count >= 1000 else (6, 10, 16)))):
            free = chance.choices((1, 2, 4, 6, 8), (1, 1, 2, 1, 5))[0]
            ask = base + chance.randint(-300, 300)
            nodes.append(Node(f"n{len(nodes)}", model, free, ask, fabric, region))
    chance.shuffle(nodes)
    return nodes


def _asked(chance: Random, name: str, models: list[str], kind: Kind) -> Asked:
    nodes, gpus, is_gang = chance.choice(kind.nodes), chance.choice(kind.gpus), chance.random() < 0.4
    regions = chance.sample(REGIONS, chance.choice((1, 2, 3))) if chance.random() < 0.3 else None
    price = chance.randint(1500, 4000)
    return Asked(name, max(2, nodes) if is_gang else nodes, gpus, chance.choice(models), price, regions, is_gang)


def _lease_out(chance: Random, nodes: list[Node], left: int) -> None:
    """Leases GPUs away until so many are left."""
    free = sum(node.free for node in nodes)
    for node in chance.sample(nodes, len(nodes)):
        if free <= left:
            return
        gone = chance.choice((node.free, node.free, node.free // 2))
        node.free -= gone
        free -= gone
