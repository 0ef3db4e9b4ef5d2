"""What a job's streams are made of: the output of its workload, and what happened to it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
import structlog

from volt.contracts.errors import MalformedMessage
from volt.contracts.http import JobHappening, JobState, Output, OutputLine
from volt.contracts.letters import LogLines
from volt.contracts.messages import Decoder
from volt.contracts.streams import LOGS
from volt.contracts.subjects import job_logs
from volt.runtime.ports import Batch, Record
from volt_gateway.entities import JOBS_ENDED, Job, events_ranking, job_doc
from volt_gateway.gateway import Gateway
from volt_gateway.streams import closing, frame

EVENTS_PAGE_MAX = 100
DRAIN_SECONDS_MAX = 15.0
"""How long after a job's end its last lines are waited for."""
SETTLE_SECONDS_MAX = 1.0
"""The same, when every member is known to have ended: what it wrote is stored by then."""

_STORY_ENDED: frozenset[JobState] = frozenset({"rejected", "unfunded", "closed"})

_decoder = Decoder(LogLines, bytes_max=LOGS.message_bytes_max)
_log = structlog.get_logger("volt.output")


async def job_output(gateway: Gateway, job: Job, after_seq: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
    """Frames with the output of every node of a job, from the beginning or behind `after_seq`.

    Ends when the job has ended and nothing more can come, or a bound for that has passed; without `follow` when
    all that is there has been sent.
    """
    source = gateway.bus.read(LOGS.name, [job_logs(job.account, job.job)], after_seq=after_seq)
    ending = _Ending()
    with gateway.feed.watch(job_doc(job.job)) as moved:
        async with closing(source) as batches:
            upcoming, changed = asyncio.ensure_future(_next(batches)), asyncio.ensure_future(moved.wait())
            moved.set()
            try:
                while (seconds := ending.seconds_left(job, follow=follow)) is None or seconds > 0:
                    await asyncio.wait({upcoming, changed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                    if changed.done():
                        moved.clear()
                        changed = asyncio.ensure_future(moved.wait())
                        job = await gateway.job(job.account, job.job)
                    if upcoming.done():
                        batch = upcoming.result()
                        for record in batch.records:
                            yield _output_frame(record, ending)
                        ending.caught_up = batch.pending == 0
                        upcoming = asyncio.ensure_future(_next(batches))
            finally:
                upcoming.cancel()
                changed.cancel()
                await asyncio.gather(upcoming, changed, return_exceptions=True)
    yield frame("end")


async def job_story(gateway: Gateway, job: Job, after_seq: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
    """Frames with what happened to a job. Ends when nothing more can happen, or without `follow` at the present."""
    ranking = events_ranking(job.job)
    with gateway.feed.watch(ranking) as moved:
        while True:
            moved.clear()
            job = await gateway.job(job.account, job.job)
            page = await gateway.views.after(ranking, after_seq, EVENTS_PAGE_MAX)
            for raw in page:
                happening = msgspec.json.decode(raw, type=JobHappening)
                after_seq = happening.seq
                yield frame("happening", happening, after_seq)
            if len(page) == EVENTS_PAGE_MAX:
                continue
            if not follow or job.state in _STORY_ENDED:
                break
            await moved.wait()
    yield frame("end")


class _Ending:
    """When the output of a job is complete. `silent` are the nodes of which no line follows any more."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.caught_up = False
        self._now = asyncio.get_running_loop().time
        self._ended_at: float | None = None
        self._settled_at: float | None = None

    def seconds_left(self, job: Job, *, follow: bool) -> float | None:
        """How long to wait for more; None: for ever. Nothing ends before all that is stored has been sent."""
        if not self.caught_up:
            return None
        if not follow or self._all_silent(job):
            return 0.0
        if job.state not in JOBS_ENDED:
            return None
        now = self._now()
        self._ended_at = self._ended_at or now
        left = self._ended_at + DRAIN_SECONDS_MAX - now
        if all(member.node in self.silent or member.state in ("ended", "cleared") for member in job.members):
            self._settled_at = self._settled_at or now
            left = min(left, self._settled_at + SETTLE_SECONDS_MAX - now)
        return left

    def _all_silent(self, job: Job) -> bool:
        return job.state in JOBS_ENDED and all(member.node in self.silent for member in job.members)


def _output_frame(record: Record, ending: _Ending) -> bytes:
    """The lines of one record; a comment if it cannot be read."""
    node = record.subject.rpartition(".")[2]
    try:
        output = _decoder.decode(record.data)
    except MalformedMessage as error:
        _log.warning("output_unreadable", subject=record.subject, seq=record.seq, error=str(error))
        return b": unreadable\n\n"
    (ending.silent.add if output.last else ending.silent.discard)(node)
    lines = tuple(
        OutputLine(generation=one.generation, rank=one.rank, stream=one.stream, text=one.text) for one in output.lines
    )
    return frame("output", Output(at_ms=record.at_ms, node=node, node_rank=output.node_rank, lines=lines), record.seq)


async def _next(batches: AsyncIterator[Batch]) -> Batch:
    return await anext(batches)
