"""The market's audit passes a market that kept its rules, whatever happened in it."""

from msgspec.structs import replace

from tests.unit.audit.markets import changed, codes, eventful, with_bid
from tests.unit.matcher.builders import AT_MS, B, Market, lost, members_funded, nodes_of, spec, wanted
from tests.unit.matcher.test_reserve import Hour, lasting
from volt.audit.market import audit_market
from volt.contracts.jobs import JobAdmitted
from volt.contracts.nodes import BeatsCovered


def test_a_market_that_keeps_its_rules_is_told_in_figures() -> None:
    report = audit_market(eventful().entries)
    assert report.is_kept
    assert (report.passes, report.gangs, report.leases, report.void, report.held) == (11, 10, 11, 2, 6)


def test_every_beginning_of_a_log_keeps_the_rules_too() -> None:
    entries = eventful().entries
    assert all(audit_market(entries[:length]).is_kept for length in range(len(entries)))


def test_what_is_kept_may_be_lent_to_a_job_that_ends_in_time() -> None:
    hour = Hour(10, 60, 60, 60)
    hour.starve()
    hour.market.job("brief", lasting(5))
    assert hour.free("n1") == ["brief"]
    assert audit_market(hour.market.entries).is_kept

    def endless(event: JobAdmitted) -> JobAdmitted:
        return replace(event, spec=spec(1, 8)) if event.job == "brief" else event

    assert codes(changed(hour.market.entries, JobAdmitted, endless)) == {"reserved_sold"}


def test_a_replacement_may_take_what_is_kept() -> None:
    hour = Hour(None, None, None, None)
    hour.starve()
    hour.free("n1")
    hour.market.add(lost("n2"))
    hour.market.want(hour.holders["n2"][1], 0, 1)
    assert hour.granted() == [hour.holders["n2"][1]]
    assert audit_market(hour.market.entries).is_kept


def test_a_node_alone_may_be_replaced_anywhere_and_who_joins_it_must_be_near() -> None:
    market = Market()
    market.node("a1")
    market.job("j", spec(1, 8, interconnect="fabric"))
    market.settle()
    market.node("b1", place=B)
    market.add(wanted("j", (0, 1), generation=1, excluded=("a1",)), members_funded("j", 1, generation=1))
    assert nodes_of(market.gangs()["j"]) == ["b1"]
    assert audit_market(market.entries).is_kept
    grown = Market()
    for node in ("a1", "a2"):
        grown.node(node)
    grown.job("j", spec(1, 8, interconnect="fabric"))
    grown.settle()
    grown.add(wanted("j", (1, 1), generation=1), members_funded("j", 1, generation=1))
    assert nodes_of(grown.gangs()["j"]) == ["a2"]
    assert audit_market(grown.entries).is_kept
    elsewhere = with_bid(grown.entries, "a2", lambda bid: replace(bid, place=B))
    assert codes(elsewhere) == {"apart", "domain_wrong"}


def test_what_the_market_does_not_read_is_passed_over() -> None:
    entries = eventful().entries
    cover = BeatsCovered(spans=(), complete_to_ms=AT_MS, at_ms=AT_MS)
    padded = [entries[0]._replace(seq=0, event=cover), *entries]
    assert audit_market(padded) == audit_market(entries)
