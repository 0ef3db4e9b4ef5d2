"""Proves that the simulator would notice: each guard in turn is switched off, and some law must then be seen broken.

uv run python -m benchmarks.mutants            all of them, a line each; exits 1 if one goes unnoticed
uv run python -m benchmarks.mutants NAME...    only these
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from unittest import mock

import structlog
from msgspec.structs import replace as replace_struct

from volt.contracts.clusters import ClusterForming, ClusterReleased, Exit
from volt.contracts.jobs import JobSpec
from volt.contracts.ledger import BillLine, Transfer
from volt.contracts.log import Entry
from volt.contracts.nodes import Heartbeat
from volt.contracts.streams import LOG
from volt.contracts.timing import Timing
from volt.runtime.subjects import matches
from volt_agent.domain import Frozen
from volt_billing import holds, metering, postings
from volt_billing.states import NEVER_MS, Running
from volt_health_monitor import domain as monitor
from volt_health_monitor import handlers as watch
from volt_health_monitor.brake import Surge
from volt_matcher import domain as matcher
from volt_matcher import state as market
from volt_matcher import supply
from volt_matcher.effects import DEFINITION as MATCHER
from volt_matcher.lots import Request
from volt_provisioner import causes, events, lifecycle, steps
from volt_provisioner.crew import Prepared, Vacant
from volt_provisioner.states import Forming, Stopping
from volt_simulator import world
from volt_simulator.agent import Agent
from volt_simulator.machine import Machine
from volt_simulator.plan import draw
from volt_simulator.world import SeenBus, run

SEEDS_MAX = 12
NODES, JOBS, HOURS = 16, 50, 0.4
HOURS_OF_MONEY = 3.0
"""How long it takes until somebody's money has run out."""
SECONDS_MAX = 900
SLOW_MS = 12_000


def swap(where: object, name: str, value: object) -> None:
    """For the rest of this process."""
    mock.patch.object(where, name, value).start()


def fence() -> None:
    """Workloads run on however long no beat is acknowledged."""
    swap(Machine, "_at_deadline", lambda *_: None)


def newcomer_waits() -> None:
    """An agent that finds another's beat is the node at once."""

    async def come_in(self: Agent) -> None:
        record = await self._last()
        self._last_seq = record.seq if record else 0

    swap(Agent, "_come_in", come_in)


def expected_sequence() -> None:
    """Whoever writes to the log is believed."""
    publish = SeenBus.publish

    async def believing(
        self: SeenBus,
        subject: str,
        data: bytes,
        *,
        expected_seq: int | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        expected_seq = None if matches(subject, LOG.subjects[0]) else expected_seq
        return await publish(self, subject, data, expected_seq=expected_seq, message_id=message_id, headers=headers)

    swap(SeenBus, "publish", believing)


def lost_after_fenced() -> None:
    """A node is called lost before it is surely fenced: L < F."""
    swap(world, "TIMING", replace_struct(world.TIMING, lost_after_ms=11_000))


def brake() -> None:
    """However many nodes fall silent at once, all are believed to be dead."""
    swap(Surge, "is_believed", True)


def thawed_by_the_log() -> None:
    """The next beat that is acknowledged lets go on what was frozen."""

    def go_on(self: Agent) -> None:
        for lease, local in list(self._local.items()):
            if isinstance(local, Frozen):
                self._thaw(lease, local)

    swap(Agent, "_fence", go_on)


def probe() -> None:
    """The monitor judges by its own clock, though it reads what was stored long ago."""

    def judge(state: monitor.State, sent_ms: int, at_ms: int, receipt_ms: int) -> None:
        monitor.observe_time(state, at_ms)
        state.beats.probe_receipt_ms = receipt_ms
        for key, heard_ms in state.beats.receipts.items():
            if sent_ms - heard_ms >= state.timing.lost_after_ms:
                state.beats.silences[key] = "certain"
                monitor._judge(state, key)

    def late(state: monitor.State, beat: Heartbeat, at_ms: int, receipt_ms: int) -> None:
        observe_beat(state, beat, at_ms, receipt_ms - SLOW_MS)

    observe_beat = monitor.observe_beat
    swap(watch, "observe_probe", judge)
    swap(watch, "observe_beat", late)


def sold_when_clear() -> None:
    """GPUs are sold again as soon as their job is over."""

    def hasty(state: market.State, entry: Entry) -> None:
        matcher.evolve(state, entry)
        if isinstance(entry.event, ClusterReleased):
            for lease in [name for name, one in state.leases.items() if one.job == entry.event.job]:
                supply.free(state, lease)

    swap(world, "MATCHER", replace(MATCHER, evolve=hasty))


def cap() -> None:
    """The matcher takes no heed of what a buyer would pay."""

    def uncapped(spec: JobSpec, _cap_microusd: int | None, at_ms: int) -> Request:
        return first_request(spec, None, at_ms)

    first_request = market.first_request
    swap(market, "first_request", uncapped)


def loss_answered() -> None:
    """A generation forms again without those that it lost."""

    def forgetful(cluster: Stopping, event: ClusterForming) -> Forming:
        formed = formed_again(cluster, event)
        return replace(formed, seats={rank: one for rank, one in formed.seats.items() if not isinstance(one, Vacant)})

    formed_again = lifecycle._formed_again
    swap(lifecycle, "_formed_again", forgetful)


def rank_stability() -> None:
    """A generation that forms again deals its ranks anew."""

    def dealt(cluster: Stopping, timing: Timing, at_ms: int) -> ClusterForming:
        event = forming_again(cluster, timing, at_ms)
        ranks = [member.rank for member in event.members][::-1]
        members = (replace_struct(one, rank=rank) for one, rank in zip(event.members, ranks, strict=True))
        return replace_struct(event, members=tuple(members))

    forming_again = events.forming_again
    swap(events, "forming_again", dealt)


def completed_by_all() -> None:
    """Any exit is as good as 0."""

    def kindly(exits: Sequence[Exit]) -> bool:
        return bool(exits)

    swap(causes, "succeeded", kindly)
    swap(lifecycle, "succeeded", kindly)


def void_gangs() -> None:
    """What is granted behind the end of a job is a lease all the same."""
    swap(matcher, "_end", lambda state, name: matcher._waits_no_more(state, name))


def hold_returned() -> None:
    """What is left of a hold stays where it is."""

    def keeping(job: str, running: Running, lines: list[BillLine]) -> tuple[Transfer, ...]:
        return tuple(one for one in final(job, running, lines) if one.id != f"{job}/rest")

    final = postings._final
    swap(postings, "_final", keeping)


def remainder_carried() -> None:
    """Each posting is rounded, and the rest forgotten."""

    def rounded(known: BillLine, through_ms: int, billable_ms: int) -> BillLine:
        line = make(known, through_ms, billable_ms)
        return replace_struct(line, due_microusd=line.due_microusd // 1_000 * 1_000)

    make = postings._line
    swap(postings, "_line", rounded)


def no_beat_no_bill() -> None:
    """A gang that is ready is billed, whether anybody hears of its nodes or not."""
    swap(metering, "_together", lambda *_: ((0, NEVER_MS),))


def exhaustion() -> None:
    """Money is thought to last for ever."""
    swap(holds, "exhausted_ms", lambda _: NEVER_MS)
    swap(holds, "renewal_due_ms", lambda _: NEVER_MS)
    swap(holds, "arrears", lambda *_: None)


def started_together() -> None:
    """A generation starts as soon as one member is prepared."""
    swap(steps, "are_prepared", lambda cluster: any(isinstance(one, Prepared) for one in cluster.seats.values()))


MUTANTS: tuple[Callable[[], None], ...] = (
    fence,
    newcomer_waits,
    expected_sequence,
    lost_after_fenced,
    brake,
    thawed_by_the_log,
    probe,
    sold_when_clear,
    cap,
    loss_answered,
    rank_stability,
    completed_by_all,
    void_gangs,
    hold_returned,
    remainder_carried,
    no_beat_no_bill,
    exhaustion,
    started_together,
)


def main() -> int:
    """Runs the mutants that were named, each in a process of its own, or all of them."""
    if sys.argv[1:2] == ["--in-this-process"]:
        return _caught(sys.argv[2])
    names = sys.argv[1:] or [mutant.__name__ for mutant in MUTANTS]
    unnoticed = 0
    for name in names:
        command = [sys.executable, "-m", "benchmarks.mutants", "--in-this-process", name]
        unnoticed += subprocess.run(command, timeout=SECONDS_MAX, check=False).returncode != 0
    print(f"{len(names)} guards switched off, {unnoticed} of them unnoticed")
    return int(unnoticed > 0)


def _caught(name: str) -> int:
    """Switches one guard off and runs seed after seed until a law is seen broken; 1 if none is."""
    structlog.configure(processors=[_drop])
    next(mutant for mutant in MUTANTS if mutant.__name__ == name)()
    begun = time.perf_counter()
    for seed in range(1, SEEDS_MAX + 1):
        result = run(draw(seed, NODES, JOBS, HOURS_OF_MONEY if name == exhaustion.__name__ else HOURS))
        if result.broken:
            seconds = time.perf_counter() - begun
            print(f"{name}: seen in seed {seed} at {result.at_ms / 1000:.1f} s, {seconds:.1f} s: {result.broken[:160]}")
            return 0
    print(f"{name}: UNNOTICED in {SEEDS_MAX} seeds")
    return 1


def _drop(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
