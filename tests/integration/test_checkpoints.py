"""A job that begins where it was, whatever happens to its cluster: real processes, a real bus, a real store."""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from volt.cli.demo.farm import SITES, Node, kill_tree, start_nodes
from volt.contracts.http import CheckpointList
from volt.contracts.streams import ALL, CHECKPOINTS
from volt.embedded import ControlPlane
from volt.embedded.accounts import new_api_key, open_account
from volt.runtime.nats import NatsBus
from volt.sdk import AsyncClient

SECONDS_MAX = 90.0
POLL_SECONDS = 0.1
WORKLOAD = """
import os, pathlib, time
root = pathlib.Path(os.environ["VOLT_CHECKPOINT_DIR"])
found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))
print("found", *found, flush=True)
step = max((int(path.name) for path in root.iterdir()), default=0) + 1
draft = root / f"{step}.tmp"
draft.mkdir()
(draft / f"node-{os.environ['NODE_RANK']}").write_text("x" * step)
draft.rename(root / str(step))
(root / "999.tmp").mkdir()
time.sleep(600)
"""


LAST_WORDS = """
import os, pathlib, signal, time
root, generation = pathlib.Path(os.environ["VOLT_CHECKPOINT_DIR"]), int(os.environ["VOLT_GENERATION"])
print("found", *sorted(path.name for path in root.iterdir()), flush=True)
def save(step):
    draft = root / f"{step}.tmp"
    draft.mkdir()
    draft.rename(root / str(step))
def end(*_):
    save(100 * generation)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
save(generation)
time.sleep(600)
"""


class House:
    """A control plane, three nodes on one fabric, their seller, and a buyer."""

    def __init__(self, control_plane: ControlPlane, nodes: list[Node], buyer: AsyncClient, seller: AsyncClient) -> None:
        self.control_plane, self.nodes, self.buyer, self.seller = control_plane, nodes, buyer, seller

    async def committed(self, job: str, step: int) -> CheckpointList:
        """The job's checkpoints, once this step is among them."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            listed = await self.buyer.jobs.checkpoints(job)
            if any(one.step == step for one in listed.checkpoints):
                return listed
            assert time.monotonic() < deadline, await self.buyer.jobs.get(job)
            await asyncio.sleep(POLL_SECONDS)

    async def found(self, job: str, generation: int) -> dict[int, str]:
        """What the processes of a generation found in their folders, by rank."""
        lines = [line async for output in self.buyer.jobs.logs(job, follow=False) for line in output.lines]
        return {line.rank: line.text for line in lines if line.generation == generation}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with ControlPlane(tmp_path / "control", "embedded") as control_plane:
        key, seller_key = new_api_key(), new_api_key()
        buyer, seller = f"buyer-{secrets.token_hex(3)}", f"seller-{secrets.token_hex(3)}"
        bus = await NatsBus.connect(control_plane.nats_url, "test")
        await asyncio.gather(open_account(bus, buyer, key), open_account(bus, seller, seller_key))
        sites = [site for site in SITES if site.fabric == "A"]
        accounts = dict.fromkeys(("north", "south"), seller)
        nodes = await start_nodes(
            tmp_path / "nodes", control_plane.nats_url, accounts, sites, checkpoints_url=control_plane.checkpoints_url
        )
        try:
            url = control_plane.gateway_url
            async with AsyncClient(url, key) as client, AsyncClient(url, seller_key) as provider:
                yield House(control_plane, nodes, client, provider)
        finally:
            await asyncio.gather(*(node.child.stop() for node in nodes))
            await bus.close()


@pytest.mark.timeout(3 * SECONDS_MAX)
async def test_a_job_goes_on_from_its_last_checkpoint_when_it_grows_and_when_a_node_is_lost(house: House) -> None:
    asked = await house.buyer.jobs.create(
        gpu="h100-80gb", count=8, nodes=1, processes_per_node=1, command=[sys.executable, "-c", WORKLOAD]
    )
    job = asked.id
    first = (await house.committed(job, 1)).checkpoints[0]
    assert (first.generation, first.ranks, first.size_bytes, first.kept) == (1, 1, 1, True)

    await house.buyer.jobs.scale(job, 16)
    second = (await house.committed(job, 2)).checkpoints[0]
    assert (second.generation, second.ranks, second.size_bytes) == (2, 2, 4)
    assert await house.found(job, 2) == dict.fromkeys((0, 1), "found 1 1/node-0"), "the one that joined has it too"

    members = (await house.buyer.jobs.get(job)).members
    victim = next(node for node in house.nodes if node.id == members[1].node)
    kill_tree(victim.child.pid)
    listed = await house.committed(job, 3)
    assert await house.found(job, 3) == dict.fromkeys((0, 1), "found 2 2/node-0 2/node-1")
    assert victim.id not in [member.node for member in (await house.buyer.jobs.get(job)).members]
    assert [(one.step, one.generation, one.kept) for one in listed.checkpoints] == [
        (3, 3, True),
        (2, 2, True),
        (1, 1, False),
    ]
    await house.buyer.jobs.release(job)
    await _objects_are_beside_the_log(house.control_plane)


@pytest.mark.timeout(3 * SECONDS_MAX)
async def test_what_a_job_stores_in_its_grace_is_where_it_goes_on_when_it_is_drained_and_when_it_shrinks(
    house: House,
) -> None:
    asked = await house.buyer.jobs.create(
        gpu="h100-80gb", count=16, nodes=2, processes_per_node=1, command=[sys.executable, "-c", LAST_WORDS]
    )
    job = asked.id
    await house.committed(job, 1)
    drained = (await house.buyer.jobs.get(job)).members[1].node
    await house.seller.nodes.drain(drained, reason="new disks", deadline="10m")
    listed = await house.committed(job, 100)
    assert next(one for one in listed.checkpoints if one.step == 100).generation == 1
    assert await _found_in(house, job, 2) == dict.fromkeys((0, 1), "found 100")
    assert drained not in [member.node for member in (await house.buyer.jobs.get(job)).members]
    node = next(one for one in (await house.seller.nodes.list()).nodes if one.node == drained)
    assert (node.leases, node.drain_reason) == ((), "new disks")

    await house.buyer.jobs.scale(job, 8)
    await house.committed(job, 200)
    assert await _found_in(house, job, 3) == {0: "found 200"}
    told = [one.event async for one in house.buyer.jobs.events(job, follow=False)]
    assert not {"MemberLost", "ClusterReleased"} & {*told}
    await house.buyer.jobs.release(job)


async def _found_in(house: House, job: str, generation: int) -> dict[int, str]:
    """What all processes of a generation found, once it is ready and they have said so."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        known, found = await house.buyer.jobs.get(job), await house.found(job, generation)
        started = [member for member in known.members if member.state == "started"]
        if known.generation == generation and known.state == "ready" and len(found) == len(started):
            return found
        assert time.monotonic() < deadline, known
        await asyncio.sleep(POLL_SECONDS)


async def _objects_are_beside_the_log(control_plane: ControlPlane) -> None:
    """The bus has no stream of objects: they are on the server of their own."""
    for url, streams in ((control_plane.nats_url, {spec.name for spec in ALL}), (control_plane.checkpoints_url, set())):
        bus = await NatsBus.connect(url, "look")
        names = {info.config.name for info in await bus.client.jetstream().streams_info()}
        assert names == (streams or {CHECKPOINTS.name})
        await bus.close()
