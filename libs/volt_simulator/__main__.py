"""`python -m volt_simulator`: runs the plans of many seeds and says which laws held.

A line of JSON for each run, and one for all of them. Exits 1 if a law was broken; then the run's line has the smallest
plan that was found to break it too, and the last events of that.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog

from volt_simulator.plan import Plan, draw
from volt_simulator.shrink import shrink
from volt_simulator.world import Result, run


@dataclass(frozen=True)
class Line:
    """What is said of a run. Times in seconds; `plan` only of one that broke a law."""

    result: Result
    seconds: float
    plan: Plan | None


def main() -> int:
    """Runs what was asked for."""
    arguments = _arguments()
    plans = _plans(arguments)
    one = partial(simulate, shrinks=not arguments.no_shrink)
    runs, broken, events, seconds = 0, 0, 0, 0.0
    for line in _all(one, plans, arguments.workers):
        runs += 1
        broken += bool(line.result.broken)
        events, seconds = events + line.result.events, seconds + line.seconds
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.flush()
    total = {"runs": runs, "broken": broken, "events": events, "events_per_second": round(events / seconds)}
    sys.stdout.buffer.write(msgspec.json.encode(total) + b"\n")
    return int(broken > 0)


def simulate(make: Callable[[], Plan], *, shrinks: bool) -> Line:
    """One run, and smaller ones if it breaks a law."""
    structlog.configure(processors=[_drop])
    plan, started = make(), time.perf_counter()
    result = run(plan)
    seconds = time.perf_counter() - started
    if not result.broken:
        return Line(result, seconds, None)
    smaller, after = shrink(plan, result) if shrinks else (plan, result)
    return Line(after, seconds, smaller)


def _plans(arguments: argparse.Namespace) -> Iterator[Callable[[], Plan]]:
    """How to come by the one that is given, or by those of the seeds."""
    if arguments.plan is not None:
        yield partial(_read, arguments.plan)
        return
    first, _, last = str(arguments.seeds).partition("..")
    for seed in range(int(first), int(last or first) + 1):
        yield partial(draw, seed, arguments.nodes, arguments.jobs, arguments.hours)


def _read(path: Path) -> Plan:
    return msgspec.json.decode(path.read_bytes(), type=Plan)


def _all(one: "partial[Line]", plans: Iterable[Callable[[], Plan]], workers: int) -> Iterator[Line]:
    """The runs in the order of their plans, so many at a time."""
    if workers == 1:
        yield from map(one, plans)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(one, plans)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--seeds", default="1..20")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--no-shrink", action="store_true")
    return parser.parse_args()


def _drop(_logger: object, _name: str, _event: object) -> str:
    """A simulated failure is no news."""
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
