"""How fast the matcher finds a gang in its book, and how good and fast its passes are.

    uv run python -m benchmarks.matching            every size, in plain text
    uv run python -m benchmarks.matching --json     the same as JSON
    uv run python -m benchmarks.matching --instance FILE
                                                    one pass over the instance of a file, always as JSON

Passes are judged against HiGHS on the same instance in the same run. Compare times only within one run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple, ParamSpec

import msgspec

from benchmarks.figures import percentile
from benchmarks.greedy import ORDERS, greedy
from benchmarks.instances import KINDS, Instance, Kind, Node, book_of, competitors_of, generate, lot_of
from benchmarks.optimum import solve
from volt.contracts.jobs import Level
from volt_matcher.book import Book
from volt_matcher.choose import choose
from volt_matcher.lots import Request, Shape
from volt_matcher.place import cheapest

P = ParamSpec("P")

BOOK_SIZES = (1_000, 10_000, 100_000)
QUERIES = 2_000
NODES_PER_FABRIC = 32
PASS_SIZES = ((20, 200, 4), (100, 1000, 2), (200, 4000, 1))
"""Requests, nodes, and how many seeds of each kind."""


class Pass(NamedTuple):
    """One pass: who got which nodes at what price, the gains from trade, and how long it took."""

    grants: dict[str, list[str]]
    price: dict[str, int]
    welfare: int
    seconds: float


def main() -> None:
    """Runs what was asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--instance", type=Path)
    arguments = parser.parse_args()
    if arguments.instance is not None:
        instance = msgspec.json.decode(arguments.instance.read_bytes(), type=Instance)
        print(json.dumps(run_pass(instance)._asdict()))
        return
    books = [measure_book(nodes) for nodes in BOOK_SIZES]
    passes = list(measure_passes())
    report: dict[str, list[dict[str, float | str]]] = {"book": books, "passes": passes, "summary": summary(passes)}
    print(json.dumps(report, indent=1) if arguments.json else as_text(report))


def run_pass(instance: Instance) -> Pass:
    """Clears an instance in one pass, and checks the plan. The time is from the book in memory to the plan."""
    book, competitors = book_of(instance), competitors_of(instance)
    started = time.perf_counter()
    plan = choose(book, competitors)
    seconds = time.perf_counter() - started
    grants, price = dict[str, list[str]](), dict[str, int]()
    for asked, placement in zip(instance.answerable, plan, strict=True):
        if placement is not None:
            grants[asked.id] = [lot.node for lot in placement.lots]
            price[asked.id] = placement.price_microusd_per_gpu_hour
    return Pass(grants, price, welfare_of(instance, grants), seconds)


def welfare_of(instance: Instance, grants: dict[str, list[str]]) -> int:
    """The gains from trade of grants that keep every rule; anything else is an error."""
    nodes = {node.id: node for node in instance.nodes}
    free = {node.id: node.free for node in instance.nodes}
    welfare = 0
    for asked in instance.requests:
        chosen = [nodes[name] for name in grants.get(asked.id, ())]
        if not chosen:
            continue
        assert len({node.id for node in chosen}) == len(chosen) == asked.nodes, f"{asked.id} is not whole"
        fabrics = {node.fabric for node in chosen}
        assert not asked.single_fabric or asked.nodes == 1 or (len(fabrics) == 1 and all(fabrics)), asked.id
        for node in chosen:
            free[node.id] -= asked.gpus
            assert free[node.id] >= 0, f"{node.id} is sold twice"
            assert node.model == asked.model, f"{node.id} is of another model"
            assert asked.regions is None or node.region in asked.regions, f"{node.id} is elsewhere"
            assert node.ask <= asked.max_price, f"{node.id} is too dear"
            welfare += (asked.max_price - node.ask) * asked.gpus
    return welfare


def measure_book(count: int) -> dict[str, float | str]:
    """The cheapest 4 nodes x 8 on one fabric, with a bid changed before each query."""
    chance = Random(count)
    nodes = [_bid(chance, number) for number in range(count)]
    book = Book()
    for node in nodes:
        book.put(lot_of(node))
    together, anywhere = _four_by_eight("fabric"), _four_by_eight("any")
    times: dict[str, list[float]] = {"update": [], "query": [], "anywhere": []}
    for _ in range(QUERIES):
        lot = lot_of(_bid(chance, chance.randrange(count)))
        times["update"].append(_seconds(book.put, lot))
        times["query"].append(_seconds(cheapest, book, together))
        times["anywhere"].append(_seconds(cheapest, book, anywhere))
    return {
        "nodes": count,
        "queries": QUERIES,
        "query_p50_ms": _rounded(times["query"], 50, 1e3),
        "query_p99_ms": _rounded(times["query"], 99, 1e3),
        "anywhere_p50_ms": _rounded(times["anywhere"], 50, 1e3),
        "anywhere_p99_ms": _rounded(times["anywhere"], 99, 1e3),
        "update_p50_us": _rounded(times["update"], 50, 1e6),
        "update_p99_us": _rounded(times["update"], 99, 1e6),
    }


def measure_passes() -> Iterator[dict[str, float | str]]:
    """Contended passes against HiGHS."""
    for requests, nodes, seeds in PASS_SIZES:
        for kind in KINDS:
            for seed in range(seeds):
                yield _measure_pass(requests, nodes, kind, seed)


def summary(passes: list[dict[str, float | str]]) -> list[dict[str, float | str]]:
    """By size: the least and the mean share of the bound, of ours, of the greedy order that is best on average, and of
    the best order for each pass; and how many times less time than HiGHS, in all.
    """
    found: list[dict[str, float | str]] = []
    for requests, nodes, _ in PASS_SIZES:
        of_size = [one for one in passes if (one["requests"], one["nodes"]) == (requests, nodes)]
        shares, usual = _column(of_size, "percent_of_bound"), _column(of_size, "greedy_percent")
        means = {name: statistics.fmean(_column(of_size, f"greedy_{name}_percent")) for name in ORDERS}
        best = max(ORDERS, key=means.__getitem__)
        ours, theirs = (sum(float(one[key]) for one in of_size) for key in ("seconds", "highs_seconds"))
        found.append(
            {
                "requests": requests,
                "nodes": nodes,
                "passes": len(of_size),
                "percent_of_bound_min": min(shares),
                "percent_of_bound_mean": round(statistics.fmean(shares), 3),
                "best_greedy": best,
                "best_greedy_min": min(_column(of_size, f"greedy_{best}_percent")),
                "best_greedy_mean": round(means[best], 3),
                "any_greedy_min": min(usual),
                "any_greedy_mean": round(statistics.fmean(usual), 3),
                "seconds": round(ours, 4),
                "highs_seconds": round(theirs, 4),
                "times_less_than_highs": round(theirs / ours, 1),
            }
        )
    return found


def as_text(report: dict[str, list[dict[str, float | str]]]) -> str:
    """The report as tables."""
    lines = []
    for title, rows in report.items():
        widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
        lines += ["", title, "  ".join(name.rjust(width) for name, width in widths.items())]
        lines += ["  ".join(str(row[name]).rjust(width) for name, width in widths.items()) for row in rows]
    return "\n".join(lines)


def _measure_pass(requests: int, nodes: int, kind: Kind, seed: int) -> dict[str, float | str]:
    instance = generate(requests, nodes, kind, seed)
    ours, optimum, orders = run_pass(instance), solve(instance), greedy(instance)
    return {
        "requests": requests,
        "nodes": nodes,
        "kind": kind.name,
        "seed": seed,
        "demand_over_supply": round(instance.pressure, 2),
        "welfare": ours.welfare,
        "highs_welfare": optimum.welfare,
        "bound": optimum.bound,
        "percent_of_bound": _percent(ours.welfare, optimum.bound),
        "greedy_percent": _percent(max(orders.values()), optimum.bound),
        **{f"greedy_{name}_percent": _percent(gains, optimum.bound) for name, gains in orders.items()},
        "seconds": round(ours.seconds, 5),
        "highs_seconds": round(optimum.seconds, 4),
        "times_less_than_highs": round(optimum.seconds / ours.seconds, 1),
    }


def _column(rows: list[dict[str, float | str]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def _percent(welfare: int, bound: int) -> float:
    return round(100 * welfare / bound, 3) if bound else 100.0


def _bid(chance: Random, number: int) -> Node:
    """Fabric, model and region follow from the number, so that a new bid of a node stays where the node is."""
    fabric = number // NODES_PER_FABRIC
    free = chance.choices((0, 1, 2, 4, 6, 8), (3, 1, 1, 1, 1, 3))[0]
    ask = 1_200_000 + fabric * 7919 % 1_000_000 + chance.randint(0, 300_000)
    return Node(f"n{number}", f"m{fabric % 4}", free, ask, f"f{fabric}", f"region-{fabric % 20}")


def _four_by_eight(level: Level) -> Request:
    return Request(
        models=frozenset({"m0"}),
        shapes=(Shape(4, 8),),
        interconnect=level,
        cap_microusd_per_gpu_hour=10_000_000,
    )


def _seconds(call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> float:
    started = time.perf_counter()
    call(*arguments, **named)
    return time.perf_counter() - started


def _rounded(seconds: list[float], percent: float, scale: float) -> float:
    return round(percentile(seconds, percent) * scale, 4)


if __name__ == "__main__":
    main()
