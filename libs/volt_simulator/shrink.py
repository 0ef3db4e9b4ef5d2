"""The least of a plan that still breaks the same law: faults, then jobs, then nodes are left out while it does."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from volt_simulator.plan import Plan
from volt_simulator.world import Result, run

RUNS_MAX = 60

T = TypeVar("T")


class _Attempts:
    """Runs of smaller plans, as many as may be."""

    def __init__(self, plan: Plan, result: Result, runs_max: int) -> None:
        self.plan, self.result, self.left = plan, result, runs_max

    def try_with(self, plan: Plan) -> bool:
        """Whether this plan breaks a law too; then it is what is made smaller from now on."""
        if self.left == 0:
            return False
        self.left -= 1
        result = run(plan)
        if result.broken:
            self.plan, self.result = plan, result
        return bool(result.broken)


def shrink(plan: Plan, result: Result, runs_max: int = RUNS_MAX) -> tuple[Plan, Result]:
    """A smaller plan that breaks a law, and its result; the same if there is none within so many runs."""
    attempts = _Attempts(plan, result, runs_max)
    attempts.try_with(replace(plan, ack_loss_permyriad=0, death_permyriad=0))
    _leave_out(attempts, attempts.plan.faults, lambda faults: replace(attempts.plan, faults=faults))
    _leave_out(attempts, attempts.plan.jobs, lambda jobs: replace(attempts.plan, jobs=jobs))
    _leave_out(attempts, attempts.plan.faults, lambda faults: replace(attempts.plan, faults=faults))
    _leave_out(attempts, attempts.plan.nodes, lambda nodes: replace(attempts.plan, nodes=nodes))
    return attempts.plan, attempts.result


def _leave_out(attempts: _Attempts, parts: Sequence[T], with_parts: Callable[[tuple[T, ...]], Plan]) -> None:
    """Leaves out halves, then quarters and so on, of what is not needed."""
    size = len(parts) // 2
    kept = tuple(parts)
    while size:
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if attempts.try_with(with_parts(fewer)):
                kept = fewer
                break
        else:
            size //= 2
