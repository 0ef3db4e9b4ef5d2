"""The optimum of an instance, or a bound on it, by HiGHS, a mixed-integer solver of general purpose."""

import math
import multiprocessing
import os
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import NamedTuple

import highspy
import numpy as np

from benchmarks.instances import Asked, Instance

HIGHS_SECONDS_MAX = 20.0
START_SECONDS_MAX = 20.0
GRACE_SECONDS = 1.0
PAIRS_MAX = 200_000
"""Requests times nodes above which the model is reduced."""


class Optimum(NamedTuple):
    """The best that was found, what no plan can exceed, and how long it took, the model included."""

    welfare: int
    bound: int
    seconds: float


class _Model:
    """Columns are binary: y = a request is served within a domain, x = it takes a node for that.

    Of the nodes that could serve a request in a domain, a large model has only the cheapest ones, as many as all
    requests for the GPU model ask for together: if a plan used a dearer one, one of these would be untouched, and could
    take its place. HiGHS does not get to its search otherwise.
    """

    def __init__(self, instance: Instance) -> None:
        self.gains: list[float] = []
        self.rows: list[list[tuple[int, float]]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._by_ask = sorted(range(len(instance.nodes)), key=lambda number: instance.nodes[number].ask)
        self._enough = Counter[str]()
        is_large = len(instance.nodes) * len(instance.requests) > PAIRS_MAX
        for one in instance.requests:
            self._enough[one.model] += one.nodes if is_large else len(instance.nodes)
        self._on_node: list[list[tuple[int, float]]] = [[] for _ in instance.nodes]
        for one in instance.requests:
            self._ask(instance, one)
        for node, users in zip(instance.nodes, self._on_node, strict=True):
            if sum(gpus for _, gpus in users) > node.free:
                self._row(users, -highspy.kHighsInf, node.free)

    def _ask(self, instance: Instance, one: Asked) -> None:
        """sum of x over a domain = nodes * y, and sum of y <= 1."""
        domains: dict[str, list[int]] = {}
        for number in self._by_ask:
            node = instance.nodes[number]
            is_able = node.model == one.model and node.free >= one.gpus and node.ask <= one.max_price
            is_together = bool(node.fabric) or not one.single_fabric or one.nodes == 1
            if is_able and is_together and (one.regions is None or node.region in one.regions):
                name = node.fabric if one.single_fabric and one.nodes > 1 else None
                domains.setdefault(name or "", []).append(number)
        served = []
        for eligible in domains.values():
            numbers = eligible[: self._enough[one.model]]
            if len(numbers) < one.nodes:
                continue
            served.append((self._column(0), 1.0))
            row = [(served[-1][0], float(-one.nodes))]
            for number in numbers:
                column = self._column((one.max_price - instance.nodes[number].ask) * one.gpus)
                row.append((column, 1.0))
                self._on_node[number].append((column, float(one.gpus)))
            self._row(row, 0, 0)
        if len(served) > 1:
            self._row(served, -highspy.kHighsInf, 1)

    def _column(self, gains: int) -> int:
        self.gains.append(float(gains))
        return len(self.gains) - 1

    def _row(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        self.rows.append(entries)
        self.low.append(low)
        self.high.append(high)


def solve(instance: Instance) -> Optimum:
    """The optimum, or what is known of it after `HIGHS_SECONDS_MAX`.

    HiGHS looks at its clock too seldom to keep to a limit on the larger instances, so it runs in a process that is
    ended. The linear relaxation comes first: its bound is what is left when the search has not begun by then.
    """
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_solve, args=(instance, there), daemon=True)
    child.start()
    there.close()
    found = Optimum(0, sum(one.max_price * one.nodes * one.gpus for one in instance.requests), 0.0)
    deadline = started + START_SECONDS_MAX + HIGHS_SECONDS_MAX
    try:
        while here.poll(max(0.0, deadline - time.perf_counter())):
            welfare, bound, seconds = here.recv()
            found = Optimum(max(found.welfare, welfare), min(found.bound, bound), seconds)
            deadline = min(deadline, time.perf_counter() + HIGHS_SECONDS_MAX - seconds + GRACE_SECONDS)
        return found._replace(seconds=HIGHS_SECONDS_MAX)
    except EOFError:
        return found
    finally:
        child.kill()
        child.join()


def _solve(instance: Instance, there: Connection) -> None:
    """Sends what the linear relaxation says, then what the search says; seconds count from the model on."""
    started = time.perf_counter()
    os.dup2(2, 1)  # HiGHS says hello on stdout, where the figures go.
    model = _Model(instance)
    for is_integer in (False, True):
        solver = _solver(model, is_integer)
        solver.setOptionValue("time_limit", max(0.1, HIGHS_SECONDS_MAX - (time.perf_counter() - started)))
        solver.run()
        info = solver.getInfo()
        bound = info.mip_dual_bound if is_integer else info.objective_function_value
        welfare = info.objective_function_value if is_integer else 0.0
        is_found = math.isfinite(welfare) and math.isfinite(bound)
        seconds = time.perf_counter() - started
        there.send((round(welfare), math.floor(bound + 0.001), seconds) if is_found else (0, 2**62, seconds))


def _solver(model: _Model, is_integer: bool) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    count = len(model.gains)
    columns = np.arange(count, dtype=np.int32)
    solver.addVars(count, np.zeros(count), np.ones(count))
    solver.changeColsCost(count, columns, np.array(model.gains))
    if is_integer:
        solver.changeColsIntegrality(count, columns, np.array([highspy.HighsVarType.kInteger] * count))
    starts = np.cumsum([0, *map(len, model.rows)])[:-1].astype(np.int32)
    entries = [entry for row in model.rows for entry in row]
    indices = np.array([column for column, _ in entries], dtype=np.int32)
    values = np.array([value for _, value in entries])
    low, high = np.array(model.low, dtype=float), np.array(model.high, dtype=float)
    solver.addRows(len(model.rows), low, high, len(entries), starts, indices, values)
    solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
    return solver
