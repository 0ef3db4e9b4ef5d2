"""Who is matched and when: money first, one gang for each need, and nothing after the end."""

import pytest
from msgspec import structs

from tests.unit.matcher.builders import (
    AT_MS,
    USD,
    Market,
    admitted,
    alive,
    bid,
    cleared,
    completed,
    forming,
    funded,
    members_funded,
    nodes_of,
    released,
    spec,
    wanted,
)
from volt.contracts.errors import Reason
from volt.contracts.jobs import JobRejected
from volt.contracts.ledger import FundsExhausted, JobClosed, JobUnfunded
from volt.contracts.messages import Event
from volt_matcher.state import Admitted, Placed

ENDINGS: list[Event] = [
    released("j"),
    completed("j"),
    FundsExhausted(account="buyer", at_ms=AT_MS, job="j", exhausted_at_ms=AT_MS),
    JobUnfunded(account="buyer", at_ms=AT_MS, job="j", needed_microusd=2, balance_microusd=1),
    JobClosed(account="buyer", at_ms=AT_MS, job="j", lines=()),
]


def placed_market(nodes: int = 2) -> Market:
    """Job `j` runs on n1 and n2; n3 and n4 are free and on the same fabric."""
    market = Market()
    for name in ("n1", "n2", "n3", "n4"):
        market.node(name)
    market.job("j", spec(nodes, interconnect="fabric"))
    assert nodes_of(market.gangs()["j"]) == ["n1", "n2"][:nodes]
    return market


def test_a_job_without_money_on_hold_is_not_matched() -> None:
    market = Market(bid("n1"), alive("n1"), admitted("j", spec()))
    assert market.settle() == []
    market.add(funded("j"))
    assert list(market.gangs()) == ["j"]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda event: type(event).__name__)
def test_a_job_that_ends_before_its_grant_leaves_the_queue(ending: Event) -> None:
    market = Market()
    market.job("j", spec())
    market.add(ending)
    market.node("n1")
    assert market.settle() == []


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda event: type(event).__name__)
def test_a_gang_later_than_its_job_s_end_is_void_and_holds_nothing(ending: Event) -> None:
    market = Market()
    market.node("n1")
    market.job("j", spec())
    overtaken = market.plan()
    assert overtaken is not None
    market.add(ending, overtaken)
    assert market.free("n1") == 8
    assert (market.state.leases, market.state.leased) == ({}, set())
    market.job("next", spec())
    assert nodes_of(market.gangs()["next"]) == ["n1"]


def test_a_gang_earlier_than_its_job_s_end_holds_its_gpus_until_they_are_cleared() -> None:
    market = placed_market()
    market.add(released("j"))
    assert market.free("n1") == 0
    market.add(cleared("j", "j-1", "n1"))
    assert (market.free("n1"), market.free("n2")) == (8, 0)


def test_a_reason_later_than_its_job_s_end_is_not_kept() -> None:
    market = Market()
    market.job("j", spec())
    late = market.plan()
    assert late is not None
    market.add(released("j"), late)
    assert market.state.reasons == {}


def test_money_that_comes_after_the_end_changes_nothing() -> None:
    market = Market(admitted("j", spec()), released("j"), funded("j"))
    market.node("n1")
    assert market.settle() == []


def test_refusing_a_reused_request_id_does_not_end_the_job() -> None:
    refused = JobRejected(
        account="buyer",
        job="j",
        request_id="j",
        at_ms=AT_MS,
        request_digest="other",
        reason=Reason(code="request_id_reused", message="used before"),
    )
    market = Market()
    market.job("j", spec())
    market.add(refused)
    market.node("n1")
    assert list(market.gangs()) == ["j"]


def test_a_job_gets_one_first_gang_however_often_it_is_funded() -> None:
    market = placed_market()
    market.add(funded("j"), admitted("j", spec()))
    assert market.settle() == []
    assert isinstance(market.state.jobs["j"], Placed)


def test_a_vacancy_is_matched_only_when_it_is_funded() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1), excluded=("n2",)))
    assert market.settle() == []
    market.add(members_funded("j", 1))
    gang = market.gangs()["j"]
    assert (gang.generation, gang.attempt) == (2, 1)
    assert [(grant.rank, grant.lease, grant.node) for grant in gang.grants] == [(1, "j-3", "n3")]


def test_money_for_another_generation_funds_no_vacancy() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1)), members_funded("j", 1, generation=3), members_funded("j", 2))
    assert market.settle() == []


def test_an_attempt_is_granted_once_however_often_it_is_wanted() -> None:
    market = placed_market()
    market.want("j", 1, 1)
    assert list(market.gangs()) == ["j"]
    market.want("j", 1, 1)
    assert market.settle() == []


def test_a_vacancy_said_again_may_exclude_more_and_keeps_its_money() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1), excluded=("n2",)), members_funded("j", 1))
    market.add(wanted("j", (1, 1), excluded=("n2", "n3")))
    assert nodes_of(market.gangs()["j"]) == ["n4"]


def test_each_vacancy_gets_its_own_gang_and_lease_numbers_go_on() -> None:
    market = placed_market()
    market.add(wanted("j", (0, 1), (1, 2), excluded=("n1", "n2")), members_funded("j", 1, 2))
    (said,) = market.settle()
    assert [(gang.attempt, gang.grants[0].rank, gang.grants[0].lease, gang.grants[0].node) for gang in said.gangs] == [
        (1, 0, "j-3", "n3"),
        (2, 1, "j-4", "n4"),
    ]


def test_a_replacement_avoids_excluded_nodes_and_those_where_the_job_still_holds_a_lease() -> None:
    market = placed_market(nodes=1)
    market.want("j", 0, 1, excluded=("n2", "n3"))
    assert nodes_of(market.gangs()["j"]) == ["n4"]
    small = Market()
    small.node("n1")
    small.job("j", spec(each=2))
    small.settle()
    small.want("j", 0, 1)
    assert small.waiting()["j"].binding == "excluded"
    small.add(cleared("j", "j-1", "n1"))
    assert nodes_of(small.gangs()["j"]) == ["n1"]


def test_two_vacancies_of_a_job_never_get_the_same_node() -> None:
    market = Market()
    for name in ("n1", "n2"):
        market.node(name, 2)
    market.job("j", spec(2, 2))
    market.settle()
    market.node("n3", 8)
    market.add(wanted("j", (0, 1), (1, 2)), members_funded("j", 1, 2))
    assert list(market.gangs()) == ["j"]
    market.node("n4", 8)
    assert nodes_of(market.gangs()["j"]) == ["n4"]


def test_a_later_attempt_at_a_rank_takes_the_place_of_an_earlier_one() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1)), wanted("j", (1, 2)), members_funded("j", 1), members_funded("j", 2))
    (said,) = market.settle()
    assert [gang.attempt for gang in said.gangs] == [2]


def test_an_earlier_attempt_does_not_come_back_while_a_later_one_is_open() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 2)), wanted("j", (1, 1)), members_funded("j", 1))
    assert market.settle() == []
    market.add(members_funded("j", 2))
    assert market.gangs()["j"].attempt == 2


def test_a_new_generation_drops_what_the_one_before_it_wanted() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1)), members_funded("j", 1), forming("j", 3))
    assert market.settle() == []
    market.add(wanted("j", (1, 2), generation=3), members_funded("j", 2, generation=3))
    gang = market.gangs()["j"]
    assert (gang.generation, gang.attempt) == (3, 2)


def test_a_gang_that_was_overtaken_by_a_new_generation_is_void_and_its_number_is_used_up() -> None:
    market = placed_market()
    market.want("j", 1, 1)
    overtaken = market.plan()
    assert overtaken is not None
    market.add(forming("j", 3), overtaken)
    assert market.free("n3") == 8
    market.add(wanted("j", (1, 2), generation=3), members_funded("j", 2, generation=3))
    assert market.gangs()["j"].grants[0].lease == "j-4"


def test_an_attempt_that_was_granted_in_vain_can_be_wanted_by_the_next_generation() -> None:
    market = placed_market()
    market.want("j", 1, 1)
    overtaken = market.plan()
    assert overtaken is not None
    market.add(forming("j", 3), wanted("j", (1, 1), generation=3), overtaken)
    assert market.free("n3") == 8
    market.add(members_funded("j", 1, generation=3))
    gang = market.gangs()["j"]
    assert (gang.generation, gang.attempt, gang.grants[0].lease) == (3, 1, "j-4")


def test_a_rank_that_fails_before_the_first_start_is_replaced_within_generation_1() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1), generation=1, excluded=("n2",)), members_funded("j", 1, generation=1))
    gang = market.gangs()["j"]
    assert (gang.generation, gang.attempt, nodes_of(gang)) == (1, 1, ["n3"])


def test_a_replacement_is_priced_by_itself_under_the_cap_of_its_funding() -> None:
    market = placed_market()
    market.add(bid("n3", ask_microusd=3 * USD), bid("n4", ask_microusd=USD + 5))
    market.want("j", 1, 1)
    assert market.gangs()["j"].price_microusd_per_gpu_hour == USD + 5
    market.add(wanted("j", (1, 2)), members_funded("j", 2, cap_microusd=3 * USD - 1))
    assert market.waiting()["j"].binding == "price"


def test_a_released_job_s_vacancies_are_gone() -> None:
    market = placed_market()
    market.add(wanted("j", (1, 1)), members_funded("j", 1), released("j"), wanted("j", (0, 2)), members_funded("j", 2))
    assert market.settle() == []
    assert market.state.open == set()


def test_a_market_message_that_grants_leased_gpus_is_impossible() -> None:
    market = Market()
    market.node("n1")
    market.job("a", spec())
    first = market.plan()
    assert first is not None
    market.job("b", spec())
    market.add(first)
    stolen = structs.replace(first.gangs[0], job="b")
    with pytest.raises(AssertionError, match="leased"):
        market.add(structs.replace(first, gangs=(stolen,)))


def test_a_second_first_gang_and_a_gang_of_an_unfunded_job_are_impossible() -> None:
    market = Market()
    market.node("n1")
    market.job("j", spec(each=1))
    said = market.plan()
    assert said is not None
    market.add(said, cleared("j", "j-1", "n1"))
    with pytest.raises(AssertionError, match="granted"):
        market.add(said)
    unpaid = Market(admitted("j", spec(each=1)))
    assert isinstance(unpaid.state.jobs["j"], Admitted)
    with pytest.raises(AssertionError, match="granted"):
        unpaid.add(said)
