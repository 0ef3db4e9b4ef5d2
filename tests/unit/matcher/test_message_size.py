"""A market message stays below its bound: what has no room goes into the next one, each gang whole."""

from tests.unit.matcher.builders import USD, Market, alive, bid, spec
from volt.contracts.bids import GPUS_PER_BID_MAX
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt_matcher.explain import REASONS_PER_PASS_MAX

UUID_CHARS = 96


def wide_node(market: Market, number: int) -> None:
    """A node whose GPUs have the longest names that there can be."""
    name = f"n{number:04}"
    uuids = [f"{name}-{gpu:02}".ljust(UUID_CHARS, "x") for gpu in range(GPUS_PER_BID_MAX)]
    market.add(bid(name, uuids), alive(name))


def test_gangs_that_have_no_room_go_into_the_next_message_each_one_whole() -> None:
    market = Market()
    for number in range(256):
        wide_node(market, number)
    for number in range(8):
        market.job(f"j{number}", spec(32, GPUS_PER_BID_MAX))
    said = market.settle()
    assert all(len(encode(one)) <= MESSAGE_BYTES_MAX for one in said)
    assert [gang.job for one in said for gang in one.gangs] == [f"j{number}" for number in range(8)]
    assert len(said) == 2
    assert all(len(gang.grants) == 32 for one in said for gang in one.gangs)
    assert len(market.state.leased) == 256 * GPUS_PER_BID_MAX


def test_a_gang_that_no_message_can_hold_waits_and_says_so_and_others_go_on() -> None:
    market = Market()
    for number in range(257):
        wide_node(market, number)
    market.job("giant", spec(256, GPUS_PER_BID_MAX))
    market.job("small", spec(1, 1))
    (said,) = market.settle()
    assert [gang.job for gang in said.gangs] == ["small"]
    (waiting,) = said.waiting
    assert (waiting.job, waiting.binding, waiting.infeasible) == ("giant", "message_size", True)
    assert waiting.message == "a grant of 256 nodes is larger than a message may be; ask for fewer"


def test_a_gang_of_ordinary_names_fits_at_the_largest_size_allowed() -> None:
    market = Market()
    for number in range(256):
        name = f"node-{number:04}"
        uuids = [f"GPU-{number:08x}-0000-0000-0000-{gpu:012x}" for gpu in range(GPUS_PER_BID_MAX)]
        market.add(bid(name, uuids), alive(name))
    market.job("j", spec(256, GPUS_PER_BID_MAX))
    (said,) = market.settle()
    assert len(said.gangs[0].grants) == 256
    assert len(encode(said)) <= MESSAGE_BYTES_MAX


def test_reasons_beyond_the_bound_of_a_pass_follow_in_the_next() -> None:
    market = Market()
    market.node("n1", 1)
    jobs = [f"j{number:03}" for number in range(2 * REASONS_PER_PASS_MAX + 1)]
    for job in jobs:
        market.job(job, spec(1, 8))
    said = market.settle()
    assert [len(one.waiting) for one in said] == [REASONS_PER_PASS_MAX, REASONS_PER_PASS_MAX, 1]
    assert [waiting.job for one in said for waiting in one.waiting] == jobs


def test_reasons_that_have_no_room_beside_gangs_follow_in_the_next() -> None:
    market = Market()
    for number in range(150):
        wide_node(market, number)
    picky = [f"picky{number:02}" for number in range(REASONS_PER_PASS_MAX)]
    for name in picky:
        market.job(name, spec(1, 1), cap_microusd=USD - 1)
    for number in range(5):
        market.job(f"j{number}", spec(30, GPUS_PER_BID_MAX))
    said = market.settle()
    assert all(len(encode(one)) <= MESSAGE_BYTES_MAX for one in said)
    assert len(said[0].gangs) == 5
    assert 0 < len(said[0].waiting) < REASONS_PER_PASS_MAX
    assert [waiting.job for one in said for waiting in one.waiting] == picky


def test_two_thousand_gangs_go_into_as_many_messages_as_they_need_each_one_whole() -> None:
    market = Market()
    for number in range(2000):
        name = f"node-{number:04}"
        uuids = [f"GPU-{number:08x}-0000-0000-0000-{gpu:012x}" for gpu in range(8)]
        market.add(bid(name, uuids), alive(name))
    for number in range(2000):
        market.job(f"job-{number:04}", spec(1, 8))
    said = market.settle()
    assert all(len(encode(one)) <= MESSAGE_BYTES_MAX for one in said)
    assert len(said) > 2
    assert [gang.job for one in said for gang in one.gangs] == [f"job-{number:04}" for number in range(2000)]
    assert len(market.state.leased) == 2000 * 8
