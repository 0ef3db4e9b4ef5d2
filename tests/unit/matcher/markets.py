"""Lots, requests and books for tests that need no log, and their optimum by trying everything."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from hypothesis import strategies as st

from volt.contracts.bids import Place
from volt.contracts.jobs import Level
from volt_matcher.book import Book
from volt_matcher.feasible import serves
from volt_matcher.fields import Competitor
from volt_matcher.lots import Lot, LotId, Request, Shape, level_of
from volt_matcher.place import Placement, score
from volt_matcher.topology import domains_of, shared

EU_A = Place(region="eu", site="s1", fabric="A")
EU_B = Place(region="eu", site="s1", fabric="B")
US_C = Place(region="us", site="s2", fabric="C")
PLACES = (EU_A, EU_A, EU_B, US_C, Place(region="eu", site="s1"), Place())


def lot(
    node: str,
    free: int = 8,
    ask_microusd: int = 1_000,
    place: Place = EU_A,
    *,
    model: str = "m",
    provider: str = "p",
    reliability_permille: int = 1000,
    min_gpus: int = 1,
    max_duration_seconds: int | None = None,
    available_until_ms: int | None = None,
) -> Lot:
    return Lot(
        node=node,
        model=model,
        provider=provider,
        place=place,
        domains=domains_of(place),
        ask_microusd_per_gpu_hour=ask_microusd,
        alive=True,
        total=free,
        free=tuple(f"{node}-{model}-{gpu}" for gpu in range(free)),
        memory_mib=1000,
        reliability_permille=reliability_permille,
        min_gpus=min_gpus,
        max_duration_seconds=max_duration_seconds,
        available_until_ms=available_until_ms,
    )


def request(
    *shapes: tuple[int, int],
    level: Level = "any",
    cap_microusd: int | None = 2_000,
    models: tuple[str, ...] = ("m",),
    preferred: Level | None = None,
    preferred_percent: int = 0,
    regions: tuple[str, ...] = (),
) -> Request:
    return Request(
        models=frozenset(models),
        shapes=tuple(Shape(*shape) for shape in shapes),
        interconnect=level,
        cap_microusd_per_gpu_hour=cap_microusd,
        preferred=preferred,
        preferred_percent=preferred_percent,
        regions=frozenset(regions),
    )


def book_of(*lots: Lot) -> Book:
    book = Book()
    for one in lots:
        book.put(one)
    return book


def gains_of(competitors: Sequence[Competitor], plan: Sequence[Placement | None]) -> int:
    """The gains from trade of a plan, which must keep every rule."""
    taken: dict[LotId, int] = {}
    gains = 0
    for (asked, weight_permille), placed in zip(competitors, plan, strict=True):
        if placed is None:
            continue
        shape = Shape(len(placed.lots), placed.gpus_per_node)
        assert shape in asked.shapes
        assert len({one.node for one in placed.lots}) == shape.nodes
        assert len({one.model for one in placed.lots}) == 1
        level = level_of(asked, shape.nodes)
        assert shape.nodes == 1 or shared((one.domains for one in placed.lots), level)
        for one in placed.lots:
            assert serves(one, asked, shape.gpus_per_node, len(one.free) - taken.get(one.key, 0)), "sold twice"
            taken[one.key] = taken.get(one.key, 0) + shape.gpus_per_node
        gains += weight_permille * worth(asked, placed.lots, shape.gpus_per_node)
    return gains


def worth(asked: Request, lots: Sequence[Lot], gpus: int) -> int:
    """(cap - ask) x GPUs, times 100, the preference counted."""
    assert asked.cap_microusd_per_gpu_hour is not None
    return 100 * asked.cap_microusd_per_gpu_hour * len(lots) * gpus - score(asked, lots, gpus)


def best_gains(lots: Sequence[Lot], competitors: Sequence[Competitor]) -> int:
    """The most that any plan gains, by trying all of them."""

    def most(number: int, free: dict[LotId, int]) -> int:
        if number == len(competitors):
            return 0
        best = most(number + 1, free)
        asked, weight_permille = competitors[number]
        for chosen, gpus in sets(lots, asked, free):
            left = dict(free)
            for one in chosen:
                left[one.key] -= gpus
            best = max(best, weight_permille * worth(asked, chosen, gpus) + most(number + 1, left))
        return best

    return most(0, {one.key: len(one.free) for one in lots})


def sets(lots: Sequence[Lot], asked: Request, free: dict[LotId, int]) -> Iterator[tuple[tuple[Lot, ...], int]]:
    """Every set of lots that could serve a request."""
    for nodes, gpus in asked.shapes:
        for model in asked.models:
            able = [one for one in lots if one.model == model and serves(one, asked, gpus, free[one.key])]
            for chosen in combinations(able, nodes):
                level = level_of(asked, nodes)
                if nodes == 1 or (asked.interconnect != "nvlink" and shared((one.domains for one in chosen), level)):
                    yield chosen, gpus


asks = st.integers(1, 6)
some_lots = st.lists(
    st.tuples(st.integers(1, 4), asks, st.sampled_from(PLACES), st.sampled_from("mmn")), min_size=1, max_size=6
).map(
    lambda told: [
        lot(f"n{number}", free, ask, place, model=model) for number, (free, ask, place, model) in enumerate(told)
    ]
)
levels: st.SearchStrategy[Level] = st.sampled_from(["any", "fabric", "site", "region"])
requests = st.builds(
    lambda shape, level, cap_microusd, models, regions: request(
        shape, level=level, cap_microusd=cap_microusd, models=models, regions=regions
    ),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    levels,
    st.integers(2, 8),
    st.sampled_from([("m",), ("m",), ("n",), ("m", "n")]),
    st.sampled_from([(), (), ("eu",)]),
)
competitors = st.lists(st.builds(Competitor, requests, st.sampled_from([1000, 1000, 1500])), min_size=1, max_size=4)
