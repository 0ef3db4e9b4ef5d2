"""What a stranger may publish on the bus: each is answered with a reason, or kept as a dead letter; nothing stops.

All of it goes to one whole control plane as raw nats-py publishes, in the order in which it is written here.
"""

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import nats
import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.errors import APIError

from benchmarks.market import Observer, Seen
from tests.support.strangers import (
    JOBS_REFUSED,
    JSON,
    ME,
    NO_COMMANDS,
    NODE,
    OTHER,
    as_json,
    good_beat,
    good_bid,
    good_request,
    report,
)
from volt.contracts.bids import BidRejected
from volt.contracts.ids import job_id
from volt.contracts.jobs import CommandRejected, JobAdmitted, JobRejected
from volt.contracts.nodes import NodeAlive
from volt.contracts.streams import DEAD_LETTERS, STORED_BYTES_MAX
from volt.contracts.subjects import command_account, command_bid, command_job, command_report, heartbeats
from volt.embedded import SERVICES, Context, ControlPlane, write_context
from volt.embedded.accounts import open_account
from volt.embedded.nats import PAYLOAD_BYTES_MAX
from volt.runtime.dead_letters import StoredLetter, letters
from volt.runtime.nats import NatsBus

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY, OTHER_KEY = "vk_mallory", "vk_alice"
NOBODY = "nobody"
LETTER_POLLS_MAX = 600
LETTER_POLL_SECONDS = 0.05
SOCKET_SECONDS_MAX = 30.0
MAX_PAYLOAD_EXCEEDED = 10054
TWO_MEGABYTES = 2_000_000


@dataclass(frozen=True)
class World:
    """The control plane, a plain client of its bus, and an observer of the log."""

    control_plane: ControlPlane
    data: Path
    client: Client
    bus: NatsBus
    observer: Observer
    pids: Mapping[str, int]

    async def send(self, subject: str, payload: bytes) -> int:
        """Publishes as anybody would; its sequence on the stream that keeps it."""
        return (await self.client.jetstream().publish(subject, payload)).seq

    async def ask(self, **changed: object) -> tuple[str, int]:
        """Sends a job request with some fields changed: the job that it names, and its sequence."""
        request = good_request(**changed)
        return job_id(ME, str(request["request_id"])), await self.send(command_job(ME), as_json(request))

    async def refusal(self, seq: int) -> CommandRejected:
        """The refusal of the command with this sequence, where its sender looks for it."""

        def find() -> Seen | None:
            return next((one for one in self.observer.all if getattr(one.entry.event, "command_seq", 0) == seq), None)

        event = (await self.observer.until(find)).entry.event
        assert isinstance(event, CommandRejected)
        return event

    async def letter(self, subject: str, seq: int) -> StoredLetter:
        """The dead letter of what was sent on `subject` and stored as `seq`."""
        for _ in range(LETTER_POLLS_MAX):
            for one in await letters(self.bus):
                if (one.letter.subject, one.letter.stream_seq) == (subject, seq):
                    return one
            await asyncio.sleep(LETTER_POLL_SECONDS)
        pytest.fail(f"no dead letter for {subject} {seq}")

    async def bid_refusal(self, request_id: str) -> BidRejected:
        def find() -> Seen | None:
            return next((one for one in self.observer.all if _is_bid_refusal(one, request_id)), None)

        event = (await self.observer.until(find)).entry.event
        assert isinstance(event, BidRejected)
        return event

    async def volt(self, *arguments: str) -> tuple[int, str]:
        """Runs the command line on this control plane: its exit code and what it says on stdout."""
        command = [sys.executable, "-m", "volt", *arguments, "--data", str(self.data)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        stdout, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, stdout.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    data = tmp_path_factory.mktemp("control")
    async with ControlPlane(data, "embedded") as control_plane:
        addresses = (control_plane.nats_url, control_plane.redis_url, control_plane.gateway_url)
        nats_url, redis_url, gateway_url = addresses
        context = Context(nats_url=nats_url, redis_url=redis_url, gateway_url=gateway_url, account=ME, api_key=KEY)
        write_context(data, context)
        bus, client, observer = await NatsBus.connect(nats_url, "test"), await nats.connect(nats_url), Observer()
        await open_account(bus, ME, KEY)
        await open_account(bus, OTHER, OTHER_KEY)
        watching = asyncio.create_task(observer.watch(bus))
        pids = {name: control_plane.service(name).pid for name in ("nats", "valkey", *SERVICES)}
        try:
            yield World(control_plane, data, client, bus, observer, pids)
        finally:
            watching.cancel()
            await client.close()
            await bus.close()


@pytest.mark.parametrize("what", NO_COMMANDS)
async def test_what_is_no_command_is_refused_where_its_sender_looks(what: str, world: World) -> None:
    payload, code = NO_COMMANDS[what]
    seq = await world.send(command_job(ME), payload)
    refused = await world.refusal(seq)
    assert (refused.account, refused.command_subject, refused.reason.code) == (ME, command_job(ME), code)
    assert refused.reason.message


@pytest.mark.parametrize("what", JOBS_REFUSED)
async def test_a_job_that_the_rules_refuse_is_told_so_on_its_own_subject(what: str, world: World) -> None:
    changed, code = JOBS_REFUSED[what]
    job, _ = await world.ask(request_id=what, **changed)
    event = (await world.observer.event(job, JobRejected)).entry.event
    assert isinstance(event, JobRejected)
    assert event.reason.code == code
    assert event.reason.field


@pytest.mark.parametrize(
    ("gpu", "code", "close"),
    [
        ("h10O-80gb", "unknown_gpu_model", "h100-80gb"),
        ("RTX 409O", "unknown_gpu_model", "rtx-4090-24gb"),
        ("A100", "ambiguous_gpu_model", "a100-80gb"),
    ],
)
async def test_an_unknown_gpu_is_answered_with_the_models_that_may_be_meant(
    gpu: str, code: str, close: str, world: World
) -> None:
    job, _ = await world.ask(request_id=gpu, gpu=gpu)
    event = (await world.observer.event(job, JobRejected)).entry.event
    assert isinstance(event, JobRejected)
    assert (event.reason.code, event.reason.seen) == (code, gpu)
    assert close in event.reason.choices


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"terms": {"ask_microusd_per_gpu_hour": 0}}, "price_out_of_range"),
        ({"terms": {"ask_microusd_per_gpu_hour": -1_000_000}}, "price_out_of_range"),
        ({"gpus": []}, "gpu_count_out_of_range"),
        ({"gpus": [{"uuid": "GPU-1", "model": "abacus"}]}, "unknown_gpu_model"),
        ({"gpus": [{"uuid": "GPU-1", "model": "h100-80gb"}] * 2}, "duplicate_gpu"),
    ],
)
async def test_a_bid_that_the_rules_refuse_is_told_so_on_its_own_subject(
    changed: JSON, code: str, world: World
) -> None:
    request_id = f"bid-{as_json(changed).decode()}"
    await world.send(command_bid(ME, NODE), as_json(good_bid(request_id=request_id, **changed)))
    assert (await world.bid_refusal(request_id)).reason.code == code


async def test_a_bid_for_another_node_than_its_subject_names_is_refused(world: World) -> None:
    seq = await world.send(command_bid(ME, NODE), as_json(good_bid(node="n2")))
    assert (await world.refusal(seq)).reason.code == "wrong_subject"


async def test_a_request_sent_again_is_no_second_event_and_another_under_its_id_is_refused(world: World) -> None:
    job, _ = await world.ask(request_id="twice")
    await world.observer.event(job, JobAdmitted)
    await world.ask(request_id="twice")
    await world.ask(request_id="twice", count=4)
    refused = (await world.observer.event(job, JobRejected)).entry.event
    assert isinstance(refused, JobRejected)
    assert (refused.reason.code, refused.reason.seen) == ("request_id_reused", "twice")
    # Commands are answered in their order, so the repeated one was answered before the other one was refused.
    answers = [one.entry.event for one in world.observer.by_job[job]]
    assert len([one for one in answers if isinstance(one, JobAdmitted | JobRejected)]) == 2
    await world.send(command_job(ME), as_json({"type": "ReleaseJob.v1", "account": ME, "request_id": "r", "job": job}))


async def test_an_account_cannot_be_taken_over(world: World) -> None:
    opening = {"type": "OpenAccount.v1", "account": ME, "request_id": "mine now", "key_sha256": "0" * 64}
    seq = await world.send(command_account(ME), as_json(opening))
    assert (await world.refusal(seq)).reason.code == "account_exists"


async def test_of_an_unknown_account_everything_is_a_dead_letter_that_can_be_listed_shown_and_replayed(
    world: World,
) -> None:
    payload = as_json(good_request(account=NOBODY))
    seq = await world.send(command_job(NOBODY), payload)
    found = await world.letter(command_job(NOBODY), seq)
    kept = found.letter
    assert (kept.service, kept.stream, kept.payload) == ("bid-intake", "COMMANDS", payload)
    assert "unknown_account" in kept.error
    assert kept.cause
    number = str(found.seq)

    code, out = await world.volt("dlq", "list", "--json")
    listed = msgspec.json.decode(out, type=list[StoredLetter])
    assert code == 0
    assert found in listed
    code, out = await world.volt("dlq", "show", number, "--json")
    shown = msgspec.json.decode(out)
    assert (code, base64.b64decode(shown[1]["payload"])) == (0, payload)
    assert "unknown_account" in (await world.volt("dlq", "show", number))[1]

    await open_account(world.bus, NOBODY, "vk_nobody")
    assert await world.volt("dlq", "replay", number) == (0, "")
    await world.observer.event(job_id(NOBODY, "good"), JobAdmitted)
    assert await world.volt("dlq", "show", number, "--json") == (4, "")


async def test_garbage_of_an_unknown_account_is_a_dead_letter_with_its_bytes(world: World) -> None:
    seq = await world.send(command_job("stranger"), b"\xff\x00{")
    kept = (await world.letter(command_job("stranger"), seq)).letter
    assert kept.payload == b"\xff\x00{"
    assert kept.error.startswith("not_json")


async def test_a_report_of_a_lease_that_does_not_exist_changes_nothing(world: World) -> None:
    clusters_before = _clusters(world)
    await world.send(command_report(ME, NODE), as_json(report()))
    seq = await world.send(command_report(ME, NODE), as_json(report(generation="one")))
    kept = (await world.letter(command_report(ME, NODE), seq)).letter
    assert (kept.service, kept.error.partition(":")[0]) == ("provisioner", "invalid_field")
    # Reports are answered in their order: the first was answered before the second became a letter.
    assert _clusters(world) == clusters_before


async def test_a_report_for_another_account_is_a_dead_letter(world: World) -> None:
    seq = await world.send(command_report(ME, NODE), as_json(report(account=OTHER)))
    assert (await world.letter(command_report(ME, NODE), seq)).letter.error.startswith("wrong_subject")


async def test_bad_heartbeats_give_no_sign_of_life_and_the_next_good_one_does(world: World) -> None:
    lease = {"lease": "jnosuch-1", "generation": -1, "state": "running"}
    for node, bad in {
        "b1": b"beep",
        "b2": as_json(good_beat(node="b2", type="Heartbeat.v9")),
        "b3": as_json(good_beat(node="b3", sequence="one")),
        "b4": as_json(good_beat(node="b4", account=OTHER)),
        "b5": as_json(good_beat(node="b5", leases=[lease])),
    }.items():
        await world.send(heartbeats(ME, node), bad)
    await world.send(heartbeats(ME, NODE), as_json(good_beat()))
    await world.observer.until(lambda: next((one for one in world.observer.all if _is_alive(one)), None))
    alive = {one.entry.event.node for one in world.observer.all if isinstance(one.entry.event, NodeAlive)}
    assert alive == {NODE}
    assert "beat_refused" in (world.data / "logs" / "health-monitor.log").read_text()


async def test_what_the_bus_does_not_take_is_refused_by_the_client_and_by_the_bus(world: World) -> None:
    with pytest.raises(nats.errors.MaxPayloadError):
        await world.client.publish(command_job(ME), b"x" * (PAYLOAD_BYTES_MAX + 1))
    host, port = world.control_plane.nats_url.removeprefix("nats://").split(":")
    async with asyncio.timeout(SOCKET_SECONDS_MAX):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'CONNECT {"verbose":false}\r\n')
        writer.write(f"PUB {command_job(ME)} {PAYLOAD_BYTES_MAX + 1}\r\n".encode())
        answer = await reader.read()
        writer.close()
    assert b"Maximum Payload Violation" in answer


@pytest.mark.parametrize("size_bytes", [STORED_BYTES_MAX + 1, TWO_MEGABYTES])
async def test_what_a_stream_does_not_take_is_refused_at_once(size_bytes: int, world: World) -> None:
    with pytest.raises(APIError) as refused:
        await world.send(command_job(ME), b"x" * size_bytes)
    assert refused.value.err_code == MAX_PAYLOAD_EXCEEDED


async def test_over_http_each_is_a_status_with_a_code(world: World) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    good = {"gpu": "h100-80gb", "count": 2, "workload": {"command": ["true"]}}
    async with httpx.AsyncClient(base_url=world.control_plane.gateway_url, headers=headers, timeout=60) as http:
        for content, status, code in (
            (b"x" * TWO_MEGABYTES, 413, "too_large"),
            (b"{", 400, "not_json"),
            (as_json(good | {"prioritty": 1}), 422, "unknown_field"),
            (as_json(good | {"gpu": "h10O-80gb"}), 422, "unknown_gpu_model"),
            (as_json(good | {"max_price_usd_per_gpu_hour": "-1"}), 422, "invalid_amount"),
            (as_json(good | {"max_duration": "24"}), 422, "invalid_duration"),
        ):
            answer = await http.post("/v1/jobs", content=content)
            assert (answer.status_code, answer.json()["code"]) == (status, code), content[:80]
        answer = await http.get("/v1/balance", headers={"Authorization": "Bearer wrong"})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_after_all_of_it_no_service_has_stopped_and_a_good_request_is_admitted(world: World) -> None:
    job, _ = await world.ask(request_id="at last")
    await world.observer.event(job, JobAdmitted)
    assert {name: world.control_plane.service(name).pid for name in world.pids} == world.pids
    assert all(world.control_plane.service(name).running for name in world.pids)
    assert _troubles(world.data / "logs", ["aggregate_stuck", "decision_failed", "answer_failed", "Traceback"]) == []


async def test_every_dead_letter_tells_its_error_and_cause(world: World) -> None:
    found = await letters(world.bus)
    assert found
    assert all(one.letter.error and one.letter.cause and one.letter.deliveries >= 1 for one in found)
    info = await world.client.jetstream().stream_info(DEAD_LETTERS.name)
    assert info.state.messages == len(found)


def _is_bid_refusal(seen: Seen, request_id: str) -> bool:
    event = seen.entry.event
    return isinstance(event, BidRejected) and event.request_id == request_id


def _is_alive(seen: Seen) -> bool:
    return isinstance(seen.entry.event, NodeAlive)


def _clusters(world: World) -> int:
    return sum(one.entry.event.subject().startswith("log.cluster.") for one in world.observer.all)


def _troubles(folder: Path, words: Sequence[str]) -> list[str]:
    """The lines of every service's log that have one of the words."""
    return [
        line
        for file in folder.iterdir()
        for line in file.read_text().splitlines()
        if any(word in line for word in words)
    ]
