"""What every service does: fold the log, decide, append, and let effects follow from state.

    LOG ──read in order──▶ evolve ──▶ state ──▶ effects ──append at expected sequence──▶ LOG
                                        ▲
    COMMANDS ──handler──▶ decide ───────┘ (load, decide, append; acknowledged when the answer is in the log)

One ordered reader folds; nothing else changes the state, so what is decided and not yet in the log never counts.
A conflict of sequences means that the log knows something that the state does not yet: wait for the fold, decide again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

import structlog

from volt.contracts.errors import BusUnavailable, MalformedMessage, Reason, Refused
from volt.contracts.log import Entry
from volt.contracts.messages import Asked, Command, Decoder, Event
from volt.contracts.subjects import sender
from volt.runtime.log import Log, Unreadable
from volt.runtime.ports import Bus, Clock, SequenceConflict, TooLarge
from volt.runtime.subjects import matches
from volt.runtime.telemetry import Traces

DECIDE_ATTEMPTS_MAX = 8
EFFECT_ROUNDS_MAX = 64
APPENDS_IN_FLIGHT_MAX = 64
FOLD_WAIT_SECONDS_MAX = 10.0
RETRY_SECONDS = 0.5
ERROR_CHARS_MAX = 500

FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What domain code raises when it meets what it was not made for."""

S = TypeVar("S")
_log = structlog.get_logger("volt.engine")


class Publication(NamedTuple):
    """The value that the last message of a subject beside the log should have."""

    stream: str
    subject: str
    data: bytes


class Broken(NamedTuple):
    """What an effect of one aggregate fails with: the aggregate is stuck, the others go on."""

    subject: str
    error: str


def guarded(subject: str, make: Callable[[], Event | None]) -> Event | Broken | None:
    """What `make` makes of an aggregate, or how it fails."""
    try:
        return make()
    except FAULTS as error:
        _log.exception("effect_failed", subject=subject)
        return Broken(subject, repr(error))


class Verdict(Enum):
    """What becomes of a delivered command."""

    DONE = "done"
    """Answered in the log, or answered before: acknowledge."""
    RETRY = "retry"
    """The aggregate is contended: deliver again, later, so many times."""
    AWAY = "away"
    """The bus is away, which is no fault of the message: deliver again, later, for as long as its stream keeps it."""
    DEAD = "dead"
    """Nobody can be answered, or its aggregate is stuck: to the dead letters."""


class Outcome(NamedTuple):
    verdict: Verdict
    error: str = ""
    cause: str = ""
    """What kind of trouble makes a message dead."""


def no_publications(_state: object) -> Sequence[Publication]:
    """For a service that writes nothing but the log."""
    return ()


def no_decision(_state: object, _command: Command, _asked: Asked) -> Sequence[Event]:
    """For a service that takes no commands."""
    return ()


def no_refusal(_state: object, reason: Reason, _asked: Asked) -> Sequence[Event]:
    """For a service that has no subject on which its senders could be answered."""
    raise Refused(reason)


@dataclass(frozen=True, kw_only=True)
class Definition(Generic[S]):
    """A service as the runtime sees it: pure functions over a state that only `evolve` changes.

    `effects` returns the events that the state calls for now, and may return one again until it is in the log; where
    there are many aggregates, each is `guarded`;
    `publications` the values that other streams should show, each at least once when it has changed: the engine keeps
    it until it is stored. `decide` answers a command, `refuse` a message that
    is none; both raise Refused if nobody can be answered. All times are milliseconds of the stream's clock.
    """

    name: str
    reads: tuple[str, ...]
    initial: Callable[[], S]
    evolve: Callable[[S, Entry], None]
    effects: Callable[[S, int], Sequence[Event | Broken]]
    commands: tuple[type[Command], ...] = ()
    decide: Callable[[S, Command, Asked], Sequence[Event]] = no_decision
    refuse: Callable[[S, Reason, Asked], Sequence[Event]] = no_refusal
    publications: Callable[[S], Sequence[Publication]] = no_publications


class Engine(Generic[S]):
    """Runs a definition against a bus."""

    def __init__(self, definition: Definition[S], bus: Bus, clock: Clock, tick_ms: int) -> None:
        self.definition = definition
        self.state = definition.initial()
        self.folded_seq = 0
        self.stuck: dict[str, str] = {}
        """Aggregates with an event that cannot be read, and why; the others go on."""
        self._bus, self._log, self._clock = bus, Log(bus), clock
        self._tick_seconds = tick_ms / 1000
        self._decoder: Decoder[Command] | None = Decoder(*definition.commands) if definition.commands else None
        self._last_seq: dict[str, int] = {}
        self._traces = Traces()
        self._unpublished: dict[str, Publication] = {}
        self._published: dict[str, tuple[int, bytes]] = {}
        self._time = (0, clock.monotonic_ms())
        self._caught_up = asyncio.Event()
        self._folded = asyncio.Condition()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Folds and acts until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fold_on())
            tasks.create_task(self._act_on())
            tasks.create_task(self._tick_on())

    async def caught_up(self) -> None:
        """Returns once everything that the log held has been folded."""
        await self._caught_up.wait()

    def now_ms(self) -> int:
        """The stream's time: the last one folded plus what the local clock has counted since."""
        at_ms, counted_ms = self._time
        return at_ms + self._clock.monotonic_ms() - counted_ms

    def observe(self, at_ms: int) -> None:
        """Learns the stream's time from a message; it never goes back."""
        if at_ms > self.now_ms():
            self._time = (at_ms, self._clock.monotonic_ms())

    def wake(self) -> None:
        """Something beside the log changed: look for effects."""
        self._wake.set()

    async def handle(self, subject: str, data: bytes, seq: int, at_ms: int) -> Outcome:
        """Answers a command: load, decide, append; or refuses what is none. Its answer is in the log on return."""
        await self.caught_up()
        self.observe(at_ms)
        async with self._turn:
            for _ in range(DECIDE_ATTEMPTS_MAX):
                outcome, events = self._decide(Asked(subject, seq, at_ms, self.now_ms()), data)
                stuck = next((event.subject() for event in events if event.subject() in self.stuck), None)
                if stuck is not None:
                    return Outcome(Verdict.DEAD, f"{stuck}: {self.stuck[stuck]}", "its aggregate is stuck")
                try:
                    if await self._append_all(events, are_answers=True):
                        return outcome
                except BusUnavailable as error:
                    return Outcome(Verdict.AWAY, str(error))
                except TooLarge as error:
                    return Outcome(Verdict.DEAD, str(error), "its answer is too large")
        return Outcome(Verdict.RETRY, "the aggregate is contended")

    def _decide(self, asked: Asked, data: bytes) -> tuple[Outcome, Sequence[Event]]:
        try:
            command = self._decode(asked.subject, data)
        except MalformedMessage as error:
            _log.warning("message_refused", service=self.definition.name, subject=asked.subject, code=error.code)
            return self._refuse(Reason(code=error.code, message=str(error)[:ERROR_CHARS_MAX]), asked)
        try:
            return Outcome(Verdict.DONE), self.definition.decide(self.state, command, asked)
        except Refused as error:
            return Outcome(Verdict.DEAD, f"{error.code}: {error}", "nobody to answer"), ()
        except FAULTS as error:
            _log.exception("decision_failed", service=self.definition.name, subject=asked.subject, seq=asked.seq)
            return Outcome(Verdict.DEAD, repr(error), "a fault in the decision"), ()

    def _refuse(self, reason: Reason, asked: Asked) -> tuple[Outcome, Sequence[Event]]:
        try:
            refusal = self.definition.refuse(self.state, reason, asked)
        except Refused as error:
            return Outcome(Verdict.DEAD, f"{reason.code}: {reason.message} ({error})", "undecodable"), ()
        return Outcome(Verdict.DONE), refusal

    def _decode(self, subject: str, data: bytes) -> Command:
        assert self._decoder is not None, f"{self.definition.name} takes no commands"
        command = self._decoder.decode(data)
        account, node = sender(subject)
        if account != getattr(command, "account", account) or node != getattr(command, "node", node):
            raise MalformedMessage("wrong_subject", f"{type(command).__name__} speaks for another than {subject}")
        return command

    async def _fold_on(self) -> None:
        async for page in self._log.read(self.definition.reads):
            for entry, headers in zip(page.entries, page.headers, strict=True):
                self._fold(entry)
                if isinstance(entry, Entry):
                    self._traces.remember(entry.event, headers)
            if page.pending == 0:
                self._caught_up.set()
            self._wake.set()
            async with self._folded:
                self._folded.notify_all()

    def _fold(self, entry: Entry | Unreadable) -> None:
        if isinstance(entry, Unreadable):
            seq, at_ms, subject = entry.record.seq, entry.record.at_ms, entry.record.subject
            self._mark_stuck(subject, seq, str(entry.error))
        else:
            seq, at_ms, subject = entry.seq, entry.at_ms, entry.event.subject()
            if subject not in self.stuck:
                self._evolve(entry, subject)
        self.folded_seq = seq
        self._last_seq[subject] = seq
        self.observe(at_ms)

    def _evolve(self, entry: Entry, subject: str) -> None:
        try:
            self.definition.evolve(self.state, entry)
        except FAULTS as error:
            self._mark_stuck(subject, entry.seq, repr(error))

    def _mark_stuck(self, subject: str, seq: int, error: str) -> None:
        if subject in self.stuck:
            return
        self.stuck[subject] = error
        _log.error("aggregate_stuck", service=self.definition.name, subject=subject, seq=seq, error=error)

    async def _act_on(self) -> None:
        await self.caught_up()
        while True:
            try:
                async with self._turn:
                    await self._act()
            except BusUnavailable as error:
                _log.warning("effects_wait", service=self.definition.name, error=str(error))
                await self._clock.sleep(RETRY_SECONDS)
            await self._wake.wait()
            self._wake.clear()

    async def _tick_on(self) -> None:
        """Time alone may call for something."""
        while True:
            await self._clock.sleep(self._tick_seconds)
            self._wake.set()

    async def _act(self) -> None:
        for _ in range(EFFECT_ROUNDS_MAX):
            events = self._due()
            if not events:
                break
            await self._append_all(events)
        for publication in self.definition.publications(self.state):
            self._unpublished[publication.subject] = publication
        for subject, publication in list(self._unpublished.items()):
            if await self._publish(publication):
                del self._unpublished[subject]

    def _due(self) -> list[Event]:
        """The events that the state calls for, the first of each aggregate, as many as may be in flight at once."""
        due: dict[str, Event] = {}
        for event in self.definition.effects(self.state, self.now_ms()):
            if isinstance(event, Broken):
                self._mark_stuck(event.subject, self._last_seq.get(event.subject, 0), event.error)
            elif (subject := event.subject()) not in self.stuck:
                due.setdefault(subject, event)
            if len(due) >= APPENDS_IN_FLIGHT_MAX:
                break
        return list(due.values())

    async def _append_all(self, events: Sequence[Event], *, are_answers: bool = False) -> bool:
        """Appends events of different aggregates and waits until they are folded. False: decide again.

        An answer that is too large is its command's fault: raises TooLarge. What follows from the state and is too
        large would follow again for ever: its aggregate is stuck.
        """
        # The sequences are those that the events were decided on: another task may fold before the appends begin.
        known = [self._last_seq.get(event.subject(), 0) for event in events]
        results = await asyncio.gather(
            *(self._append(event, seq, is_answer=are_answers) for event, seq in zip(events, known, strict=True))
        )
        await self._folded_to(max(results, default=0))
        return all(results)

    async def _append(self, event: Event, known_seq: int, *, is_answer: bool) -> int:
        """The event's sequence once stored, or 0 when the fold had to catch up first."""
        subject = event.subject()
        assert any(matches(subject, one) for one in self.definition.reads), f"{subject} is written and not read"
        try:
            with self._traces.producing(self.definition.name, event):
                return await self._log.append(event, expected_seq=known_seq)
        except SequenceConflict:
            await self._moved_on(subject, known_seq)
            return 0
        except TooLarge as error:
            if is_answer:
                raise
            self._mark_stuck(subject, known_seq, str(error))
            return 0

    async def _folded_to(self, seq: int) -> None:
        await self._fold_reaches(lambda: self.folded_seq >= seq)

    async def _moved_on(self, subject: str, known_seq: int) -> None:
        await self._fold_reaches(lambda: self._last_seq.get(subject, 0) > known_seq)

    async def _fold_reaches(self, condition: Callable[[], bool]) -> None:
        if condition():
            return
        try:
            async with asyncio.timeout(FOLD_WAIT_SECONDS_MAX), self._folded:
                await self._folded.wait_for(condition)
        except TimeoutError as error:
            raise BusUnavailable(f"{self.definition.name} waits for the log at {self.folded_seq}") from error

    async def _publish(self, publication: Publication) -> bool:
        """Makes a subject's last value what the state says, unless it is already. False: somebody else wrote it."""
        stream, subject, data = publication
        if subject not in self._published:
            record = await self._bus.last(stream, subject)
            self._published[subject] = (record.seq, record.data) if record else (0, b"")
        known_seq, known = self._published[subject]
        if known == data:
            return True
        del self._published[subject]
        try:
            seq = await self._bus.publish(subject, data, expected_seq=known_seq)
        except SequenceConflict:
            self._wake.set()
            return False
        except TooLarge as error:
            _log.error("publication_too_large", service=self.definition.name, subject=subject, error=str(error))
            seq = known_seq  # It is not tried again until the value is another.
        self._published[subject] = (seq, data)
        return True
