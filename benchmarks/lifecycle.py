"""From the publish of a request to a ready cluster: `uv run python -m benchmarks.lifecycle [--jobs 50] [--json]`.

Each job leases a GPU on two nodes and runs one process on each, which starts at once; it is released when it is ready
and the next is requested when its leases are cleared. All count, the first of a fresh market too. In the same run, on
the same bus, one round trip (a publish acknowledged from disk, and its delivery to a reader) and the start of the
processes are measured.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from benchmarks.figures import percentile, spread
from benchmarks.market import Market, Observer, Seen, market
from benchmarks.traces import Span, collector
from volt.cli.demo.farm import Site
from volt.contracts.clusters import (
    ClusterForming,
    ClusterReady,
    ClusterStarting,
    LeaseCleared,
    MemberPrepared,
    MemberStarted,
)
from volt.contracts.jobs import JobAdmitted
from volt.contracts.ledger import JobFunded
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.contracts.streams import LOG
from volt.runtime import telemetry
from volt_agent.beat import boot_ms
from volt_agent.process import ProcessRuntime, Workload
from volt_agent.runtimes import Launch, LogLine

SITES = (Site("node-1", "north", "A", 1_000_000), Site("node-2", "south", "A", 1_100_000))
COMMAND = ("sleep", "300")
ROUND_TRIPS = 200
ROUND_TRIP_BYTES_MAX = 64 * 1024 * 1024
PROCESS_STARTS = 20

HOPS: tuple[tuple[str, type[Event]], ...] = (
    ("admitted", JobAdmitted),
    ("funded", JobFunded),
    ("matched", MarketCleared),
    ("forming", ClusterForming),
    ("prepared", MemberPrepared),
    ("starting", ClusterStarting),
    ("started", MemberStarted),
    ("ready", ClusterReady),
)
BUS_ROUND_TRIPS = 2 + len(HOPS) + 2 + 2
"""Request and each event of the path, plus desired state and report for prepare and for start."""


async def measure(jobs: int) -> dict[str, object]:
    """Runs the jobs one after the other and returns the figures, in milliseconds."""
    async with market(SITES) as run:
        hops: dict[str, list[float]] = {name: [] for name, _ in HOPS}
        totals = []
        for _ in range(jobs):
            instants = await _one(run)
            totals.append(instants[-1] - instants[0])
            for (name, _), before, after in zip(HOPS, instants, instants[1:], strict=False):
                hops[name].append(after - before)
        trips = await _round_trips(run)
    starts = await _process_starts()
    path_ms = BUS_ROUND_TRIPS * percentile(trips, 50)
    ready, start = spread(totals), spread(starts)
    return {
        "jobs": jobs,
        "request_to_ready_ms": ready,
        "first_request_to_ready_ms": round(totals[0], 3),
        "hops_ms": {name: spread(values) for name, values in hops.items()},
        "bus_round_trip_ms": spread(trips),
        "bus_round_trips_on_path": BUS_ROUND_TRIPS,
        "ratio_to_bus": round(ready["p50"] / path_ms, 2),
        "two_process_starts_ms": start,
        "beyond_process_starts_p50_ms": round(ready["p50"] - start["p50"], 3),
    }


async def _one(run: Market) -> list[float]:
    """The instants of one job's hops, the request first, in milliseconds."""
    job, requested_ns = await run.request(COMMAND)
    await run.observer.event(job, ClusterReady)
    instants = [requested_ns, *(_last_ns(run.observer, job, kind) for _, kind in HOPS)]
    await run.release(job)
    await run.observer.until(lambda: _cleared(run.observer, job))
    return [instant / 1e6 for instant in instants]


def _last_ns(observer: Observer, job: str, kind: type[Event]) -> int:
    return max(seen.at_ns for seen in observer.by_job[job] if isinstance(seen.entry.event, kind))


def _cleared(observer: Observer, job: str) -> Seen | None:
    cleared = [seen for seen in observer.by_job[job] if isinstance(seen.entry.event, LeaseCleared)]
    return cleared[-1] if len(cleared) == len(SITES) else None


async def _round_trips(run: Market) -> list[float]:
    """An event stored on disk and delivered to a reader, on a stream like `LOG` that nobody else reads."""
    await run.bus.ensure(replace(LOG, name="BENCHMARK", subjects=("benchmark.>",), bytes_max=ROUND_TRIP_BYTES_MAX))
    times: list[float] = []
    batches = run.bus.read("BENCHMARK", ["benchmark.>"])
    await anext(batches)
    for seq in range(ROUND_TRIPS):
        began_ns = time.monotonic_ns()
        await run.bus.publish(f"benchmark.{seq}", b"{}", expected_seq=0)
        await anext(batches)
        times.append((time.monotonic_ns() - began_ns) / 1e6)
    return times


async def _process_starts() -> list[float]:
    """Two workloads of one process each, started side by side as two agents would."""
    times = []
    with TemporaryDirectory(prefix="volt-bench-") as name:
        runtimes = [ProcessRuntime("127.0.0.1", Path(name) / str(number)) for number in range(len(SITES))]
        for number in range(PROCESS_STARTS):
            began_ns = time.monotonic_ns()
            workloads = await asyncio.gather(*(_started(runtime, f"lease-{number}") for runtime in runtimes))
            times.append((time.monotonic_ns() - began_ns) / 1e6)
            for workload in workloads:
                workload.stop(0)
                await workload.ended()
    return times


async def _started(runtime: ProcessRuntime, lease: str) -> Workload:
    await runtime.prepare(lease, 1)
    launch = Launch(argv=COMMAND, env=dict(os.environ), cwd=".")
    workload = await runtime.start(lease, 1, (launch,), boot_ms() + 60_000, _ignore)
    await workload.started()
    return workload


async def _ignore(_line: LogLine) -> None:
    """The command writes nothing."""


def where_time_goes(spans: list[Span]) -> dict[str, dict[str, float]]:
    """By service and event: when its append began after the request did, and how long it took, in milliseconds."""
    requests = {span.trace: span.began_ns for span in spans if span.service == "buyer"}
    began: dict[str, list[float]] = {}
    took: dict[str, list[float]] = {}
    for span in spans:
        if span.trace not in requests or span.service == "buyer":
            continue
        name = f"{span.service}: {span.event or span.name}"
        began.setdefault(name, []).append((span.began_ns - requests[span.trace]) / 1e6)
        took.setdefault(name, []).append((span.ended_ns - span.began_ns) / 1e6)
    order = sorted(began, key=lambda name: percentile(began[name], 50))
    return {
        name: {
            "began_p50_ms": round(percentile(began[name], 50), 3),
            "took_p50_ms": round(percentile(took[name], 50), 3),
            "n": len(took[name]),
        }
        for name in order
    }


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--traces", action="store_true", help="collect spans, which costs time, and say where it goes")
    arguments = parser.parse_args()
    if arguments.traces:
        with collector() as (endpoint, spans):
            os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
            telemetry.set_up("benchmark")
            figures = asyncio.run(measure(arguments.jobs))
            telemetry.flush()
            figures["spans"] = where_time_goes(spans)
    else:
        figures = asyncio.run(measure(arguments.jobs))
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
