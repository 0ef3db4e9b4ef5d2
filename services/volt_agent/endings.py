"""How a start that failed and processes that ended are told."""

import signal

from volt.contracts.clusters import Exit
from volt.contracts.nodes import FAILURE_CHARS_MAX
from volt_agent.domain import Finished
from volt_agent.runtimes import RankExit, WorkloadError


def failure_of(error: Exception) -> str:
    """In one line, cut to what a report may say."""
    return f"{type(error).__name__}: {error}"[:FAILURE_CHARS_MAX]


def unstarted(generation: int, ends: tuple[RankExit, ...], error: WorkloadError) -> Finished:
    """What a failed start comes to: the command's own failure, as a shell tells it, or else the node's."""
    if all(end.code is None for end in ends if end.reason == "not_started"):
        return Finished(generation, failure=failure_of(error), failed_start=True)
    # The others were ended on purpose, those too that had not begun.
    exits = (
        Exit(local_rank=end.local_rank, code=end.code)
        if end.code is not None
        else Exit(local_rank=end.local_rank, signal=end.signal or signal.SIGTERM)
        for end in ends
    )
    return Finished(generation, tuple(exits))


def exit_of(end: RankExit) -> Exit:
    """How a process ended, for the provisioner. One that its fence ended did not fail: it has no exit of its own."""
    if end.reason in ("deadline", "gone"):
        return Exit(local_rank=end.local_rank)
    return Exit(local_rank=end.local_rank, code=end.code, signal=end.signal, out_of_memory=end.oom)


def is_done(local: Finished) -> bool:
    """Whether every process exited with 0."""
    return bool(local.exits) and all(one.code == 0 for one in local.exits)
