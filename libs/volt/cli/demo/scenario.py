"""The main job, end to end: requested on the bus, matched, run, hurt, healed, ended and billed."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from volt.audit.ledger import audit
from volt.audit.report import LedgerReport
from volt.cli.demo.farm import Node, kill_tree, start_nodes
from volt.cli.demo.story import Story
from volt.contracts.ids import job_id
from volt.contracts.jobs import Constraints, RequestJob, Workload
from volt.contracts.letters import LogLines
from volt.contracts.messages import Decoder, encode
from volt.contracts.streams import LOG, LOGS
from volt.contracts.subjects import command_job, job_logs
from volt.embedded import ControlPlane
from volt.embedded.accounts import new_api_key, open_account
from volt.runtime.log import Log, Unreadable
from volt.runtime.nats import NatsBus

START_SECONDS_MAX = 20.0
STEP_SECONDS_MAX = 30.0
RECOVER_SECONDS_MAX = 30.0
CLOSE_SECONDS_MAX = 40.0
STEPS_BEFORE_KILL = 10
MAX_PRICE_MICROUSD = 3_000_000


@dataclass(frozen=True)
class Options:
    """`kill_rank` chooses whose agent dies: 0 is the head."""

    kill_rank: int
    steps: int
    step_seconds: float


@dataclass(frozen=True)
class Ending:
    """How it went. Instants are milliseconds on the observer's clock."""

    story: Story
    report: LedgerReport
    requested_ms: int
    killed_ms: int
    total_ms: int


def clock_ms() -> int:
    """The observer's clock."""
    return time.monotonic_ns() // 1_000_000


async def play(options: Options, watch: Callable[[Story], None]) -> Ending:
    """Plays the whole demo in a temporary folder and leaves nothing behind. `watch` sees the story from its start.

    Raises VoltError or TimeoutError if it does not go as it should.
    """
    began_ms = clock_ms()
    story = Story(clock_ms)
    watch(story)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="volt-demo-")))
        story.say("starting nats-server, Valkey and six services, each its own process")
        control_plane = await stack.enter_async_context(ControlPlane(folder / "control", "embedded"))
        bus = await NatsBus.connect(control_plane.nats_url, "demo")
        stack.push_async_callback(bus.close)
        accounts = {name: f"{name}-{secrets.token_hex(3)}" for name in ("buyer", "north", "south")}
        await asyncio.gather(*(open_account(bus, account, new_api_key()) for account in accounts.values()))
        story.say("starting five agents of eight GPUs, three on fabric A, two on fabric B")
        nodes = await start_nodes(
            folder / "nodes", control_plane.nats_url, accounts, checkpoints_url=control_plane.checkpoints_url
        )
        stack.push_async_callback(_stop_all, nodes)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(_watch_log(bus, story))]
            await story.until(lambda: len(story.alive & story.offered) == len(nodes), START_SECONDS_MAX, "five offers")
            requested_ms = await _request(bus, story, accounts["buyer"], options)
            watching.append(tasks.create_task(_watch_output(bus, story, accounts["buyer"])))
            killed_ms = await _run_and_hurt(story, nodes, options)
            for task in watching:
                task.cancel()
    return Ending(story, audit(story.entries), requested_ms, killed_ms, clock_ms() - began_ms)


async def _request(bus: NatsBus, story: Story, buyer: str, options: Options) -> int:
    command = (
        *("python", str(training_script()), "--steps", str(options.steps)),
        *("--step-seconds", str(options.step_seconds)),
        *("--checkpoint-every", str(STEPS_BEFORE_KILL)),
    )
    request = RequestJob(
        account=buyer,
        request_id=f"demo-{secrets.token_hex(4)}",
        gpu="h100-80gb",
        count=16,
        nodes=2,
        workload=Workload(kind="ddp", command=command),
        constraints=Constraints(interconnect="fabric"),
        max_price_microusd_per_gpu_hour=MAX_PRICE_MICROUSD,
    )
    story.job = job_id(buyer, request.request_id)
    story.say(f"job request {story.job} published: 2 nodes x 8 h100-80gb on one fabric")
    requested_ms = clock_ms()
    await bus.publish(command_job(buyer), encode(request), message_id=request.request_id)
    return requested_ms


async def _run_and_hurt(story: Story, nodes: list[Node], options: Options) -> int:
    await story.until(lambda: "ready/1" in story.marks, STEP_SECONDS_MAX, "a ready cluster")
    await story.until(lambda: story.steps >= STEPS_BEFORE_KILL, STEP_SECONDS_MAX, "the first steps")
    await story.until(lambda: story.committed is not None, STEP_SECONDS_MAX, "a committed checkpoint")
    _check(story)
    victim = next(node for node in nodes if node.id == story.members[options.kill_rank].node)
    story.say(f"{story.last_line}: SIGKILL to rank {options.kill_rank}'s agent and its workload")
    killed_ms = clock_ms()
    kill_tree(victim.child.pid)
    await story.until(lambda: "lost" in story.marks, RECOVER_SECONDS_MAX, "the loss")
    await story.until(lambda: "ready/2" in story.marks, RECOVER_SECONDS_MAX, "generation 2")
    await story.until(lambda: 2 in story.first_step, STEP_SECONDS_MAX, "the first step of generation 2")
    story.say(f"resumed from the checkpoint of step {story.resumed_step}: {story.steps_lost} steps to be done again")
    await story.until(lambda: "closed" in story.marks, CLOSE_SECONDS_MAX, "the final bill")
    _check(story)
    return killed_ms


def _check(story: Story) -> None:
    if story.problem:
        raise RuntimeError(story.problem)


def training_script() -> Path:
    """`examples/train.py`, in a checkout or as the wheel carries it."""
    packaged = Path(str(resources.files("volt.embedded"))) / "train.py"
    return packaged if packaged.exists() else Path(__file__).parents[4] / "examples" / "train.py"


async def _stop_all(nodes: list[Node]) -> None:
    await asyncio.gather(*(node.child.stop() for node in nodes))


async def _watch_log(bus: NatsBus, story: Story) -> None:
    async for page in Log(bus).read(LOG.subjects):
        for entry in page.entries:
            assert not isinstance(entry, Unreadable), entry
            await story.see(entry)


async def _watch_output(bus: NatsBus, story: Story, buyer: str) -> None:
    decoder: Decoder[LogLines] = Decoder(LogLines, bytes_max=LOGS.message_bytes_max)
    async for batch in bus.read(LOGS.name, [job_logs(buyer, story.job)]):
        for record in batch.records:
            await story.hear(decoder.decode(record.data))
