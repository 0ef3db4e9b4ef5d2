"""Two agents with one identity: the second is refused, and the first goes on with its bid and its work."""

import asyncio
import os
import shutil
from pathlib import Path

from benchmarks.market import market
from volt.cli.demo.farm import GPUS, Site
from volt.contracts.bids import BidAccepted, BidWithdrawn
from volt.contracts.clusters import ClusterReady, MemberEnded, MemberLost
from volt.contracts.nodes import NodeLost
from volt.embedded.supervisor import python_module

SITES = tuple(Site(f"node-{number}", "north", "A", 1_000_000 + number) for number in range(2))
LONG = ("sleep", "300")
EXIT_REFUSED = 3
REFUSED_SECONDS_MAX = 30


async def test_a_second_agent_of_a_node_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with market(SITES) as run:
        job, _ = await run.request(LONG)
        await run.observer.event(job, ClusterReady)
        (tmp_path / "copy").mkdir()
        shutil.copy(run.nodes[0].state / "node", tmp_path / "copy" / "node")
        second = await asyncio.create_subprocess_exec(
            *python_module("volt_agent"),
            env={
                "PATH": os.environ["PATH"],
                "VOLT_NATS_URL": run.control_plane.nats_url,
                "VOLT_ACCOUNT": "north",
                "VOLT_STATE": str(tmp_path / "copy"),
                "VOLT_GPUS": GPUS,
                "VOLT_PRICE": "1",
            },
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await asyncio.wait_for(second.wait(), REFUSED_SECONDS_MAX) == EXIT_REFUSED
        events = [seen.entry.event for seen in run.observer.all]
        assert len([event for event in events if isinstance(event, BidAccepted)]) == len(SITES)
        assert not [event for event in events if isinstance(event, BidWithdrawn | NodeLost | MemberLost | MemberEnded)]
        assert run.nodes[0].child.running
