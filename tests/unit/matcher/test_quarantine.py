"""A GPU that has failed is not sold, and the others of its node are; but none while it offers one that has vanished."""

import pytest

from tests.unit.matcher.builders import AT_MS, Market, bid, cleared, nodes_of, spec
from volt.audit.market import audit_market
from volt.contracts.faults import Fault
from volt.contracts.log import Entry
from volt.contracts.nodes import GpuFaulted, GpuQuarantined, NodeQuarantined, NodeRated, QuarantineEnded

FAULT = Fault(kind="xid", xid=48, name="ROBUST_CHANNEL_GPU_ECC_DBE", number=1)


def quarantined(
    *gpus: str, node: str = "n1", kind: type[GpuQuarantined] | type[NodeQuarantined] = GpuQuarantined, account: str = ""
) -> GpuQuarantined | NodeQuarantined:
    return kind(
        account=account or f"owner-{node}",
        node=node,
        incarnation="1",
        at_ms=AT_MS,
        gpus=gpus,
        fault=FAULT,
        reliability_permille=930,
    )


def recovered(*gpus: str, node: str = "n1") -> QuarantineEnded:
    return QuarantineEnded(account=f"owner-{node}", node=node, incarnation="2", at_ms=AT_MS, gpus=gpus)


def test_seven_of_eight_are_sold_and_the_eighth_is_not() -> None:
    """Reported as akash support#249."""
    market = Market()
    market.node("n1")
    market.add(quarantined("n1-3"))
    assert market.free("n1") == 7
    market.job("whole", spec(each=8))
    assert market.waiting()["whole"].infeasible
    market.job("seven", spec(each=7))
    granted = market.gangs()["seven"].grants[0]
    assert set(granted.gpus) == {f"n1-{number}" for number in range(8)} - {"n1-3"}
    market.add(recovered("n1-3"))
    assert market.free("n1") == 1


def test_a_vanished_gpu_stops_new_grants_on_its_node_until_it_is_offered_no_more() -> None:
    """Reported as akash support#137."""
    market = Market()
    market.node("n1")
    market.add(quarantined("n1-3", kind=NodeQuarantined))
    assert market.free("n1") == 0
    market.job("one", spec(each=1))
    assert market.waiting()["one"].infeasible
    market.add(bid("n1", [f"n1-{number}" for number in range(8) if number != 3]))
    assert list(market.gangs()) == ["one"]
    assert market.free("n1") == 6


def test_a_node_whose_only_gpu_has_failed_sells_nothing() -> None:
    market = Market()
    market.node("n1", 1)
    market.add(quarantined("n1-0"))
    market.job("one", spec(each=1))
    assert market.gangs() == {}
    market.add(recovered("n1-0"))
    assert list(market.gangs()) == ["one"]


def test_a_leased_gpu_that_fails_is_not_sold_again_once_it_is_clear() -> None:
    market = Market()
    market.node("n1", 2)
    market.job("first", spec(each=2))
    assert list(market.gangs()) == ["first"]
    market.add(quarantined("n1-0"), cleared("first", "first-1", "n1"))
    assert market.free("n1") == 1


def test_a_stranger_quarantines_nothing() -> None:
    market = Market()
    market.node("n1")
    market.add(quarantined("n1-3", account="stranger"))
    assert market.free("n1") == 8


def test_the_last_that_was_told_of_its_reliability_counts() -> None:
    market = Market()
    market.node("n1")
    key = ("owner-n1", "n1")
    assert market.state.reliability_permille[key] == 1_000
    market.add(quarantined("n1-3"))
    assert market.state.lots["n1"][0].reliability_permille == 930
    market.add(NodeRated(account="owner-n1", node="n1", incarnation="1", at_ms=AT_MS, reliability_permille=960))
    assert market.state.lots["n1"][0].reliability_permille == 960
    market.add(
        GpuFaulted(
            account="owner-n1",
            node="n1",
            incarnation="1",
            at_ms=AT_MS,
            gpus=("n1-1",),
            fault=FAULT,
            reliability_permille=950,
        )
    )
    assert (market.state.lots["n1"][0].reliability_permille, market.free("n1")) == (950, 7)


def codes(entries: list[Entry]) -> set[str]:
    return {finding.code for finding in audit_market(entries).findings}


@pytest.mark.parametrize(
    ("fault", "is_found"),
    [
        (quarantined("n1-0"), True),
        (quarantined("n1-7"), False),
        (quarantined("n1-0", account="stranger"), False),
        (quarantined("n1-7", kind=NodeQuarantined), True),
        (quarantined("n1-9", kind=NodeQuarantined), False),
    ],
)
def test_the_audit_finds_a_sale_of_what_is_quarantined(fault: GpuQuarantined | NodeQuarantined, is_found: bool) -> None:
    """`n1-9` is not offered, so that it closes nothing."""
    market = Market()
    market.node("n1")
    market.job("two", spec(each=2))
    assert nodes_of(market.gangs()["two"]) == ["n1"]
    assert codes(market.entries) == set()
    place = next(number for number, entry in enumerate(market.entries) if type(entry.event).__name__ == "JobFunded")
    before = market.entries[place]
    changed = [*market.entries[:place], Entry(before.seq, before.at_ms, fault), *market.entries[place:]]
    assert ("gpu_quarantined" in codes(changed)) == is_found


def test_the_audit_knows_that_a_quarantine_has_ended() -> None:
    market = Market()
    market.node("n1")
    market.add(quarantined("n1-0", kind=NodeQuarantined), recovered("n1-0"))
    market.job("all", spec(each=8))
    assert list(market.gangs()) == ["all"]
    assert codes(market.entries) == set()
