"""What the gateway can do: hand over a command and wait for its answer, and show an account its own things."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from volt.contracts.bids import ChangeBid, DrainNode, ResumeNode, WithdrawBid
from volt.contracts.errors import BusUnavailable, NotFound, Reason, Refused, Unauthorized, Unavailable
from volt.contracts.http import Health
from volt.contracts.ids import digest, is_id, job_id, key_sha256, quote_id
from volt.contracts.jobs import ReleaseJob, RequestJob, RequestQuote, ScaleJob
from volt.contracts.messages import encode
from volt.contracts.streams import LOG
from volt.contracts.subjects import LOG_LEDGER, command_bid, command_job
from volt.runtime.ports import Bus
from volt.runtime.telemetry import producing, trace_headers
from volt_gateway.entities import (
    FLEET_DOC,
    JOBS_ENDED,
    Account,
    Fleet,
    Job,
    Key,
    Node,
    Quote,
    account_doc,
    job_doc,
    key_doc,
    node_doc,
    quote_doc,
)
from volt_gateway.feed import Feed
from volt_gateway.views import ViewsAway, ViewsRebuilding, ViewStore

ANSWER_SECONDS_MAX = 3.0
HEALTH_SECONDS_MAX = 1.0
STREAMS_PER_ACCOUNT_MAX = 16
STREAMS_MAX = 128

T = TypeVar("T")

AboutNode = ChangeBid | WithdrawBid | DrainNode | ResumeNode
Asking = RequestJob | ReleaseJob | ScaleJob | RequestQuote | AboutNode
"""The commands that the gateway hands over."""


class Gateway:
    """The bus, the views, and what is open at the moment. `stopping` ends every stream and every wait."""

    def __init__(self, bus: Bus, views: ViewStore, feed: Feed) -> None:
        self.bus, self.views, self.feed = bus, views, feed
        self.stopping = asyncio.Event()
        self._streams: Counter[str] = Counter()

    def stop(self) -> None:
        """Ends every stream and every wait."""
        self.stopping.set()
        self.feed.all_changed()

    async def account_of(self, api_key: str) -> str:
        """Whose key it is. Raises Unauthorized, Unavailable."""
        name = key_doc(key_sha256(api_key))
        key = (await self.views.documents([name])).get(name)
        if not isinstance(key, Key):
            raise Unauthorized("the API key is missing, wrong or revoked")
        return key.account

    async def job(self, account: str, job: str) -> Job:
        """A job of this account. Raises NotFound, Unavailable."""
        known = await self._job(account, job)
        if known is None:
            raise _no_job(job)
        return known

    async def submit(self, command: RequestJob) -> Job | None:
        """Hands over a request and waits for intake's answer; None if there is none in time.

        The same request again is answered as before. Raises Refused, Unavailable.
        """
        job, fingerprint = job_id(command.account, command.request_id), digest(encode(command))
        with self.feed.watch(job_doc(job), account_doc(command.account)) as moved:
            known = _answer(await self._job(command.account, job), fingerprint)
            if known is not None:
                return known
            # A retry that finds no answer yet is stored once, within the stream's window for duplicates.
            seq = await self._publish(command, message_id=f"http/{job}/{fingerprint}")

            async def look() -> Job | None:
                await self._raise_refusal(command.account, seq)
                return _answer(await self._job(command.account, job), fingerprint)

            return await self._until(look, moved)

    async def release(self, account: str, job: str) -> Job | None:
        """Hands over the release of a job and waits for its acceptance; None if there is none in time.

        A job that is not in the views yet can be released too: its request may be on its way. An ended one is left as
        it is. Raises NotFound, Refused, Unavailable.
        """
        with self.feed.watch(job_doc(job), account_doc(account)) as moved:
            known = await self._job(account, job)
            if known is not None and _is_released(known):
                return known
            seq = await self._publish(ReleaseJob(account=account, request_id=f"release/{job}", job=job))

            async def look() -> Job | None:
                await self._raise_refusal(account, seq)
                found = await self._job(account, job)
                return found if found is not None and _is_released(found) else None

            return await self._until(look, moved)

    async def scale(self, command: ScaleJob) -> Job | None:
        """Hands over a wish for another size and waits for its answer; None if there is none in time.

        The same wish again is answered as before. Raises NotFound, Refused, Unavailable.
        """
        fingerprint = digest(encode(command))
        with self.feed.watch(job_doc(command.job), account_doc(command.account)) as moved:
            known = _scaled(await self.job(command.account, command.job), fingerprint)
            if known is not None:
                return known
            seq = await self._publish(command, message_id=f"http/{command.job}/{fingerprint}")

            async def look() -> Job | None:
                await self._raise_refusal(command.account, seq)
                job = await self._job(command.account, command.job)
                return None if job is None else _scaled(job, fingerprint)

            return await self._until(look, moved)

    async def quote(self, command: RequestQuote) -> Quote | None:
        """Asks the market what a request would get; None if there is no answer in time. Raises Refused, Unavailable."""
        name = quote_doc(quote_id(command.account, command.request.request_id))
        fingerprint = digest(encode(command))
        with self.feed.watch(name, account_doc(command.account)) as moved:
            seq = await self._publish(command, message_id=f"http/{name}/{fingerprint}")

            async def look() -> Quote | None:
                await self._raise_refusal(command.account, seq)
                known = (await self.views.documents([name])).get(name)
                return _quoted(known, fingerprint) if isinstance(known, Quote) else None

            return await self._until(look, moved)

    async def change_node(self, command: AboutNode) -> Node | None:
        """Hands over what shall become of a node or its bid and waits for the answer; None if there is none in time.

        Raises NotFound, Refused, Unavailable.
        """
        name, subject = node_doc(command.node), command_bid(command.account, command.node)
        with self.feed.watch(name, account_doc(command.account)) as moved:
            message_id = f"http/{command.account}/{command.node}/{command.request_id}"
            seq = await self._publish(command, subject, message_id=message_id)

            async def look() -> Node | None:
                await self._raise_refusal(command.account, seq)
                known = (await self.views.documents([name])).get(name)
                return _changed(known, command) if isinstance(known, Node) else None

            return await self._until(look, moved)

    async def health(self) -> Health:
        """Whether bus and views answer."""
        bus, (views, seq) = await asyncio.gather(self._bus_health(), self._views_health())
        held = await self._losses_held() if views == "ok" else ""
        is_ok = bus == views == "ok"
        return Health(status="ok" if is_ok else "unavailable", bus=bus, views=views, seq=seq, losses_held=held)

    @contextmanager
    def stream_of(self, account: str) -> Iterator[None]:
        """Counts an open stream. Raises Refused when the account, or the gateway, has too many."""
        if self._streams[account] >= STREAMS_PER_ACCOUNT_MAX or self._streams.total() >= STREAMS_MAX:
            message = f"too many open streams; {STREAMS_PER_ACCOUNT_MAX} are allowed: close one and try again"
            raise Refused(Reason(code="too_many_streams", message=message))
        self._streams[account] += 1
        try:
            yield
        finally:
            self._streams[account] -= 1
            if not self._streams[account]:
                del self._streams[account]

    async def _job(self, account: str, job: str) -> Job | None:
        """Raises NotFound for what cannot be a job, or is another account's."""
        if not is_id(job):
            raise _no_job(job)
        known = (await self.views.documents([job_doc(job)])).get(job_doc(job))
        if isinstance(known, Job) and known.account != account:
            raise _no_job(job)
        return known if isinstance(known, Job) else None

    async def _raise_refusal(self, account: str, seq: int) -> None:
        """Raises what intake answered if the command could not even be read, or names what it may not."""
        known = (await self.views.documents([account_doc(account)])).get(account_doc(account))
        reason = dict(known.refused).get(seq) if isinstance(known, Account) else None
        if reason is not None:
            raise NotFound(reason.message) if reason.code == NotFound.code else Refused(reason)

    async def _publish(self, command: Asking, subject: str = "", *, message_id: str | None = None) -> int:
        """Stores a command, on the subject of job commands unless it has another."""
        subject = subject or command_job(command.account)
        with producing("gateway", subject):
            return await self.bus.publish(subject, encode(command), message_id=message_id, headers=trace_headers())

    async def _until(self, look: Callable[[], Awaitable[T | None]], moved: asyncio.Event) -> T | None:
        """What `look` finds once a watched view has it; None after `ANSWER_SECONDS_MAX`, or when stopping."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                while not self.stopping.is_set():
                    moved.clear()
                    found = await look()
                    if found is not None:
                        return found
                    await moved.wait()
        return None

    async def _bus_health(self) -> str:
        try:
            async with asyncio.timeout(HEALTH_SECONDS_MAX):
                await self.bus.last(LOG.name, LOG_LEDGER)
        except (TimeoutError, BusUnavailable):
            return BusUnavailable.code
        return "ok"

    async def _losses_held(self) -> str:
        """Why no silent node is called lost at present. The views may go away meanwhile, which the next look says."""
        try:
            fleet = (await self.views.documents([FLEET_DOC])).get(FLEET_DOC)
        except Unavailable:
            return ""
        if not isinstance(fleet, Fleet) or fleet.held_at_ms is None:
            return ""
        return f"{fleet.silent} of {fleet.watched} nodes fell silent at once; none is called lost until that is sure"

    async def _views_health(self) -> tuple[str, int]:
        try:
            async with asyncio.timeout(HEALTH_SECONDS_MAX):
                position = await self.views.position()
        except (TimeoutError, ViewsAway):
            return ViewsAway.code, 0
        if position is None or not position.live or not self.views.open:
            return ViewsRebuilding.code, position.seq if position else 0
        return "ok", position.seq


def _answer(job: Job | None, fingerprint: str) -> Job | None:
    """The job, if this very request is what intake answered. Raises Refused if it was refused."""
    if job is None:
        return None
    reason = job.reason if job.state == "rejected" and job.request_digest == fingerprint else None
    reason = reason or dict(job.refused).get(fingerprint)
    if reason is not None:
        raise Refused(reason)
    return job if job.request_digest == fingerprint else None


def _scaled(job: Job, fingerprint: str) -> Job | None:
    """The job, if this very wish was answered. Raises Refused if it was refused, or comes after the job's end."""
    for digested, reason in job.scalings:
        if digested == fingerprint:
            if reason is not None:
                raise Refused(reason)
            return job
    if job.state in JOBS_ENDED:
        message = f"job {job.job} has ended; ask for a new one"
        raise Refused(Reason(code="job_ended", message=message, field="job", seen=job.job))
    return None


def _quoted(quote: Quote, fingerprint: str) -> Quote | None:
    """The quote, once the market has answered this very question. Raises Refused if it was refused."""
    reason = quote.reason if quote.request_digest == fingerprint else dict(quote.refused).get(fingerprint)
    if reason is not None:
        raise Refused(reason)
    return quote if quote.market is not None and quote.request_digest == fingerprint else None


def _changed(node: Node, command: AboutNode) -> Node | None:
    """The node, if this very request was answered. Raises Refused if it was refused."""
    if node.provider != command.account:
        raise NotFound(f"there is no node {command.node[:64]} of yours")
    answers = dict(node.answered)
    if command.request_id not in answers:
        return None
    reason = answers[command.request_id]
    if reason is not None:
        raise Refused(reason)
    return node


def _is_released(job: Job) -> bool:
    return job.release_accepted_at_ms is not None or job.state in JOBS_ENDED


def _no_job(job: str) -> NotFound:
    return NotFound(f"there is no job {job[:64]} of yours")
