"""Publishes a job request on the bus with plain nats-py and follows its events.

    python examples/publish_job.py nats://127.0.0.1:4222 ACCOUNT -- python examples/train.py

`volt up` prints the address of the bus and the account; both are in its context.json too.
"""

import argparse
import asyncio
import secrets
import sys
from collections.abc import AsyncIterator

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from volt.contracts.clusters import ClusterReleased
from volt.contracts.ids import is_id, job_id
from volt.contracts.jobs import JobRejected, RequestJob, Workload
from volt.contracts.ledger import JobClosed, JobUnfunded
from volt.contracts.log import decode_event
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event, encode
from volt.contracts.subjects import LOG_LEDGER, LOG_MARKET, command_job, log_cluster, log_job

CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 10.0
EXIT_INTERRUPTED = 130


async def main(arguments: argparse.Namespace) -> int:
    """Follows the job to its end; returns 0 if it completed."""
    request = RequestJob(
        account=arguments.account,
        request_id=arguments.request_id,
        gpu=arguments.gpu,
        count=arguments.count,
        nodes=arguments.nodes,
        workload=Workload(kind="ddp", command=tuple(arguments.command)),
    )
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            connection = await nats.connect(arguments.nats_url, error_cb=ignore)
    except (OSError, ValueError, TimeoutError, nats.errors.Error) as error:
        print(
            f"no bus at {arguments.nats_url} ({error!r}); `volt up` starts one and prints its address", file=sys.stderr
        )
        return 1
    try:
        return await follow(connection, request)
    except nats.errors.Error as error:
        print(f"the bus at {arguments.nats_url} does not serve VOLT: {error!r}", file=sys.stderr)
        return 1
    finally:
        await connection.close()


async def follow(connection: Client, request: RequestJob) -> int:
    """Sends the request and prints what becomes of it; returns 0 if it completed."""
    job = job_id(request.account, request.request_id)
    jetstream = connection.jetstream()
    events: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: Msg) -> None:
        await events.put(message.data)

    # Read from the beginning of the log, so that a second run with the same request id shows the same job.
    for subject in (log_job(request.account, job), log_cluster(request.account, job), LOG_MARKET, LOG_LEDGER):
        await jetstream.subscribe(subject, cb=on_message, ordered_consumer=True)
    await jetstream.publish(command_job(request.account), encode(request), headers={"Nats-Msg-Id": request.request_id})
    print(f"requested {job}")

    happening = about(job, events)
    try:
        event = await asyncio.wait_for(anext(happening), ANSWER_SECONDS_MAX)
    except TimeoutError:
        print(
            f"no answer within {ANSWER_SECONDS_MAX:.0f} s: is {request.account!r} an account here? "
            "A request that nobody could answer is in `volt dlq list`",
            file=sys.stderr,
        )
        return 1
    completed = False
    while True:
        for line in describe(event, job):
            print(line)
        completed = completed or (isinstance(event, ClusterReleased) and event.reason == "completed")
        if isinstance(event, JobClosed | JobRejected | JobUnfunded):
            return 0 if completed else 1
        event = await anext(happening)


async def about(job: str, events: asyncio.Queue[bytes]) -> AsyncIterator[Event]:
    """The events of this job, and what the market says to it, without end."""
    while True:
        event = decode_event(await events.get())
        if describe(event, job) if isinstance(event, MarketCleared) else getattr(event, "job", "") == job:
            yield event


async def ignore(_: Exception) -> None:
    """The client would print a traceback for each attempt; the last error is told once."""


def describe(event: Event, job: str) -> list[str]:
    """What an event means for the job, a line for each thing."""
    match event:
        case JobRejected(reason=reason):
            return [f"rejected: {reason.message}"]
        case JobUnfunded(needed_microusd=needed, balance_microusd=balance):
            return [f"not funded: it needs {needed} micro-dollars on hold and the wallet has {balance}"]
        case MarketCleared(gangs=gangs, waiting=waiting):
            granted = [", ".join(grant.node for grant in gang.grants) for gang in gangs if gang.job == job]
            return [f"granted: {nodes}" for nodes in granted] + [
                f"waiting: {one.message}" for one in waiting if one.job == job
            ]
        case ClusterReleased(reason=reason):
            return [f"released: {reason}"]
        case JobClosed(lines=lines):
            return [
                f"{line.lease}: {line.billable_ms / 1000:.1f} s, {line.due_microusd} micro-dollars" for line in lines
            ]
        case _:
            return [type(event).__name__]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nats_url")
    parser.add_argument("account")
    parser.add_argument("--gpu", default="h100-80gb")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--request-id", default=f"example-{secrets.token_hex(4)}")
    parser.add_argument("command", nargs="+", help="what each process runs")
    arguments = parser.parse_args()
    if not is_id(arguments.account):
        parser.error(f"{arguments.account!r} is no account name: lower-case letters, digits, - and _, at most 64")
    return arguments


if __name__ == "__main__":
    arguments = parse_arguments()
    try:
        code = asyncio.run(main(arguments))
    except KeyboardInterrupt:
        job = job_id(arguments.account, arguments.request_id)
        print(
            f"\nnot followed any longer; once requested, {job} goes on: `volt release {job}` ends it", file=sys.stderr
        )
        code = EXIT_INTERRUPTED
    raise SystemExit(code)
