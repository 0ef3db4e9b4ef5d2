"""What people see of failed GPUs, and of how far nodes and their providers can be relied on."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from tests.unit.gateway import failing, story
from tests.unit.gateway.story import PROVIDER, T0_MS
from tests.unit.gateway.world import World, running
from volt.contracts.http import OfferList
from volt.contracts.http_market import BidList, Market, ProviderReliability
from volt.contracts.reliability import COST_MS, HALF_LIFE_MS

pytest_plugins = ["tests.support.valkey"]


@pytest.fixture
async def world(redis: Redis) -> AsyncIterator[World]:
    async with running(redis) as world:
        await world.tell(story.account_opened(PROVIDER, "the lab's key"))
        yield world


async def free(world: World) -> list[tuple[int, int]]:
    """Free and total, of each offer; and the same by the model's market and the provider's own list."""
    offers = msgspec.json.decode((await world.client.get("/v1/offers")).content, type=OfferList).offers
    market = msgspec.json.decode((await world.client.get(f"/v1/market/{story.MODEL}")).content, type=Market)
    assert market.free == sum(one.free for one in offers)
    assert [(one.free, one.total) for one in await bids(world)] == [(one.free, one.total) for one in offers]
    return [(one.free, one.total) for one in offers]


async def bids(world: World) -> list:  # type: ignore[type-arg]
    answer = await world.client.get("/v1/bids", headers={"Authorization": "Bearer the lab's key"})
    return list(msgspec.json.decode(answer.content, type=BidList).bids)


async def test_a_failed_gpu_is_out_of_the_free_ones_until_it_is_well_again(world: World) -> None:
    await world.tell(story.bid("n1"), story.alive("n1"), failing.quarantined(PROVIDER, "n1", "GPU-n1-0", at_ms=T0_MS))
    assert await free(world) == [(1, 2)]
    await world.tell(failing.recovered(PROVIDER, "n1", "GPU-n1-0", at_ms=T0_MS))
    assert await free(world) == [(2, 2)]


async def test_a_vanished_gpu_takes_its_node_out_while_it_is_offered(world: World) -> None:
    await world.tell(story.bid("n1"), story.alive("n1"), failing.closed(PROVIDER, "n1", "GPU-n1-0", at_ms=T0_MS))
    assert await free(world) == [(0, 2)]
    fewer = story.bid("n1")
    await world.tell(msgspec.structs.replace(fewer, gpus=fewer.gpus[1:]))  # type: ignore[attr-defined]  # it is a bid
    assert await free(world) == [(1, 1)]


async def test_the_provider_is_told_which_gpu_and_why(world: World) -> None:
    await world.tell(story.bid("n1"), story.alive("n1"), failing.quarantined(PROVIDER, "n1", "GPU-n1-0", at_ms=T0_MS))
    (bid,) = await bids(world)
    (gpu,) = bid.quarantined
    assert (gpu.gpu, gpu.why, gpu.since_ms, gpu.closes_node) == (
        "GPU-n1-0",
        "XID 48 ROBUST_CHANNEL_GPU_ECC_DBE",
        T0_MS,
        False,
    )
    assert bid.reliability_permille == 930


async def test_a_strangers_word_quarantines_nothing(world: World) -> None:
    await world.tell(
        story.bid("n1"), story.alive("n1"), failing.quarantined(story.STRANGER, "n1", "GPU-n1-0", at_ms=T0_MS)
    )
    assert await free(world) == [(2, 2)]


async def test_a_providers_reliability_is_shown_with_what_it_comes_from(world: World) -> None:
    lost = msgspec.structs.replace(story.node_lost("n2"), at_ms=T0_MS)
    later = failing.quarantined(PROVIDER, "n1", "GPU-n1-0", at_ms=T0_MS + HALF_LIFE_MS)
    await world.tell(story.alive("n1"), story.alive("n2"), lost, later)
    answer = await world.client.get(f"/v1/reliability?provider={PROVIDER}")
    found = msgspec.json.decode(answer.content, type=ProviderReliability)
    first, second = found.nodes
    assert (found.provider, first.node, second.node) == (PROVIDER, "n1", "n2")
    assert (first.alive, second.alive) == (True, False)
    assert [(one.kind, one.what) for one in first.mishaps] == [("gpu_quarantined", "XID 48 ROBUST_CHANNEL_GPU_ECC_DBE")]
    (mishap,) = second.mishaps
    assert (mishap.kind, mishap.cost_ms) == ("lost", COST_MS["lost"])
    assert second.bad_ms == pytest.approx(mishap.cost_ms * mishap.weight_permille / 1_000, rel=0.01)
    assert found.bad_ms == pytest.approx(first.bad_ms + second.bad_ms, abs=2)
    assert mishap.weight_permille == 500
    assert second.reliability_permille < first.reliability_permille < 1_000


async def test_without_a_name_it_is_the_accounts_own_and_nobody_knows_it_yet(world: World) -> None:
    found = msgspec.json.decode((await world.client.get("/v1/reliability")).content, type=ProviderReliability)
    assert (found.provider, found.reliability_permille, found.nodes) == (story.BUYER, 1_000, ())
    assert (await world.client.get("/v1/reliability?provider=no/account")).status_code == 422
