"""Which jobs to look at: each waits for an instant, or for cover to be complete to one, and is left alone till then."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from volt.contracts.ids import JobId

Place = tuple[int, int, JobId]
"""An instant, the job's number in the order of admission, and the job."""


class Look(NamedTuple):
    """When a job next calls for something: at an instant of time, or once cover is complete to another."""

    at_ms: int
    complete_ms: int


@dataclass
class Agenda:
    """The looks of all open jobs, the earliest first."""

    by_time: list[Place] = field(default_factory=list)
    by_cover: list[Place] = field(default_factory=list)
    looks: dict[JobId, tuple[int, Look]] = field(default_factory=dict)

    def put(self, job: JobId, number: int, look: Look) -> None:
        """Makes this the job's only look."""
        if self.looks.get(job) == (number, look):
            return
        self.drop(job)
        self.looks[job] = number, look
        insort(self.by_time, (look.at_ms, number, job))
        insort(self.by_cover, (look.complete_ms, number, job))

    def drop(self, job: JobId) -> None:
        """Forgets the job, if it is known."""
        if job in self.looks:
            number, look = self.looks.pop(job)
            del self.by_time[bisect_left(self.by_time, (look.at_ms, number, job))]
            del self.by_cover[bisect_left(self.by_cover, (look.complete_ms, number, job))]

    def due(self, at_ms: int, complete_to_ms: int) -> Iterator[JobId]:
        """The jobs to look at now, the longest due first; of those due at once, the oldest."""
        for places, reached_ms in ((self.by_time, at_ms), (self.by_cover, complete_to_ms)):
            for due_ms, _, job in places:
                if due_ms > reached_ms:
                    break
                yield job
