"""The market's audit finds whatever was changed in it, and says where."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.unit.audit.markets import (
    changed,
    codes,
    eventful,
    place_of,
    with_bid,
    with_gang,
    with_grant,
    with_terms,
    without,
)
from tests.unit.matcher.builders import MODEL, USD, Market, cleared, drained, resumed, spec, withdrawn
from volt.audit.market import audit_market
from volt.audit.report import MarketCode
from volt.contracts.bids import BidAccepted, ModelTerms, Terms
from volt.contracts.clusters import LeaseCleared, MembersWanted
from volt.contracts.jobs import JobAdmitted, JobReleaseAccepted
from volt.contracts.ledger import JobFunded, MembersFunded
from volt.contracts.log import Entry
from volt.contracts.market import Gang, Grant, MarketCleared
from volt.contracts.nodes import NodeAlive

Log = list[Entry]
EVENTFUL = eventful().entries


def _gang(job: str, of: int = 0, **fields: object) -> Callable[[Log], Log]:
    return lambda log: with_gang(log, job, lambda gang: replace(gang, **fields), of)


def _grant(job: str, **fields: object) -> Callable[[Log], Log]:
    return lambda log: with_grant(log, job, lambda grant: replace(grant, **fields))


def _bid(node: str, **fields: object) -> Callable[[Log], Log]:
    return lambda log: with_bid(log, node, lambda bid: replace(bid, **fields))


def _place(node: str, **fields: object) -> Callable[[Log], Log]:
    return lambda log: with_bid(log, node, lambda bid: replace(bid, place=replace(bid.place, **fields)))


def _terms(node: str, **terms: int | bool) -> Callable[[Log], Log]:
    return lambda log: with_terms(log, node, **terms)


def _spec(job: str, **fields: object) -> Callable[[Log], Log]:
    def asked(event: JobAdmitted) -> JobAdmitted:
        return replace(event, spec=replace(event.spec, **fields)) if event.job == job else event

    return lambda log: changed(log, JobAdmitted, asked)


def _cap(job: str, cap_microusd: int) -> Callable[[Log], Log]:
    def capped(event: JobFunded) -> JobFunded:
        return replace(event, cap_microusd_per_gpu_hour=cap_microusd) if event.job == job else event

    return lambda log: changed(log, JobFunded, capped)


def _members_cap(cap_microusd: int) -> Callable[[Log], Log]:
    return lambda log: changed(log, MembersFunded, lambda event: replace(event, cap_microusd_per_gpu_hour=cap_microusd))


def _excluding(*nodes: str) -> Callable[[Log], Log]:
    return lambda log: changed(log, MembersWanted, lambda event: replace(event, excluded=nodes))


def _reliable(permille: int) -> Callable[[Log], Log]:
    return lambda log: changed(log, NodeAlive, lambda event: replace(event, reliability_permille=permille))


def _gpus(node: str, **fields: object) -> Callable[[Log], Log]:
    return lambda log: with_bid(
        log, node, lambda bid: replace(bid, gpus=tuple(replace(gpu, **fields) for gpu in bid.gpus))
    )


def _without_one_gpu(gang: Gang) -> Gang:
    first = gang.grants[0]
    return replace(gang, grants=(replace(first, gpus=first.gpus[1:]), *gang.grants[1:]))


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("gang_not_whole", lambda log: with_gang(log, "pair", lambda gang: replace(gang, grants=gang.grants[:1]))),
        ("gang_not_whole", lambda log: with_gang(log, "pair", _without_one_gpu)),
        ("gang_not_whole", lambda log: with_gang(log, "pair", _without_one_gpu, attempt=1)),
        ("ranks_wrong", _grant("pair", rank=1)),
        ("ranks_wrong", _gang("pair", generation=2)),
        ("lease_misnumbered", _grant("small", lease="small-2")),
        ("price_wrong", _gang("pair", price_microusd_per_gpu_hour=USD + 1)),
        ("price_wrong", _gang("pair", price_microusd_per_gpu_hour=USD + 3)),
        ("price_wrong", _terms("n2", ask_microusd_per_gpu_hour=USD + 5)),
        ("price_wrong", _gang("pair", 1, price_microusd_per_gpu_hour=USD + 1)),
        ("price_above_cap", _cap("pair", USD + 1)),
        ("price_above_cap", _members_cap(USD)),
        ("model_wrong", _gang("pair", model="rtx-3090-24gb")),
        ("model_wrong", _spec("pair", models=("rtx-3090-24gb",))),
        ("memory_short", _gpus("n1", memory_mib=23_999)),
        ("interface_wrong", _spec("pair", interface="sxm")),
        ("bandwidth_short", _place("n1", bandwidth_gbps=199)),
        ("reliability_low", _reliable(899)),
        ("tier_wrong", _bid("n1", tier="community")),
        ("runtime_wrong", _bid("n1", runtime="docker")),
        ("place_wrong", _spec("pair", regions=("us",))),
        ("place_wrong", _spec("pair", regions_denied=("eu",))),
        ("place_wrong", _spec("pair", countries=("FR",))),
        ("place_wrong", _spec("pair", countries_denied=("DE",))),
        ("place_wrong", _place("n1", country="")),
        ("node_excluded", _spec("pair", providers_excluded=("owner-n1",))),
        ("node_excluded", _excluding("n3")),
        ("terms_broken", _terms("n1", paused=True)),
        ("terms_broken", _terms("n5", gpus_min=5)),
        ("terms_broken", _terms("n1", max_duration_seconds=60)),
        ("terms_broken", _terms("n1", available_from_ms=2_000_000_000_000)),
        ("terms_broken", _terms("n1", available_until_ms=2_000_000_000_000)),
        ("apart", _place("n2", fabric="B")),
        ("apart", _place("n2", fabric="")),
        ("apart", _spec("pair", interconnect="nvlink")),
        ("apart", _place("n3", fabric="B")),
        ("domain_wrong", _gang("pair", domain="site:eu/s1")),
        ("job_unknown", _gang("small", account="thief")),
        ("granted_unfunded", lambda log: without(log, JobFunded, job="small")),
        ("granted_unfunded", lambda log: without(log, MembersFunded, job="pair")),
        ("not_wanted", lambda log: without(log, MembersWanted, job="pair")),
        ("not_wanted", _gang("pair", 1, attempt=7)),
        ("node_drained", lambda log: [Entry(0, 0, drained("n1")), *log]),
        ("node_not_offered", _grant("small", provider="thief")),
        ("node_not_offered", lambda log: without(log, BidAccepted)),
        ("node_not_offered", lambda log: without(log, NodeAlive)),
        ("gpu_not_offered", _grant("small", gpus=("n5-0", "n5-1", "n5-2", "x"))),
        ("gpu_leased_twice", _grant("small", gpus=("n5-0", "n5-1", "n5-2", "n1-0"))),
        ("gpu_leased_twice", _grant("small", gpus=("n5-0", "n5-0", "n5-1", "n5-2"))),
        ("gpu_leased_twice", lambda log: without(log, LeaseCleared, job="pair")),
        ("reserved_sold", lambda log: with_grant(log, "wide", lambda one: replace(one, node="n5", gpus=("n5-0",)))),
    ],
)
def test_each_rule_that_is_broken_is_found(code: MarketCode, change: Callable[[Log], Log]) -> None:
    assert code in codes(change(EVENTFUL))


def test_what_is_granted_after_a_drain_has_ended_is_right() -> None:
    assert codes([Entry(0, 0, drained("n1")), Entry(0, 0, resumed("n1")), *EVENTFUL]) == set()


def test_a_finding_says_which_pass_it_was_and_in_one_sentence_what_is_wrong() -> None:
    log = with_gang(EVENTFUL, "pair", lambda gang: replace(gang, price_microusd_per_gpu_hour=USD))
    (finding,) = audit_market(log).findings
    assert (finding.code, finding.about) == ("price_wrong", "pair")
    assert finding.seq == EVENTFUL[place_of(EVENTFUL, "pair")].seq
    assert finding.message == "costs $1.000000; the highest ask of its nodes is $1.000002"
    assert not audit_market(log).is_kept


def test_a_gpu_in_two_leases_is_found_and_both_are_named() -> None:
    market = Market()
    market.node("n1", 4)
    market.node("n2", 4)
    for job in ("a", "b"):
        market.job(job, spec(1, 4))
    market.settle()
    (said,) = (one.event for one in market.entries if isinstance(one.event, MarketCleared))
    a_gpus = said.gangs[0].grants[0].gpus
    log = with_grant(market.entries, "b", lambda grant: replace(grant, gpus=a_gpus))
    assert ("gpu_leased_twice", "b-1", "n1-0 is in a-1 of the same pass") in found(log)
    held = without(EVENTFUL, LeaseCleared, job="pair")
    assert ("gpu_leased_twice", "fill-0-1", "n2-0 is in pair-2, which is not cleared") in found(held)


def found(log: Log) -> list[tuple[MarketCode, str, str]]:
    return [(one.code, one.about, one.message) for one in audit_market(log).findings]


def test_a_gpu_is_leased_until_its_node_is_clear_and_not_until_its_job_ends() -> None:
    """The release of `other` alone gives nothing back: `big` may not have its GPUs before they are clear."""
    log = without(EVENTFUL, LeaseCleared, job="other")
    assert codes(log) == {"gpu_leased_twice"}


def test_what_a_pass_could_not_know_yet_does_not_count_for_it() -> None:
    place = place_of(EVENTFUL, "big")
    clearing = next(one for one in EVENTFUL if isinstance(one.event, LeaseCleared) and one.event.lease == "other-1")
    moved = [one for one in EVENTFUL[:place] if one is not clearing]
    said = EVENTFUL[place]._replace(seq=EVENTFUL[place].seq + 1)
    moved += [clearing._replace(seq=EVENTFUL[place].seq), said]
    assert codes(moved) == {"gpu_leased_twice"}, "it came behind what the pass had read"


def test_a_gpu_that_another_node_offered_before_is_that_node_s() -> None:
    market = Market()
    market.node("owner", ["g1"])
    market.node("thief", ["g1", "g2"])
    market.job("j", spec(1, 1), cap_microusd=2 * USD)
    market.settle()

    def stolen(grant: Grant) -> Grant:
        return replace(grant, node="thief", provider="owner-thief", gpus=("g1",))

    assert audit_market(market.entries).is_kept
    assert codes(with_grant(market.entries, "j", stolen)) == {"gpu_of_another_node"}


def test_a_node_that_no_longer_offers_a_leased_gpu_may_sell_nothing() -> None:
    market = Market()
    market.node("n1", 8)
    for job in ("a", "b"):
        market.job(job, spec(1, 4))
        market.settle()
    place, bid = place_of(market.entries, "a"), market.entries[0].event
    assert isinstance(bid, BidAccepted)
    smaller = market.entries[place]._replace(event=replace(bid, gpus=bid.gpus[1:]))
    assert codes([*market.entries[: place + 1], smaller, *market.entries[place + 1 :]]) == {"node_incomplete"}


def test_a_withdrawn_node_may_not_be_granted() -> None:
    market = Market()
    market.node("n1")
    market.job("j", spec(1, 1))
    late = market.plan()
    assert late is not None
    market.add(withdrawn("n1"))
    market.add(late)
    assert audit_market(market.entries).is_kept, "the pass could not know"
    knew = replace(late, through_seq=late.through_seq + 1)
    assert codes(changed(market.entries, MarketCleared, lambda _: knew)) == {"node_not_offered"}


def test_a_job_that_is_over_is_granted_nothing_by_a_pass_that_knows() -> None:
    place = place_of(EVENTFUL, "late")
    late = EVENTFUL[place].event
    assert isinstance(late, MarketCleared)
    assert isinstance(EVENTFUL[place - 1].event, JobReleaseAccepted)
    knew = EVENTFUL[place]._replace(event=replace(late, through_seq=EVENTFUL[place - 1].seq))
    assert codes([*EVENTFUL[:place], knew, *EVENTFUL[place + 1 :]]) == {"granted_after_end"}


@pytest.mark.parametrize(("job", "attempt"), [("pair", 0), ("pair", 1)])
def test_a_need_is_answered_once(job: str, attempt: int) -> None:
    place = place_of(EVENTFUL, job, attempt)
    said = EVENTFUL[place].event
    assert isinstance(said, MarketCleared)
    again = replace(said, through_seq=EVENTFUL[place].seq)
    log = [*EVENTFUL[: place + 1], EVENTFUL[place]._replace(seq=EVENTFUL[place].seq + 1, event=again)]
    assert {"granted_twice", "gpu_leased_twice", "node_repeated"} <= codes(log)
    double = replace(said, gangs=said.gangs * 2)
    assert "granted_twice" in codes([*EVENTFUL[:place], EVENTFUL[place]._replace(event=double)])


@pytest.mark.parametrize("through_seq", [0, 10_000])
def test_a_pass_that_says_it_knew_too_little_or_too_much_is_found(through_seq: int) -> None:
    log = changed(EVENTFUL, MarketCleared, lambda said: replace(said, through_seq=through_seq))
    assert "pass_out_of_order" in codes(log)


def test_terms_of_a_model_go_before_those_of_its_node() -> None:
    def dearer(bid: BidAccepted) -> BidAccepted:
        own = ModelTerms(model=MODEL, terms=Terms(ask_microusd_per_gpu_hour=USD + 9))
        return replace(bid, changed=(own,))

    assert "price_wrong" in codes(with_bid(EVENTFUL, "n2", dearer))


def test_a_lease_that_was_cleared_is_free_again() -> None:
    assert codes([*EVENTFUL, EVENTFUL[-1]._replace(event=cleared("big", "big-1", "n5"))]) == set()
