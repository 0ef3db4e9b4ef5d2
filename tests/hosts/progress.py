"""What the workloads wrote, and what must be true of it: nobody is asked, only their own files are read."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

PAUSE_NS = 1_500_000_000
"""A busy machine keeps nobody from its next step for as long, and lets beats pass meanwhile."""


@dataclass(frozen=True)
class Run:
    """One process of a job: what it is, and the instant of each of its steps, boot-time nanoseconds."""

    job: str
    generation: int
    rank: int
    pid: int
    gpus: frozenset[str]
    steps_ns: tuple[int, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} of generation {self.generation} of {self.job} (pid {self.pid})"

    @property
    def began_ns(self) -> int:
        return self.steps_ns[0]

    @property
    def ended_ns(self) -> int:
        """The instant of its last step; it may go on."""
        return self.steps_ns[-1]

    @property
    def ran_ms(self) -> int:
        """The time between its steps, but for pauses of more than `PAUSE_NS`."""
        return sum(later - at_ns for at_ns, later in pairwise(self.steps_ns) if later - at_ns <= PAUSE_NS) // 1_000_000

    def steps_between(self, from_ns: int, to_ns: int) -> int:
        return sum(from_ns <= at_ns < to_ns for at_ns in self.steps_ns)


def runs(folder: Path, job: str = "*") -> list[Run]:
    """Every process that has made a step, of one job or of all, by generation, rank and beginning."""
    found = (read(path) for path in folder.glob(f"{job}.*"))
    return sorted(
        (run for run in found if run.steps_ns), key=lambda run: (run.job, run.generation, run.rank, run.began_ns)
    )


def read(path: Path) -> Run:
    """Raises AssertionError if the steps were not made one after the other by one process."""
    job, generation, rank, pid = path.name.rsplit(".", 3)
    gpus, *lines = path.read_text().rpartition("\n")[0].split("\n")
    steps = [tuple(map(int, line.split())) for line in lines]
    assert [count for count, _ in steps] == list(range(1, len(steps) + 1)), f"{path.name}: a step twice or never"
    instants = tuple(at_ns for _, at_ns in steps)
    assert sorted(instants) == list(instants), f"{path.name}: its clock ran back"
    return Run(job, int(generation), int(rank), int(pid), frozenset(gpus.split(",")), instants)


def broken(of: Iterable[Run]) -> Iterator[str]:
    """Each pair of processes that must never have run at one time, and did.

    They are two generations of a job, of whatever ranks; two processes of one rank; and any two on one GPU. A process
    runs from its first step to its last: also while it stood still in between, since it was meant to go on.
    """
    for one, other in combinations(of, 2):
        if one.began_ns > other.ended_ns or other.began_ns > one.ended_ns:
            continue
        if one.job == other.job and (one.generation != other.generation or one.rank == other.rank):
            yield f"{one} and {other} ran at one time"
        for gpu in one.gpus & other.gpus:
            yield f"{gpu} ran {one} and {other} at one time"


def is_gone(pid: int) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
