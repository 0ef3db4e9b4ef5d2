"""Every ending reaches every holder (akash support#438, #193, #515): a sweep over stages of a job and ways to end.

After it no service holds anything of the job: no lease, no place in a queue, no reservation, no order to a node, no
deadline, no money. And the next job gets all of it.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.simulation.house import BUYER, GPUS_PER_NODE, MODEL, RIVAL, House
from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.contracts.clusters import ClusterReleased
from volt.contracts.jobs import JobSpec, Shape, Workload
from volt.contracts.ledger import FIRST_CREDIT_MICROUSD, FundsExhausted, JobClosed, JobUnfunded, hold, wallet
from volt.contracts.market import MarketCleared
from volt.contracts.timing import EMBEDDED
from volt.contracts.units import MS_PER_SECOND
from volt_matcher.reserve import RESERVE_AFTER_MS
from volt_provisioner.states import Cleared

NODES = ("n1", "n2")
PAIR = JobSpec(
    models=(MODEL,),
    shapes=(Shape(nodes=2, gpus_per_node=GPUS_PER_NODE),),
    workload=Workload(kind="ddp", command=("train",)),
    interconnect="fabric",
)
SINGLE = replace(PAIR, shapes=(Shape(nodes=1, gpus_per_node=GPUS_PER_NODE),))


def waiting(spec: JobSpec) -> House:
    """The job waits for a node that another job has, which cannot be heard of."""
    house = House(*NODES)
    house.ask("holder", SINGLE)
    house.ask("j", spec)
    return house


def kept_for(spec: JobSpec) -> House:
    """It has waited for so long that what is free is kept for it."""
    house = waiting(spec)
    house.passes(RESERVE_AFTER_MS / MS_PER_SECOND + 1)
    assert "j" in house.matcher.state.reservations
    return house


def granted(spec: JobSpec) -> House:
    """It has its nodes, and one of them says nothing."""
    house = House(*NODES)
    house.away.add("n2")
    house.ask("j", spec)
    return house


def running(spec: JobSpec) -> House:
    house = House(*NODES)
    house.ask("j", spec)
    house.passes(5)
    return house


def running_dearly(spec: JobSpec) -> House:
    """For so much that the first credit is soon spent."""
    house = House(*NODES, ask_microusd=20_000_000)
    house.ask("j", spec)
    house.passes(5)
    return house


def recovering(spec: JobSpec) -> House:
    """It has lost a node, and there is none to replace it."""
    house = running(spec)
    house.lose("n2")
    return house


def is_released(house: House) -> None:
    house.release("j")


def has_completed(house: House) -> None:
    house.exits("j", 0)


def has_failed(house: House) -> None:
    house.exits("j", 1)


def has_lasted(house: House) -> None:
    house.passes(60)


def has_spent_its_money(house: House) -> None:
    house.passes(2 * 3_600)
    assert house.all(FundsExhausted)


def finds_no_other_node(house: House) -> None:
    house.passes(EMBEDDED.replace_ms_max / MS_PER_SECOND + 1)


class Ending(NamedTuple):
    stage: Callable[[JobSpec], House]
    how: Callable[[House], None]
    spec: JobSpec = PAIR


PAIR_AT_20_USD = replace(PAIR, max_price_microusd_per_gpu_hour=20_000_000)
BRIEF = replace(PAIR, max_duration_seconds=60)
PATIENT = replace(PAIR, max_wait_seconds=60)
ENDINGS = [
    *(Ending(stage, is_released) for stage in (waiting, kept_for, granted, running, recovering)),
    Ending(waiting, has_lasted, PATIENT),
    Ending(running, has_completed),
    Ending(running, has_failed),
    Ending(running, has_lasted, BRIEF),
    Ending(recovering, has_lasted, BRIEF),
    Ending(running_dearly, has_spent_its_money, PAIR_AT_20_USD),
    Ending(recovering, finds_no_other_node),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda one: f"{one.stage.__name__}-{one.how.__name__}")
def test_an_ending_reaches_every_holder(ending: Ending) -> None:
    house = ending.stage(ending.spec)
    ending.how(house)
    house.come_back(*house.away)
    _nobody_holds_anything(house, "j")
    if ending.stage in (waiting, kept_for):
        house.release("holder")
    house.ask("next", PAIR_AT_20_USD, RIVAL)
    granted_next = [gang for said in house.all(MarketCleared) for gang in said.gangs if gang.job == "next"]
    assert [len(gang.grants) for gang in granted_next] == [2], "all of it is sold again"


def test_a_job_that_could_not_pay_holds_nothing() -> None:
    house = House(*NODES)
    house.ask("j", replace(PAIR, max_price_microusd_per_gpu_hour=FIRST_CREDIT_MICROUSD))
    assert [event.job for event in house.all(JobUnfunded)] == ["j"]
    assert house.balance_microusd(wallet(BUYER)) == FIRST_CREDIT_MICROUSD
    assert "j" not in str(house.matcher.state.jobs)


@pytest.mark.parametrize("stage", [waiting, kept_for, granted])
def test_a_request_cancelled_before_it_runs_gives_everything_back_at_once(stage: Callable[[JobSpec], House]) -> None:
    """Reported as akash support#193: 15 to 25 minutes later."""
    house = stage(PAIR)
    before_ms = house.now_ms
    house.release("j")
    house.come_back(*house.away)
    assert house.now_ms == before_ms
    assert house.balance_microusd(hold("j")) == 0
    assert [event.job for event in house.all(JobClosed)] == ["j"]
    _nobody_holds_anything(house, "j")


def test_a_provider_that_was_away_at_the_release_is_told_when_it_is_back_and_its_gpus_are_sold_again() -> None:
    """Reported as akash support#515: the release was lost, and the GPUs were stranded."""
    house = running(PAIR)
    house.away.add("n2")
    house.release("j")
    house.passes(3_600)
    assert [(lease.lease, lease.phase) for lease in house.told("n2")] == [("j-2", "stop")], "it stands until it is done"
    assert set(house.matcher.state.leases) == {"j-2"}, "and what may still run there is not sold"
    house.come_back("n2")
    assert house.told("n2") == []
    _nobody_holds_anything(house, "j")


def _nobody_holds_anything(house: House, job: str) -> None:
    house.covered()
    matcher, provisioner = house.matcher.state, house.provisioner.state
    assert [lease for lease, held in matcher.leases.items() if held.job == job] == []
    assert all(job not in names for names in (matcher.jobs, matcher.open, matcher.reasons, matcher.reservations))
    assert [what for what, name in matcher.due_ms if name == job] == []
    assert [lease for node in NODES for lease in house.told(node) if lease.job == job] == []
    assert isinstance(provisioner.clusters[job], Cleared)
    assert job not in provisioner.due_ms
    assert job not in provisioner.leases.values()
    assert house.balance_microusd(hold(job)) == 0
    assert len([event for event in house.all(ClusterReleased) if event.job == job]) <= 1
    report = audit(house.entries)
    assert report.findings == ()
    assert next(one.stage for one in report.jobs if one.job == job) == "closed"
    assert audit_market(house.entries).findings == ()
