"""Nobody starves: what frees up is kept for a gang that has waited for long, and lent to those who end in time."""

import pytest
from msgspec.structs import replace

from tests.unit.matcher.builders import (
    AT_MS,
    MODEL,
    USD,
    A,
    B,
    Market,
    alive,
    bid,
    cleared,
    nodes_of,
    released,
    spec,
)
from volt.contracts.jobs import JobSpec
from volt.contracts.market import MarketCleared, Reservation
from volt_matcher.effects import effects
from volt_matcher.replay import Replay
from volt_matcher.reserve import GRACE_MS, RESERVATION_MS_MAX, RESERVE_AFTER_MS, START_MS_MAX

MINUTE_MS = 60_000
NODES = ("n1", "n2", "n3", "n4")
SMALL = spec(1, 8)
GANG = spec(4, 8, interconnect="fabric")


def lasting(minutes: int, what: JobSpec = SMALL) -> JobSpec:
    return replace(what, max_duration_seconds=minutes * 60)


class Hour:
    """Four nodes on one fabric, all leased, and a gang that needs all of them."""

    def __init__(self, *durations: int | None) -> None:
        self.market = Market()
        for node in NODES:
            self.market.node(node)
        for number, minutes in enumerate(durations):
            self.market.job(f"small-{number}", SMALL if minutes is None else lasting(minutes))
            self.market.run()
        self.holders = {lease.node: (name, lease.job) for name, lease in self.market.state.leases.items()}
        self.market.job("gang", GANG)
        self.market.settle()

    def pass_ms(self, ms: int) -> list[MarketCleared]:
        """What the matcher says after so long."""
        self.market.at_ms += ms
        said = []
        while found := effects(self.market.state, self.market.at_ms):
            self.market.add(*found)
            said += [one for one in found if isinstance(one, MarketCleared)]
        return said

    def starve(self) -> Reservation:
        """Lets the gang wait until GPUs are kept for it."""
        said = self.pass_ms(RESERVE_AFTER_MS)
        (reservation,) = [one for message in said for one in message.reservations]
        return reservation

    def free(self, node: str) -> list[str]:
        """A node's small job ends; returns the jobs that are granted then."""
        lease, job = self.holders[node]
        self.market.add(released(job), cleared(job, lease, node))
        return self.granted()

    def granted(self) -> list[str]:
        return [gang.job for said in self.pass_ms(1) for gang in said.gangs]


def test_nothing_is_kept_before_a_gang_has_waited_for_long() -> None:
    hour = Hour(30, 30, 30, 30)
    assert not any(said.reservations for said in hour.pass_ms(RESERVE_AFTER_MS - 1))
    assert len(hour.pass_ms(1)[-1].reservations) == 1


def test_in_a_stream_of_small_jobs_a_gang_is_placed_when_its_last_gpu_frees() -> None:
    hour = Hour(None, None, None, None)
    reservation = hour.starve()
    assert {lot.node for lot in reservation.lots} == set(NODES)
    for number, node in enumerate(NODES[:3]):
        hour.market.job(f"late-{number}", SMALL)
        assert hour.free(node) == [], "what frees up is kept, though the stream would take it"
    assert hour.free("n4")[0] == "gang"


def test_without_a_reservation_the_stream_takes_what_frees_up() -> None:
    hour = Hour(None, None, None, None)
    hour.market.job("late", SMALL)
    assert hour.free("n1") == ["late"]


def test_a_job_that_ends_in_time_is_let_in_and_one_that_does_not_is_not() -> None:
    hour = Hour(10, 60, 60, 60)
    reservation = hour.starve()
    assert reservation.free_ms == AT_MS + START_MS_MAX + 60 * MINUTE_MS
    left_minutes = (reservation.free_ms - hour.market.at_ms - START_MS_MAX) // MINUTE_MS
    hour.market.job("too-long", lasting(left_minutes + 1))
    hour.market.job("endless", SMALL)
    assert hour.free("n1") == []
    hour.market.job("brief", lasting(left_minutes - 1))
    assert hour.granted() == ["brief"]


def test_backfill_does_not_delay_the_gang() -> None:
    hour = Hour(10, 60, 60, 60)
    hour.starve()
    hour.market.job("brief", lasting(5))
    assert hour.free("n1") == ["brief"]
    lease = next(name for name, one in hour.market.state.leases.items() if one.job == "brief")
    hour.market.add(released("brief"), cleared("brief", lease, "n1"))
    hour.market.job("late", SMALL)
    for node in ("n2", "n3"):
        assert hour.free(node) == []
    assert hour.free("n4")[0] == "gang"


def test_what_is_kept_is_not_promised_to_who_only_asks_though_it_is_lent_in_the_same_pass() -> None:
    hour = Hour(10, 60, 60, 60)
    hour.starve()
    assert hour.free("n1") == []
    hour.market.job("brief", lasting(5, spec(1, 4)))
    hour.market.ask("q", spec(1, 4))
    (said,) = hour.pass_ms(1)[:1]
    assert [gang.job for gang in said.gangs] == ["brief"]
    assert [quote.gang for quote in said.quotes] == [None]


def test_while_nobody_knows_when_the_rest_is_free_nothing_is_lent() -> None:
    hour = Hour(10, None, None, None)
    assert hour.starve().free_ms is None
    hour.market.job("brief", lasting(1))
    assert hour.free("n1") == []


def test_a_reservation_names_gpus_and_not_the_rest_of_the_node() -> None:
    market = Market()
    for node in ("n1", "n2"):
        market.node(node)
    market.job("a", spec(1, 8))
    market.job("b", spec(1, 4))
    market.settle()
    market.job("gang", spec(2, 4, interconnect="fabric"))
    market.settle()
    market.at_ms += RESERVE_AFTER_MS
    (said,) = market.settle()
    assert [(lot.node, lot.gpus) for lot in said.reservations[0].lots] == [("n2", 4), ("n1", 4)]
    (lease,) = [name for name, one in market.state.leases.items() if one.job == "b"]
    market.add(released("b"), cleared("b", lease, "n2"))
    market.job("late", spec(1, 4))
    (gang,) = [gang for one in market.settle() for gang in one.gangs]
    assert (gang.job, nodes_of(gang)) == ("late", ["n2"]), "the other half of the node is kept"


def test_of_leases_on_a_node_no_more_are_waited_for_than_have_to_end() -> None:
    market = Market()
    for node in ("n1", "n2"):
        market.node(node)
        for minutes in (60, 10):
            market.job(f"{node}-{minutes}", lasting(minutes, spec(1, 4)))
            market.settle()
    market.job("gang", spec(2, 4, interconnect="fabric"))
    market.settle()
    market.at_ms += RESERVE_AFTER_MS
    (said,) = market.settle()
    assert said.reservations[0].free_ms == AT_MS + START_MS_MAX + 10 * MINUTE_MS


@pytest.mark.parametrize(("what", "kept"), [(SMALL, {"n2", "n3"}), (lasting(5), {"n1", "n2"})])
def test_what_the_same_pass_sells_is_kept_only_from_when_it_will_be_free_again(what: JobSpec, kept: set[str]) -> None:
    """n1 frees up and is sold in the very pass that keeps GPUs for the gang; the others are leased for half an hour."""
    market = Market()
    for node in ("n1", "n2", "n3"):
        market.node(node)
        market.job(f"on-{node}", lasting(30))
        market.settle()
    market.job("gang", spec(2, 8, interconnect="fabric"))
    market.settle()
    market.at_ms += RESERVE_AFTER_MS
    market.add(released("on-n1"), cleared("on-n1", "on-n1-1", "n1"))
    market.job("sold", what, cap_microusd=9 * USD)
    (said,) = market.settle()
    assert [nodes_of(gang) for gang in said.gangs] == [["n1"]]
    assert {lot.node for lot in said.reservations[0].lots} == kept
    assert said.reservations[0].free_ms == AT_MS + START_MS_MAX + 30 * MINUTE_MS


def test_leases_of_another_model_free_nothing_of_this_one() -> None:
    market = Market()
    for node, model in (("n1", MODEL), ("n2", MODEL)):
        both = replace(bid(node, 8), gpus=(*bid(node, 8).gpus, *bid(f"{node}-x", 8, model="other").gpus))
        market.add(both, alive(node))
        market.job(f"brief-{node}", lasting(1, spec(1, 8, models=("other",))))
        market.job(f"long-{node}", lasting(60, spec(1, 8, models=(model,))))
        market.settle()
    market.job("gang", spec(2, 8, interconnect="fabric"))
    market.settle()
    market.at_ms += RESERVE_AFTER_MS
    (said,) = market.settle()
    assert said.reservations[0].free_ms == AT_MS + START_MS_MAX + 60 * MINUTE_MS


def test_a_reservation_is_over_with_its_time_and_made_anew() -> None:
    hour = Hour(None, None, None, None)
    first = hour.starve()
    assert first.until_ms == hour.market.at_ms + RESERVATION_MS_MAX
    again = [one for said in hour.pass_ms(RESERVATION_MS_MAX) for one in said.reservations]
    assert [one.job for one in again] == ["gang"]


def test_a_known_end_gives_the_reservation_some_grace() -> None:
    reservation = Hour(10, 10, 10, 10).starve()
    assert reservation.free_ms is not None
    assert reservation.until_ms == reservation.free_ms + GRACE_MS


def test_nothing_is_kept_for_a_job_that_is_over() -> None:
    hour = Hour(None, None, None, None)
    hour.starve()
    hour.market.add(released("gang"))
    hour.market.job("late", SMALL)
    assert hour.free("n1") == ["late"]
    assert hour.market.state.reservations == {}


def test_a_gang_that_existing_supply_could_never_hold_keeps_nothing() -> None:
    hour = Hour(None, None, None, None)
    hour.market.job("giant", spec(5, 8, interconnect="fabric"))
    hour.market.job("poor", GANG, cap_microusd=USD - 1)
    hour.pass_ms(0)
    kept = {one.job for said in hour.pass_ms(RESERVE_AFTER_MS) for one in said.reservations}
    assert kept == {"gang"}


def test_what_is_kept_is_of_one_domain() -> None:
    market = Market()
    for node, place in (("a1", A), ("b1", B), ("b2", B)):
        market.node(node, place=place)
    for number in range(3):
        market.job(f"s{number}", SMALL)
    market.settle()
    market.job("gang", spec(2, 8, interconnect="fabric"))
    market.settle()
    market.at_ms += RESERVE_AFTER_MS
    (said,) = market.settle()
    assert {lot.node for lot in said.reservations[0].lots} == {"b1", "b2"}


def test_passes_with_reservations_are_repeated_byte_for_byte() -> None:
    hour = Hour(10, 60, 60, 60)
    hour.starve()
    hour.market.job("brief", replace(SMALL, max_duration_seconds=300))
    for node in NODES:
        hour.free(node)
    assert list(Replay().read(hour.market.entries)) == []
