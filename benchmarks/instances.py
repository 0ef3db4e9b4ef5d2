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


class Mix(NamedTuple):
    """How many nodes requests want, and how many GPUs on each."""

    nodes: tuple[int, ...]
    gpus: tuple[int, ...]


class Prices(NamedTuple):
    """Asks are near their fabric's, which is between `low` and `high`; caps are between `least` and `most`."""

    low: int
    high: int
    near_percent: int
    least: int
    most: int
    step: int


class Kind(NamedTuple):
    """How large requests may be, and how much more of them there is than supply; None: as it comes."""

    name: str
    mixes: tuple[Mix, ...]
    pressure: int | None


SMALL = Mix((1, 1, 2, 2, 4), (1, 2, 4, 8))
MIDDLE = Mix((1, 2, 3, 4, 6), (1, 2, 4, 8, 8))
LARGE = Mix((1, 2, 4, 8, 8, 12, 16), (2, 4, 8, 8, 8))
KINDS = (
    Kind("slack", (SMALL,), None),
    Kind("large", (LARGE,), None),
    Kind("tight-2", (SMALL, MIDDLE, LARGE), 2),
    Kind("tight-3", (SMALL, MIDDLE, LARGE), 3),
    Kind("tight-4", (SMALL, MIDDLE, LARGE), 4),
)
PRICES = (
    Prices(1200, 2400, 15, 1500, 4000, 1),
    Prices(1900, 2100, 5, 1850, 2500, 1),
    Prices(500, 6000, 30, 800, 9000, 1),
    Prices(1500, 2500, 20, 1500, 4000, 100),
)
FABRICS = ((3, 4, 6), (6, 10, 16), (8, 16, 32), (48, 64))
"""How many nodes a fabric has."""
NO_FABRIC_PERCENT = (0, 0, 20)


def generate(requests: int, nodes: int, kind: Kind, seed: int) -> Instance:
    """A market of this size. About 40% of the requests are gangs on one fabric."""
    chance = Random(f"{requests}/{nodes}/{kind.name}/{seed}")
    models = [f"m{number}" for number in range(chance.randint(1, 3) + nodes // 1500)]
    mix, prices = chance.choice(kind.mixes), chance.choice(PRICES)
    asked = [_asked(chance, f"r{number}", models, mix, prices) for number in range(requests)]
    supply = list(_nodes(chance, nodes, models, prices))
    if kind.pressure is not None:
        _lease_out(chance, supply, sum(one.nodes * one.gpus for one in asked) // kind.pressure)
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


def _nodes(chance: Random, count: int, models: list[str], prices: Prices) -> list[Node]:
    sizes, loose_percent = chance.choice(FABRICS), chance.choice(NO_FABRIC_PERCENT)
    nodes = list[Node]()
    while len(nodes) < count:
        model, region, number = chance.choice(models), chance.choice(REGIONS), len(nodes)
        base, fabric = chance.randint(prices.low, prices.high), f"f{number}"
        for at in range(number, min(count, number + chance.choice(sizes))):
            free = chance.choices((1, 2, 4, 6, 8), (1, 1, 2, 1, 5))[0]
            near = base * prices.near_percent // 100
            ask = _in_steps(base + chance.randint(-near, near), prices)
            is_loose = chance.randrange(100) < loose_percent
            nodes.append(Node(f"n{at}", model, free, ask, None if is_loose else fabric, region))
    chance.shuffle(nodes)
    return nodes


def _asked(chance: Random, name: str, models: list[str], mix: Mix, prices: Prices) -> Asked:
    nodes, gpus, is_gang = chance.choice(mix.nodes), chance.choice(mix.gpus), chance.random() < 0.4
    regions = chance.sample(REGIONS, chance.choice((1, 2, 3))) if chance.random() < 0.3 else None
    cap = _in_steps(chance.randint(prices.least, prices.most), prices)
    return Asked(name, max(2, nodes) if is_gang else nodes, gpus, chance.choice(models), cap, regions, is_gang)


def _in_steps(price: int, prices: Prices) -> int:
    return price // prices.step * prices.step


def _lease_out(chance: Random, nodes: list[Node], left: int) -> None:
    """Leases GPUs away until no more than so many are left: whole nodes first, or some of every node."""
    free, is_whole = sum(node.free for node in nodes), chance.random() < 0.5
    while free > left:
        node = chance.choice(nodes)
        gone = min(free - left, node.free if is_whole else (node.free + 1) // 2)
        node.free -= gone
        free -= gone
