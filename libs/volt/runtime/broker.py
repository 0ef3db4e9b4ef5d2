"""FastStream as VOLT uses it: bytes in, explicit acknowledgements, delays that grow, dead letters at the end.

The body is decoded by the engine, since a typed handler never sees a body that it cannot decode.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TypedDict, TypeVar

import structlog
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage
from nats.js.api import AckPolicy as JsAckPolicy
from nats.js.api import ConsumerConfig, DeliverPolicy

from volt.contracts.errors import BusUnavailable, VoltError
from volt.contracts.streams import COMMANDS
from volt.runtime.connection import EXIT_BUS_CLOSED, PING_SECONDS, RECONNECT_WAIT_SECONDS, NatsConnection
from volt.runtime.dead_letters import Delivery, bury
from volt.runtime.engine import Engine, Outcome, Verdict
from volt.runtime.ports import Bus
from volt.runtime.reader import parse_place
from volt.runtime.telemetry import consuming

DELIVERIES_MAX = 12
ACK_WAIT_SECONDS = 2
IN_PROGRESS_SECONDS = 1.0
"""How often a command that is being answered says so, lest it be delivered a second time."""
ANSWER_SECONDS_MAX = 60.0
RETRY_DELAY_SECONDS_MIN = 0.25
RETRY_DELAY_SECONDS_MAX = 5.0
ACKS_PENDING_MAX = 1
DURABLE_CHECK_SECONDS = 5.0
_CONSUMER_NOT_FOUND, _STREAM_NOT_FOUND = 10014, 10059
_GONE = (_CONSUMER_NOT_FOUND, _STREAM_NOT_FOUND)

_log = structlog.get_logger("volt.broker")


class DurableGone(VoltError):
    """Somebody has deleted the consumer, or its stream; a process that starts makes both again."""


class Subscription(TypedDict):
    """The arguments of a subscriber; see `durable`."""

    stream: JStream
    queue: str
    config: ConsumerConfig
    ack_policy: AckPolicy


def make_broker(url: str, name: str) -> NatsBroker:
    """A broker that decodes nothing and reconnects for ever; the process ends if its client gives up."""

    async def on_closed() -> None:
        if broker.running:
            _log.error("broker_closed", name=name)
            os._exit(EXIT_BUS_CLOSED)

    broker = NatsBroker(
        url,
        name=f"{name}-commands",
        decoder=_raw,
        ping_interval=PING_SECONDS,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type]  # it is slept, so a float serves
        closed_cb=on_closed,
        logger=None,
    )
    return broker


def durable(name: str, subjects: Sequence[str]) -> Subscription:
    """How a service consumes commands: one durable for all of its subjects, which keeps their order.

    One is delivered at a time. With more, those that a killed process had not answered would come again only after
    `ACK_WAIT_SECONDS`, behind what was sent later; and so would those that are retried.
    """
    return Subscription(
        stream=JStream(COMMANDS.name, declare=False),
        queue=name,
        config=ConsumerConfig(
            filter_subjects=list(subjects),
            ack_policy=JsAckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_SECONDS,
            max_deliver=-1,
            max_ack_pending=ACKS_PENDING_MAX,
            deliver_policy=DeliverPolicy.ALL,
        ),
        ack_policy=AckPolicy.MANUAL,
    )


async def watch_durable(bus: NatsConnection, name: str) -> None:
    """Raises DurableGone once the server no longer knows this consumer of `COMMANDS`: nothing would come any more."""
    while True:
        await asyncio.sleep(DURABLE_CHECK_SECONDS)
        try:
            reply = await bus.api(f"CONSUMER.INFO.{COMMANDS.name}.{name}", b"")
        except BusUnavailable:
            continue  # It says nothing about the consumer.
        if reply.error is not None and reply.error.err_code in _GONE:
            raise DurableGone(f"{COMMANDS.name} has no consumer {name} any more: {reply.error.description}")


S = TypeVar("S")


async def answer(engine: Engine[S], bus: Bus, message: NatsMessage) -> None:
    """Lets the engine answer one delivered command, then acknowledges, delays or buries it."""
    delivery = delivery_of(message)
    with consuming(engine.definition.name, delivery.subject, message.headers):
        progress = asyncio.create_task(_say_in_progress(message))
        try:
            outcome = await _outcome(engine, delivery)
        finally:
            progress.cancel()
    await conclude(bus, engine.definition.name, delivery, outcome, message)


async def conclude(bus: Bus, service: str, delivery: Delivery, outcome: Outcome, message: NatsMessage) -> None:
    """Settles a delivery by its outcome; what was retried `DELIVERIES_MAX` times is buried.

    What waits for the bus is not: it is delivered for as long as `COMMANDS` keeps it.
    """
    verdict, error, cause = outcome
    if verdict is Verdict.DONE:
        await message.ack()
        return
    if verdict is Verdict.AWAY or (verdict is Verdict.RETRY and delivery.deliveries < DELIVERIES_MAX):
        _log.warning("command_delayed", service=service, subject=delivery.subject, error=error)
        await message.nack(delay=retry_delay_seconds(delivery.deliveries))
        return
    try:
        await bury(bus, service, delivery, error, cause or "retries exhausted")
    except BusUnavailable as away:
        _log.warning("dead_letter_delayed", service=service, subject=delivery.subject, error=str(away))
        await message.nack(delay=RETRY_DELAY_SECONDS_MAX)
        return
    _log.error("dead_letter", service=service, subject=delivery.subject, seq=delivery.stream_seq, error=error)
    await message.reject()


def retry_delay_seconds(deliveries: int) -> float:
    """The wait before the next delivery: doubling, bounded."""
    doublings = min(deliveries - 1, DELIVERIES_MAX)
    return min(RETRY_DELAY_SECONDS_MIN * float(1 << doublings), RETRY_DELAY_SECONDS_MAX)


def delivery_of(message: NatsMessage) -> Delivery:
    """The stored message behind a FastStream message."""
    raw = message.raw_message
    assert not isinstance(raw, list)
    place = parse_place(raw.reply)
    return Delivery(COMMANDS.name, place.stream_seq, raw.subject, raw.data, place.at_ms, place.deliveries)


async def _say_in_progress(message: NatsMessage) -> None:
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        while True:
            await asyncio.sleep(IN_PROGRESS_SECONDS)
            await message.in_progress()


async def _outcome(engine: Engine[S], delivery: Delivery) -> Outcome:
    try:
        return await engine.handle(delivery.subject, delivery.data, delivery.stream_seq, delivery.at_ms)
    except Exception as error:  # noqa: BLE001  # whatever it is, the message is not lost: it is retried, then buried
        _log.exception("answer_failed", service=engine.definition.name, subject=delivery.subject)
        return Outcome(Verdict.RETRY, repr(error))


async def _raw(message: NatsMessage) -> bytes:
    return message.body
