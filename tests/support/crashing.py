"""A service that kills itself with SIGKILL at one exact point: `python -m tests.support.crashing SERVICE MODULE`.

The point is armed by a file in the folder that `VOLT_CRASH_FOLDER` names; it is removed as the shot is fired, so that
the process which takes over runs on. `after_append` fires when the bus has acknowledged and nothing was folded: exactly
between an append and what follows from it. `before_fold` fires when an event was delivered and nothing was made of it.
"""

import os
import runpy
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from volt.contracts.log import Entry
from volt.contracts.market import MarketCleared
from volt.contracts.messages import Event
from volt.runtime import log
from volt.runtime.engine import Publication
from volt.runtime.nats import NatsBus

FOLDER_VARIABLE = "VOLT_CRASH_FOLDER"
When = Literal["before_append", "after_append", "before_fold", "before_publish", "after_publish"]


class Shot(msgspec.Struct, frozen=True, kw_only=True):
    """Where to die: around an event of a job (or of a node), or around a publication that names it."""

    when: When
    about: str
    event: str = ""


def arm(folder: Path, service: str, shot: Shot) -> None:
    """Arms the point for a service, from outside."""
    draft = folder / f"{service}.draft"
    draft.write_bytes(msgspec.json.encode(shot))
    draft.rename(folder / f"{service}.json")


def is_armed(folder: Path, service: str) -> bool:
    """Whether the shot has not been fired yet."""
    return (folder / f"{service}.json").exists()


class Gun:
    """Fires the shot that is armed for this process, when its point is reached."""

    def __init__(self, folder: Path, service: str) -> None:
        self._file = folder / f"{service}.json"

    def at(self, when: When, event: Event) -> None:
        """An event is at this point."""
        shot = self._shot()
        if shot is not None and shot.when == when and shot.event == type(event).__name__ and _is_about(event, shot):
            self._fire()

    def at_publication(self, when: When, publication: Publication) -> None:
        """A publication is at this point."""
        shot = self._shot()
        if shot is not None and shot.when == when and shot.about.encode() in publication.data:
            self._fire()

    def _shot(self) -> Shot | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Shot)
        except FileNotFoundError:
            return None

    def _fire(self) -> None:
        self._file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def load(gun: Gun) -> None:
    """Puts the points into the runtime of this process."""
    append, read, publish = log.Log.append, log.Log.read, NatsBus.publish

    async def shot_append(self: log.Log, event: Event, *, expected_seq: int) -> int:
        gun.at("before_append", event)
        seq = await append(self, event, expected_seq=expected_seq)
        gun.at("after_append", event)
        return seq

    async def shot_read(self: log.Log, subjects: Sequence[str], *, after_seq: int = 0) -> AsyncIterator[log.Page]:
        async for page in read(self, subjects, after_seq=after_seq):
            for entry in page.entries:
                if isinstance(entry, Entry):
                    gun.at("before_fold", entry.event)
            yield page

    async def shot_publish(
        self: NatsBus,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        publication = Publication("", subject, data)
        if subject.startswith("desired."):
            gun.at_publication("before_publish", publication)
        seq = await publish(self, subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)
        if subject.startswith("desired."):
            gun.at_publication("after_publish", publication)
        return seq

    for owner, name, shot in (
        (log.Log, "append", shot_append),
        (log.Log, "read", shot_read),
        (NatsBus, "publish", shot_publish),
    ):
        setattr(owner, name, shot)


def _is_about(event: Event, shot: Shot) -> bool:
    if isinstance(event, MarketCleared):
        return any(gang.job == shot.about for gang in event.gangs)
    return shot.about in (getattr(event, "job", None), getattr(event, "node", None))


if __name__ == "__main__":
    service_name, module = sys.argv[1:3]
    load(Gun(Path(os.environ[FOLDER_VARIABLE]), service_name))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
