"""GPUs that fail under the real agent, nvidia-ml-py and control plane: only the leases that hold them end."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.integration.house import House, Terminal, until
from tests.support.driver import Driver
from volt.contracts.http import Job, Offer
from volt.contracts.http_market import Bid, ProviderReliability
from volt.sdk import Client

CARDS = 8
LONG = "import time; print('up', flush=True); time.sleep(600)"
ONE = ("--gpu", "h100-80gb", "--count", "1", "--kind", "batch")


class Machine(House):
    """One node with eight cards that a driver shows."""

    def __init__(self, folder: Path) -> None:
        self.driver = Driver(folder, cards=CARDS)
        super().__init__(folder)

    def start_agent(self, node: str) -> Terminal:
        place = ("--runtime", "process", "--region", "eu", "--workdir", str(self.folder))
        name = f"{node}-{len(self.terminals)}"
        return self.open(
            *(name, "agent", "run", "--data", str(self.data), "--price", "1.00", *place),
            *("--state", str(self.folder / node)),
            more=self.driver.environment,
        )

    def offer(self) -> Offer | None:
        with Client.from_context(self.data) as client:
            return next(iter(client.offers().offers), None)

    def free(self) -> int:
        offer = self.offer()
        return offer.free if offer is not None and offer.state == "alive" else -1

    def bid(self) -> Bid:
        listed = self.volt("bid", "list", "--json")
        (bid,) = json.loads(listed.stdout)
        return msgspec.convert(bid, Bid)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    monkey = pytest.MonkeyPatch()
    monkey.setattr("tests.integration.house.NODES", ("node-1",))
    house = Machine(tmp_path_factory.mktemp("machine"))
    try:
        yield house
    finally:
        monkey.undo()
        for terminal in reversed(house.terminals):
            terminal.kill()


def gpu_of(job: Job) -> str:
    return next(member for member in job.members if member.state == "started").gpus[0]


def card(uuid: str) -> int:
    return int(uuid.removeprefix("GPU-")[:8])


def is_running(house: Machine, job: str) -> bool:
    return house.job(job).state == "ready"


def test_a_failed_gpu_ends_only_its_lease_and_a_vanished_one_closes_the_node(house: Machine) -> None:
    """Reported as akash support#137 and #249."""
    until(lambda: house.free() == CARDS)
    first, second = house.deploy(*ONE, command=LONG), house.deploy(*ONE, command=LONG)
    until(lambda: is_running(house, first) and is_running(house, second))
    before = house.job(second)
    failed = gpu_of(house.job(first))
    house.driver.xid(card(failed), 48)
    until(lambda: house.job(first).generation == 2 and is_running(house, first))
    assert gpu_of(house.job(first)) != failed
    # The lease beside it, which it did not touch, has gone on.
    after = house.job(second)
    assert (after.generation, after.state, after.members) == (1, "ready", before.members)
    until(lambda: house.free() == CARDS - 1 - 2)
    bid = house.bid()
    assert [(one.gpu, one.closes_node) for one in bid.quarantined] == [(failed, False)]
    assert "XID 48" in house.volt("bid", "list").stdout
    assert f"gpu_fault ({failed}: XID 48" in _events(house, first)
    _vanish_one_that_is_free(house, failed, first, second)
    _come_back_clean(house)
    for proof in ("market", "ledger"):
        assert house.volt(proof, "audit").process.returncode == 0


def _vanish_one_that_is_free(house: Machine, failed: str, first: str, second: str) -> None:
    held = {failed, gpu_of(house.job(first)), gpu_of(house.job(second))}
    vanishing = next(uuid for uuid in map(house.driver.uuid, range(CARDS)) if uuid not in held)
    house.driver.hides(card(vanishing))
    until(lambda: house.free() == 0)
    assert (vanishing, True) in [(one.gpu, one.closes_node) for one in house.bid().quarantined]
    assert [house.job(job).generation for job in (first, second)] == [2, 1]
    assert is_running(house, first)
    assert is_running(house, second)
    reliability = json.loads(house.volt("provider", "reliability", "--json").stdout)
    (node,) = msgspec.convert(reliability, ProviderReliability).nodes
    assert [one.kind for one in node.mishaps] == ["node_quarantined", "gpu_quarantined"]
    assert node.reliability_permille < 1_000
    for job in (first, second):
        house.volt("release", job)


def _come_back_clean(house: Machine) -> None:
    """The provider repairs the machine, and its agent starts afresh and finds all cards well."""
    house.agents[0].interrupt()
    house.agents[0].ends()
    house.driver.is_repaired()
    house.agents[0] = house.start_agent("node-1")
    until(lambda: house.free() == CARDS)
    assert house.bid().quarantined == ()


def _events(house: Machine, job: str) -> str:
    with Client.from_context(house.data) as client:
        return " ".join(one.message for one in client.jobs.events(job, follow=False))
