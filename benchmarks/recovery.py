"""From SIGKILL to a replacement that is ready: `uv run python -m benchmarks.recovery [--kills 20] [--json]`.

A cluster of two nodes whose processes start at once loses one node after the other: each kill takes an agent, its beat
process and its workload. The killed node is started again with its state folder, and is the spare for a later kill. All
kills count, the first of a fresh market too. Detection runs from the kill to `NodeLost`, recovery to `ClusterReady`.
Then nodes are lost of a fleet of simulated agents (`fleet.py`), of a thousand without `--nodes`.
"""

import argparse
import asyncio
import json
import sys
import time

from benchmarks import fleet
from benchmarks.figures import spread
from benchmarks.market import Market, Seen, market
from volt.cli.demo.farm import Site, kill_tree
from volt.contracts.clusters import ClusterForming, ClusterReady, LeaseCleared, MemberJoined
from volt.contracts.nodes import NodeAlive, NodeLost
from volt.contracts.timing import EMBEDDED

SITES = tuple(Site(f"node-{number}", "north", "A", 1_000_000 + number) for number in range(4))
COMMAND = ("sleep", "600")


async def measure(kills: int) -> dict[str, object]:
    """Kills one node of a fresh cluster, time after time, and returns the figures in milliseconds."""
    async with market(SITES) as run:
        figures = [await _one(run) for _ in range(kills)]
    detected, recovered = zip(*figures, strict=True)
    bound_ms = EMBEDDED.lost_after_ms + EMBEDDED.tick_ms
    return {
        "kills": kills,
        "lost_after_ms": EMBEDDED.lost_after_ms,
        "kill_to_lost_ms": spread(detected),
        "lost_to_ready_ms": spread(recovered),
        "kill_to_ready_ms": spread([sum(one) for one in figures]),
        "detected_within_l_plus_tick": sum(value <= bound_ms for value in detected),
        "ready_within_1s_of_lost": sum(value <= 1000 for value in recovered),
    }


async def _one(run: Market) -> tuple[float, float]:
    """Milliseconds from the kill to the loss, and from the loss to the ready replacement."""
    job, _ = await run.request(COMMAND)
    forming = (await run.observer.event(job, ClusterForming)).entry.event
    await run.observer.event(job, ClusterReady)
    assert isinstance(forming, ClusterForming)
    victim = next(node for node in run.nodes if node.id == forming.members[1].node)
    seen_before = len(run.observer.all)
    killed_ns = time.monotonic_ns()
    kill_tree(victim.child.pid)
    lost = await run.observer.until(lambda: _about(run, victim.id, NodeLost, seen_before))
    ready = await run.observer.event(job, ClusterReady, generation=2)
    await victim.child.wait()
    await victim.child.start({}, [])
    await run.observer.until(lambda: _about(run, victim.id, NodeAlive, seen_before))
    await run.release(job)
    await run.observer.until(lambda: _cleared(run, job))
    return (lost.at_ns - killed_ns) / 1e6, (ready.at_ns - lost.at_ns) / 1e6


def _about(run: Market, node: str, kind: type[NodeLost] | type[NodeAlive], after: int) -> Seen | None:
    for seen in run.observer.all[after:]:
        if isinstance(seen.entry.event, kind) and seen.entry.event.node == node:
            return seen
    return None


def _cleared(run: Market, job: str) -> Seen | None:
    cleared = [seen for seen in run.observer.by_job[job] if isinstance(seen.entry.event, LeaseCleared)]
    joined = [seen for seen in run.observer.by_job[job] if isinstance(seen.entry.event, MemberJoined)]
    return cleared[-1] if len(cleared) == 2 + len(joined) else None


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1_000)
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.kills)) if arguments.kills else {}
    if arguments.nodes:
        figures["fleet"] = asyncio.run(fleet.measure(arguments.nodes))
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
