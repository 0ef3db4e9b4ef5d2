"""The gateway over HTTP: every answer by its status, and never one for somebody else's things."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tests.support.valkey_server import ValkeyServer
from tests.unit.gateway import fleets, story
from tests.unit.gateway.story import BUYER, JOB
from tests.unit.gateway.world import REFUSED_MODEL, World, running
from volt.contracts import http
from volt.contracts.ids import job_id
from volt.contracts.jobs import ReleaseJob, RequestJob
from volt.contracts.ledger import AccountCredited
from volt.contracts.nodes import NodeLost
from volt.runtime.views import views_at
from volt_gateway import gateway as gateway_module

pytest_plugins = ["tests.support.valkey"]

BODY = {"gpu": "h100", "count": 4, "workload": {"command": ["python", "train.py"]}}
STRANGER = {"Authorization": "Bearer mallory's key"}


@pytest.fixture
async def world(redis: Redis) -> AsyncIterator[World]:
    async with running(redis) as world:
        yield world


async def test_a_request_is_answered_201_with_the_job(world: World) -> None:
    answer = await _create(world, key="k1", max_price_usd_per_gpu_hour="2.50", max_duration="1h30m")
    assert answer.status_code == 201
    job = msgspec.json.decode(answer.content, type=http.Job)
    assert (job.id, job.state, job.request_id) == (job_id(BUYER, "k1"), "admitted", "k1")
    (command,) = await world.commands()
    assert isinstance(command, RequestJob)
    assert command.max_price_microusd_per_gpu_hour == 2_500_000
    assert command.max_duration_seconds == 5_400


async def test_the_same_request_again_is_the_same_job_and_no_second_command(world: World) -> None:
    first, second = await _create(world, key="k1"), await _create(world, key="k1")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"]
    assert len(await world.commands()) == 1


async def test_the_order_of_the_environment_makes_no_other_request(world: World) -> None:
    for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"}):
        answer = await _create(world, key="k1", workload={"command": ["x"], "env": env})
        assert answer.status_code == 201


async def test_a_request_without_a_key_gets_one(world: World) -> None:
    first, second = await _create(world), await _create(world)
    assert first.json()["id"] != second.json()["id"]
    assert first.json()["request_id"]


async def test_a_refused_request_is_422_with_the_reason_also_when_it_is_repeated(world: World) -> None:
    for _ in range(2):
        answer = await _create(world, key="k1", gpu=REFUSED_MODEL)
        assert answer.status_code == 422
        assert answer.json() == {
            "code": "unknown_gpu_model",
            "message": "there is no such GPU",
            "field": "gpu",
            "seen": "h1000",
            "choices": ["h100"],
        }


async def test_another_request_under_a_used_key_is_409_and_leaves_the_job(world: World) -> None:
    await _create(world, key="k1")
    answer = await _create(world, key="k1", count=8)
    assert (answer.status_code, answer.json()["code"]) == (409, "request_id_reused")
    assert (await world.client.get(f"/v1/jobs/{job_id(BUYER, 'k1')}")).json()["state"] == "admitted"
    assert (await _create(world, key="k1")).status_code == 201


async def test_a_request_that_nobody_answers_is_202_and_can_be_asked_for_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "ANSWER_SECONDS_MAX", 0.05)
    async with running(redis, intake=False) as world:
        for _ in range(2):
            answer = await _create(world, key="k1")
            assert (answer.status_code, answer.json()["state"]) == (202, "requested")
            assert answer.json()["id"] == job_id(BUYER, "k1")
        assert len(await world.commands()) == 1


async def test_a_request_while_the_bus_is_away_is_503(world: World) -> None:
    with world.bus.outage():
        answer = await _create(world, key="k1")
        assert (answer.status_code, answer.json()["code"]) == (503, "bus_unavailable")
        assert answer.headers["Retry-After"] == "1"
        health = await world.client.get("/healthz")
        assert (health.status_code, health.json()["bus"], health.json()["views"]) == (503, "bus_unavailable", "ok")
        assert (await world.client.get("/v1/balance")).status_code == 200


async def test_health_says_that_losses_are_held_and_bids_why_a_node_is_lost(world: World) -> None:
    gone = NodeLost(account=BUYER, node="n1", incarnation="none", at_ms=1, cause="never_beat")
    offered = story.bid("n1", provider=BUYER)
    await world.tell(offered, *fleets.fleet_events()[:2], gone)
    (listed,) = (await world.client.get("/v1/bids")).json()["bids"]
    assert (listed["state"], listed["reason"]) == ("lost", "no heartbeat came in time after its bid")
    health = await world.client.get("/healthz")
    assert health.status_code == 200
    assert health.json()["losses_held"].startswith("400 of 1000 nodes fell silent at once")

    await world.tell(*fleets.fleet_events()[2:])

    assert (await world.client.get("/healthz")).json()["losses_held"] == ""


async def test_a_release_is_answered_once_it_is_accepted(world: World) -> None:
    job = (await _create(world)).json()["id"]
    answer = await world.client.delete(f"/v1/jobs/{job}")
    assert (answer.status_code, answer.json()["state"]) == (200, "released")


async def test_a_second_release_changes_nothing(world: World) -> None:
    job = (await _create(world)).json()["id"]
    first, second = [await world.client.delete(f"/v1/jobs/{job}") for _ in range(2)]
    assert first.json() == second.json()
    assert [type(command) for command in await world.commands()] == [RequestJob, ReleaseJob]


async def test_a_job_that_is_not_shown_yet_can_be_released(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "ANSWER_SECONDS_MAX", 0.05)
    async with running(redis, intake=False) as world:
        job = (await _create(world)).json()["id"]
        answer = await world.client.delete(f"/v1/jobs/{job}")
        assert (answer.status_code, answer.json()["state"]) == (202, "requested")
        assert [type(command) for command in await world.commands()] == [RequestJob, ReleaseJob]


async def test_a_release_of_what_does_not_exist_is_404(world: World) -> None:
    assert (await world.client.delete("/v1/jobs/jnothing")).status_code == 404


@pytest.mark.parametrize("job", ["j*", "j.>", "J", "%2e%2e%2fkeys", "j" * 70, "%00"])
async def test_what_cannot_be_a_job_is_404_and_reaches_nothing(world: World, job: str) -> None:
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/logs", f"/v1/jobs/{job}/bill"):
        assert (await world.client.get(path)).status_code == 404
    assert (await world.client.delete(f"/v1/jobs/{job}")).status_code == 404
    assert await world.commands() == []


async def test_a_job_of_somebody_else_is_404(world: World) -> None:
    await world.tell(story.admitted())
    for path in ("", "/bill", "/logs", "/events"):
        assert (await world.client.get(f"/v1/jobs/{JOB}{path}", headers=STRANGER)).status_code == 404
    assert (await world.client.delete(f"/v1/jobs/{JOB}", headers=STRANGER)).status_code == 404
    assert (await world.client.get("/v1/jobs", headers=STRANGER)).json()["jobs"] == []
    assert await world.commands() == []


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "Basic YWxpY2U6", "alice's key"])
async def test_without_a_valid_key_everything_but_health_is_401(world: World, header: str | None) -> None:
    headers = {"Authorization": header} if header is not None else {}
    del world.client.headers["Authorization"]
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/offers"), ("DELETE", "/v1/jobs/j1")):
        answer = await world.client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert (await world.client.get("/healthz", headers=headers)).status_code == 200


async def test_a_body_of_two_megabytes_is_413(world: World) -> None:
    answer = await world.client.post("/v1/jobs", content=b"x" * 2_000_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_a_body_of_two_megabytes_without_its_length_is_413(world: World) -> None:
    taken = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(200):
            taken += 10_000
            yield b"x" * 10_000

    answer = await world.client.post("/v1/jobs", content=chunks())
    assert answer.status_code == 413
    assert taken <= http.BODY_BYTES_MAX + 20_000


async def test_a_request_that_makes_too_large_a_message_is_413(world: World) -> None:
    answer = await _create(world, workload={"command": ["x" * 300_000]})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert await world.commands() == []


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"gpu": 7}, "invalid_field", "gpu"),
        ({"count": "8"}, "invalid_field", "count"),
        ({"count": -1}, "invalid_field", "count"),
        ({"count": 10**30}, "invalid_field", "count"),
        ({"count": 1.5}, "invalid_field", "count"),
        ({"workload": {}}, "missing_field", "workload.command"),
        ({"workload": {"command": ["x"], "imgae": "y"}}, "unknown_field", "workload.imgae"),
        ({"workload": {"command": "python train.py"}}, "invalid_field", "workload.command"),
        ({"max_price_usd_per_gpu_hour": 2.5}, "invalid_field", "max_price_usd_per_gpu_hour"),
        ({"max_price_usd_per_gpu_hour": "cheap"}, "invalid_amount", "max_price_usd_per_gpu_hour"),
        ({"max_price_usd_per_gpu_hour": "0"}, "invalid_amount", "max_price_usd_per_gpu_hour"),
        ({"max_price_usd_per_gpu_hour": "-1"}, "invalid_amount", "max_price_usd_per_gpu_hour"),
        ({"max_price_usd_per_gpu_hour": "1e999999"}, "invalid_amount", "max_price_usd_per_gpu_hour"),
        ({"max_duration": "24"}, "invalid_duration", "max_duration"),
        ({"max_prize": "1"}, "unknown_field", "max_prize"),
    ],
)
async def test_a_field_that_is_wrong_is_422_and_named(
    world: World, change: dict[str, object], code: str, field: str
) -> None:
    answer = await world.client.post("/v1/jobs", json=BODY | change)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, code, field)


async def test_a_cap_of_null_is_no_cap(world: World) -> None:
    assert (await _create(world, max_price_usd_per_gpu_hour=None)).status_code == 201


async def test_a_misspelt_field_is_told_with_the_close_ones(world: World) -> None:
    answer = await _create(world, workload={"command": ["x"], "imgae": "y"})
    assert "image" in answer.json()["choices"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"nul"])
async def test_a_body_that_is_not_json_is_400(world: World, body: bytes) -> None:
    answer = await world.client.post("/v1/jobs", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "not_json")


async def test_a_body_that_is_nested_too_deep_is_refused(world: World) -> None:
    for body in (b"[" * 100_000, b'{"gpu":' * 100_000):
        assert (await world.client.post("/v1/jobs", content=body)).status_code in (400, 422)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=201", "limit=1e3", "before=-1", "limit=" + "9" * 400, "limit=%D9%A3"]
)
async def test_a_parameter_that_is_wrong_is_422(world: World, query: str) -> None:
    answer = await world.client.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from(["gpu", "count", "nodes", "workload", "constraints", "max_price_usd_per_gpu_hour"])


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bodies=st.lists(
        st.binary(max_size=40) | st.dictionaries(_FIELDS, _JSON, max_size=4).map(lambda one: json.dumps(one).encode()),
        min_size=12,
        max_size=12,
    ),
    keys=st.lists(st.text(st.characters(max_codepoint=255, exclude_characters="\0\r\n")), min_size=12, max_size=12),
)
def test_no_bad_input_is_ever_500(valkey_server: ValkeyServer, bodies: list[bytes], keys: list[str]) -> None:
    async def statuses() -> list[int]:
        async with views_at(valkey_server.url, connections_max=8) as redis:
            await redis.flushall()
            async with running(redis) as world:
                headers = [{http.IDEMPOTENCY_HEADER.encode(): key.encode("latin-1")} for key in keys]
                return [
                    (await world.client.post("/v1/jobs", content=body, headers=header)).status_code
                    for body, header in zip(bodies, headers, strict=True)
                ]

    assert set(asyncio.run(statuses())) <= {201, 400, 413, 422}


async def test_emptied_views_are_503_until_they_are_built_again(world: World) -> None:
    await world.tell(*story.whole_story()[3:])
    await world.redis.flushall()
    answer = await world.client.get("/v1/jobs")
    health = await world.client.get("/healthz")
    if answer.status_code != 200:  # A projector that was about to look may have been faster.
        assert (answer.status_code, answer.json()["code"]) == (503, "views_rebuilding")
    assert health.json()["bus"] == "ok"
    await world.until_shown(1)
    async with asyncio.timeout(20):
        while (await world.client.get("/healthz")).status_code != 200:
            pass
    assert [job["id"] for job in (await world.client.get("/v1/jobs")).json()["jobs"]][-1] == JOB


async def test_jobs_are_listed_newest_first_a_page_at_a_time(world: World) -> None:
    made = [(await _create(world, key=f"k{number}")).json()["id"] for number in range(5)]
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = (await world.client.get(f"/v1/jobs?{query}")).json()
        seen += [job["id"] for job in page["jobs"]]
        if page["next_before"] is None:
            break
        query = f"limit=2&before={page['next_before']}"
    assert seen == made[::-1]


async def test_money_is_shown_in_decimal_dollars(world: World) -> None:
    await world.tell(story.admitted(), story.credited(), story.funded())
    assert (await world.client.get("/v1/balance")).json() == {
        "account": BUYER,
        "wallet_usd": "90.000000",
        "on_hold_usd": "10.000000",
        "pending_usd": "0.000000",
        "earned_usd": "0.000000",
    }
    await world.tell(story.charged("c1", story.bill_line(1, 100), amount_microusd=100))
    bill = (await world.client.get(f"/v1/jobs/{JOB}/bill")).json()
    assert (bill["due_usd"], bill["on_hold_usd"], bill["closed"]) == ("0.000100", "9.999900", False)
    assert bill["lines"][0]["fee_usd"] == "0.000005"
    lines = (await world.client.get("/v1/statement")).json()["lines"]
    assert [(line["event"], line["amount_usd"]) for line in lines] == [
        ("ChargesPosted", "0.000100"),
        ("JobFunded", "10.000000"),
        (AccountCredited.__name__, "100.000000"),
    ]


async def test_offers_are_the_live_supply_cheapest_first(world: World) -> None:
    await world.tell(
        story.bid("n1", ask_microusd=2_000_000),
        story.bid("n2", ask_microusd=1_000_000, region="us"),
        story.bid("n3", ask_microusd=10_000_000),
        story.bid("n4"),
        *(story.alive(node) for node in ("n1", "n2", "n3")),
    )
    assert await _offered(world, "") == ["n2", "n1", "n3"]
    assert await _offered(world, "?region=us") == ["n2"]
    assert await _offered(world, "?gpu=NVIDIA%20H100%20SXM&region=eu") == ["n1", "n3"]
    assert await _offered(world, "?gpu=rtx4090") == []
    assert (await world.client.get("/v1/offers?gpu=h1000")).status_code == 422


async def test_what_is_not_a_route_is_404_and_what_is_not_its_method_405(world: World) -> None:
    assert (await world.client.get("/v2/jobs")).json()["code"] == "not_found"
    answer = await world.client.put("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


async def _create(world: World, *, key: str | None = None, **changes: object) -> httpx.Response:
    headers = {http.IDEMPOTENCY_HEADER: key} if key is not None else {}
    return await world.client.post("/v1/jobs", json=BODY | changes, headers=headers)


async def _offered(world: World, query: str) -> list[str]:
    answer = await world.client.get(f"/v1/offers{query}")
    return [offer.node for offer in msgspec.json.decode(answer.content, type=http.OfferList).offers]
