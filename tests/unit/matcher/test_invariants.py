"""The invariants of a pass, over random books: several models, shapes, terms, windows and reservations among them."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from tests.unit.matcher.builders import AT_MS, USD, A, B, Market, alive, bid, cleared, released, spec
from tests.unit.matcher.oracle import Offered, gains, most_gains
from tests.unit.matcher.stories import Asked, Story, Telling, asked, stories, supplies, told
from volt.contracts.bids import BidAccepted, Terms
from volt.contracts.jobs import JobSpec, Shape
from volt.contracts.market import MarketCleared
from volt.contracts.messages import encode
from volt_matcher.clear import clear
from volt_matcher.effects import effects
from volt_matcher.place import cheapest
from volt_matcher.state import openings

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
queues = st.lists(asked, min_size=1, max_size=3)


@given(stories)
@settings(relaxed, max_examples=25)
def test_whatever_changes_the_next_pass_is_called_for_if_it_has_something_to_say(telling: Telling) -> None:
    def compare(story: Story) -> None:
        should_say = clear(story.state, story.at_ms)
        assert effects(story.state, story.at_ms) == (() if should_say is None else (should_say,))

    told(telling, compare)


@given(stories)
@relaxed
def test_a_vacancy_that_waits_at_rest_fits_nowhere(telling: Telling) -> None:
    story = told(telling)
    story.arrive()
    story.settle()
    for opening in openings(story.state, story.at_ms)[0]:
        held = {lease.node for lease in story.state.leases.values() if lease.job == opening.job}
        request = replace(opening.request, excluded=opening.request.excluded | held)
        assert cheapest(story.state.book, request) is None


@given(supplies, queues)
@relaxed
def test_on_a_small_book_the_gains_of_a_pass_are_the_exact_optimum(
    bids: tuple[BidAccepted, ...], queue: list[Asked]
) -> None:
    offered = Offered(bids[:4], AT_MS)
    market = Market(*offered.bids, *(alive(one.node) for one in offered.bids))
    for number, (what, cap_microusd) in enumerate(queue):
        market.job(f"j{number}", what, cap_microusd)
    said = market.run()
    gained = sum(gains(offered, *queue[int(gang.job[1:])], gang) for gang in (said.gangs if said else ()))
    assert gained == most_gains(offered, queue)


@given(supplies, queues)
@relaxed
def test_the_price_of_a_grant_is_what_its_nodes_alone_would_cost_whoever_else_trades(
    bids: tuple[BidAccepted, ...], queue: list[Asked]
) -> None:
    by_node = {one.node: one for one in bids}
    market = Market(*bids, *(alive(one.node) for one in bids))
    for number, (what, cap_microusd) in enumerate(queue):
        market.job(f"j{number}", what, cap_microusd)
    for job, gang in market.gangs().items():
        what, cap_microusd = queue[int(job[1:])]
        own = [by_node[grant.node] for grant in gang.grants]
        alone = Market(*own, *(alive(one.node) for one in own))
        shape = Shape(nodes=len(gang.grants), gpus_per_node=len(gang.grants[0].gpus))
        alone.job(job, replace_struct(what, shapes=(shape,), models=(gang.model,)), cap_microusd)
        price_microusd = max(one.terms_of(gang.model).ask_microusd_per_gpu_hour for one in own)
        assert alone.gangs()[job].price_microusd_per_gpu_hour == gang.price_microusd_per_gpu_hour == price_microusd


@given(supplies, queues, st.randoms(use_true_random=False))
@relaxed
def test_the_order_in_which_equal_inputs_came_does_not_matter(
    bids: tuple[BidAccepted, ...], queue: list[Asked], chance: Random
) -> None:
    """Of bids and signs of life any order is the same market; of the GPUs within a bid too."""
    plans = []
    for _ in range(2):
        events = [*bids, *(alive(one.node) for one in bids)]
        chance.shuffle(events)
        market = Market(*(_shuffled(one, chance) if isinstance(one, BidAccepted) else one for one in events))
        for number, (what, cap_microusd) in enumerate(queue):
            market.job(f"j{number}", what, cap_microusd)
        plans.append([encode(one) for one in market.settle()])
    assert plans[0] == plans[1]


def _shuffled(offered: BidAccepted, chance: Random) -> BidAccepted:
    gpus = list(offered.gpus)
    chance.shuffle(gpus)
    return replace_struct(offered, gpus=tuple(gpus))


def crowd(seed: int) -> Market:
    """A market of all sorts over some hours, told by chance alone."""
    chance = Random(seed)
    market = Market()
    for number in range(12):
        place, until_ms = chance.choice((A, B)), chance.choice((None, None, AT_MS + 7_200_000))
        own = Terms(ask_microusd_per_gpu_hour=USD + chance.randrange(99), available_until_ms=until_ms)
        market.add(replace_struct(bid(f"n{number}", 8, place=place), terms=own), alive(f"n{number}"))
    for number in range(40):
        what = _of_all_sorts(chance)
        market.job(f"j{number}", what, chance.randrange(USD, 2 * USD))
        market.at_ms += chance.randrange(120_000)
        market.settle()
        if number % 3 == 0 and market.state.leases:
            lease = chance.choice(sorted(market.state.leases))
            held = market.state.leases[lease]
            market.add(released(held.job), cleared(held.job, lease, held.node))
    return market


def _of_all_sorts(chance: Random) -> JobSpec:
    shapes = chance.choice((((1, 1),), ((1, 8),), ((2, 8), (4, 4)), ((4, 8),), ((1, 4), (2, 2))))
    return replace_struct(
        spec(interconnect=chance.choice(("any", "fabric"))),
        shapes=tuple(Shape(nodes=nodes, gpus_per_node=each) for nodes, each in shapes),
        max_duration_seconds=chance.choice((None, 600, 3_600)),
    )


def digest(market: Market) -> str:
    """Of all that was said in it."""
    said = [encode(entry.event) for entry in market.entries if isinstance(entry.event, MarketCleared)]
    return sha256(b"\n".join(said)).hexdigest()


def test_two_runs_and_processes_that_hash_otherwise_say_the_same_to_the_byte() -> None:
    market = crowd(1)
    kinds = Counter[str]()
    for entry in market.entries:
        if isinstance(entry.event, MarketCleared):
            kinds.update(name for name in ("gangs", "waiting", "reservations") if getattr(entry.event, name))
    assert min(kinds[name] for name in ("gangs", "waiting", "reservations")) > 0
    code = "from tests.unit.matcher.test_invariants import crowd, digest; print(digest(crowd(1)))"
    said = {digest(market), digest(crowd(1))}
    for hash_seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        said.add(done.stdout.strip())
    assert len(said) == 1
