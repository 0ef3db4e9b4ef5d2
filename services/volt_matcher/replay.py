"""`python -m volt_matcher.replay`: every pass of the market again, from the log alone, compared byte for byte.

A pass is a function of what the log says up to its `through_seq` and of its own instant, so that anyone who has the log
can repeat it. What differs is told as JSON, one line for each pass, and a last line that says how many there were.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator

import msgspec

from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.messages import encode
from volt.runtime.log import Log, Unreadable
from volt.runtime.nats import NatsBus
from volt.runtime.telemetry import set_up
from volt_matcher.clear import clear
from volt_matcher.domain import evolve
from volt_matcher.effects import DEFINITION
from volt_matcher.state import State

CONNECT_SECONDS_MAX = 3.0
EXIT_DIFFERENT = 1


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A pass that comes out otherwise: the first of its parts that does, as it is there and as it should be."""

    seq: int
    part: str
    said: str
    should_be: str


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """How many passes were repeated, and how many came out otherwise."""

    passes: int
    different: int


class Replay:
    """A matcher that reads what was decided instead of deciding."""

    def __init__(self, from_seq: int = 0) -> None:
        self.passes = 0
        self._from_seq = from_seq
        self._state = State()
        self._ahead: list[Entry] = []
        """What stands before the next pass in the log, and may have come after it was decided."""

    def read(self, entries: Iterable[Entry]) -> Iterator[Difference]:
        """Takes in entries, in order, and says which passes come out otherwise."""
        for entry in entries:
            self._ahead.append(entry)
            if isinstance(entry.event, MarketCleared):
                yield from self._repeat(entry.seq, entry.event)

    def _repeat(self, seq: int, said: MarketCleared) -> Iterator[Difference]:
        known = [entry for entry in self._ahead if entry.seq <= said.through_seq]
        for entry in known:
            evolve(self._state, entry)
        if seq >= self._from_seq:
            self.passes += 1
            should_be = clear(self._state, said.at_ms)
            if should_be is None or encode(should_be) != encode(said):
                yield _difference(seq, said, should_be)
        for entry in self._ahead[len(known) :]:
            evolve(self._state, entry)
        self._ahead.clear()


def _difference(seq: int, said: MarketCleared, should_be: MarketCleared | None) -> Difference:
    if should_be is None:
        return Difference(seq=seq, part="pass", said="something", should_be="nothing to say")
    for name in MarketCleared.__struct_fields__:
        one, other = _json(getattr(said, name)), _json(getattr(should_be, name))
        if one != other:
            return Difference(seq=seq, part=name, said=one, should_be=other)
    raise AssertionError("equal parts make equal bytes")


def _json(part: object) -> str:
    return msgspec.json.encode(part).decode()


async def main(nats_url: str, from_seq: int) -> int:
    """Repeats what the log holds now; returns 1 if something differs. Raises BusUnavailable."""
    set_up("replay")
    bus = await NatsBus.connect(nats_url, "market-replay", CONNECT_SECONDS_MAX)
    replay, different = Replay(from_seq), 0
    try:
        async for page in Log(bus).read(DEFINITION.reads):
            readable = [entry for entry in page.entries if not isinstance(entry, Unreadable)]
            for difference in replay.read(readable):
                different += 1
                sys.stdout.write(_json(difference) + "\n")
            if page.pending == 0:
                break
    finally:
        await bus.close()
    sys.stdout.write(_json(Total(passes=replay.passes, different=different)) + "\n")
    return EXIT_DIFFERENT if different else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nats_url")
    parser.add_argument("--from", dest="from_seq", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.nats_url, arguments.from_seq)))
