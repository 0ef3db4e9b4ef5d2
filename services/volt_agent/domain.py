"""What an agent does next about one lease. Pure: what it has and what is desired in, one step out.

    Nothing ──prepare──▶ Prepared ──start──▶ Running ──(processes gone)──▶ Finished
       ▲                    │                 │ │  ▲                          │ ▲
       │                    │            fence│ │  │thaw        (processes gone)│
       │                    │                 ▼ │  │                          │ │
       │                    │               Frozen─┴──────────────────────────┼─┘
       └── forget, fence ◀──┴── end, report ◀───┴─────────────────────────────┘

A fence is a time of F in which no beat was acknowledged. Whoever is fenced may be lost to its job without knowing: what
runs is frozen, and goes on only from the freeze that `DesiredLease.thaw` names; what is prepared is prepared anew.

Whatever an agent finds itself with, it converges: a newer generation ends an older one; `halt` ends the processes and
keeps the lease; `stop` ends them and keeps the lease until it is no longer listed, which says that the log knows it to
be cleared. An older desire is ignored. What was reported is reported again from time to time: the bus has it, but only
the log is proof that it was heard.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from volt.contracts.clusters import BeatId, Exit
from volt.contracts.nodes import DesiredLease, LeaseBeat, LeaseState, Thaw


@dataclass(frozen=True)
class Nothing:
    """The node has nothing of the lease; `reported` says that the provisioner was told so."""

    reported: bool = False


@dataclass(frozen=True)
class Prepared:
    """All is there to start: the address and port are reserved."""

    generation: int
    address: str
    port: int
    beat: BeatId
    """Acknowledged when it was prepared; the node has not been fenced since."""
    reported: bool = False


@dataclass(frozen=True)
class Running:
    """The processes were started; `reported` says that the provisioner was told so."""

    generation: int
    reported: bool = False
    is_over: bool = False
    """They are gone, and only their last output is on its way: beats say `ended`, so that this time is not billed."""


@dataclass(frozen=True)
class Frozen:
    """The processes stand still. `freeze` counts the freezes of the lease; 0 as long as no beat is acknowledged.

    `reported` says that the provisioner was told of this one, `is_started` that it knew of the start.
    """

    generation: int
    freeze: int
    is_started: bool
    reported: bool = False


@dataclass(frozen=True)
class Finished:
    """The processes are gone. `failure` is set instead of exits if they could not even be prepared or started."""

    generation: int
    exits: tuple[Exit, ...] = ()
    failure: str = ""
    failed_start: bool = False
    reported: bool = False


Local = Nothing | Prepared | Running | Frozen | Finished


class Steps(NamedTuple):
    """How far a workload has come: the last step that it has written, and the last that is stored; None if none is."""

    written: int | None = None
    stored: int | None = None


NO_STEPS = Steps()


class Step(Enum):
    """The one thing to do next."""

    WAIT = "wait"
    PREPARE = "prepare"
    REPORT_PREPARED = "report_prepared"
    START = "start"
    REPORT_STARTED = "report_started"
    CANCEL = "cancel"
    """Give up what was prepared, as if each process had been ended before its first instruction."""
    REPORT_FROZEN = "report_frozen"
    THAW = "thaw"
    END = "end"
    REPORT_FINISHED = "report_finished"
    REPORT_GONE = "report_gone"
    """Nobody saw how this generation's processes ended: say so."""
    DISCARD = "discard"
    """Drop what is left of this generation."""
    CLEAR = "clear"
    """Nothing is left: report it."""
    FORGET = "forget"
    """Nothing is left and nobody asks for it any more."""


def next_step(local: Local, desired: DesiredLease, incarnation: str, *, is_listed: bool = True) -> Step:
    """The step that brings the node nearer to what is desired of it. Not listed: it is desired no longer."""
    match local:
        case Nothing():
            return _from_nothing(local, desired) if is_listed else Step.FORGET
        case Prepared():
            return _from_prepared(local, desired)
        case Running():
            return _from_running(local, desired)
        case Frozen():
            return _from_frozen(local, desired, incarnation)
        case Finished():
            return _from_finished(local, desired)


def unreported(local: Local) -> Local:
    """The same, to be reported again."""
    return replace(local, reported=False)


def told(local: Local) -> dict[str, str | int]:
    """The state as a log line tells it."""
    match local:
        case Nothing():
            return {"state": "nothing"}
        case Prepared(generation=generation, address=address, port=port):
            return {"state": "prepared", "generation": generation, "at": f"{address}:{port}"}
        case Running(generation=generation):
            return {"state": "running", "generation": generation}
        case Frozen(generation=generation, freeze=freeze):
            return {"state": "frozen", "generation": generation, "freeze": freeze}
        case Finished(generation=generation, failure=failure) if failure:
            return {"state": "failed", "generation": generation, "failure": failure}
        case Finished(generation=generation, exits=exits):
            ends = (f"signal {one.signal}" if one.code is None else str(one.code) for one in exits)
            return {"state": "finished", "generation": generation, "exits": ", ".join(ends)}


def beat_of(lease: str, local: Local, steps: Steps = NO_STEPS) -> LeaseBeat | None:
    """What the heartbeat says of a lease, if there is anything to say."""
    match local:
        case Nothing():
            return None
        case Prepared(generation=generation):
            state: LeaseState = "prepared"
        case Running(generation=generation):
            state = "ended" if local.is_over else "running"
        case Frozen(generation=generation, freeze=freeze):
            return LeaseBeat(lease=lease, generation=generation, state="frozen", freeze=freeze)
        case Finished(generation=generation):
            state = "ended"
    return LeaseBeat(lease=lease, generation=generation, state=state, step=steps.written, stored=steps.stored)


def _from_nothing(local: Nothing, desired: DesiredLease) -> Step:
    match desired.phase:
        case "prepare":
            return Step.PREPARE
        case "start" | "halt":
            return Step.REPORT_GONE
        case "stop":
            return Step.WAIT if local.reported else Step.CLEAR


def _from_prepared(local: Prepared, desired: DesiredLease) -> Step:
    if desired.generation < local.generation:
        return Step.WAIT
    if desired.phase == "stop":
        return Step.DISCARD
    if desired.phase == "halt" or desired.generation > local.generation:
        return Step.CANCEL
    if not local.reported:
        return Step.REPORT_PREPARED
    return Step.START if desired.phase == "start" else Step.WAIT


def _from_running(local: Running, desired: DesiredLease) -> Step:
    if desired.generation < local.generation:
        return Step.WAIT
    if desired.phase in ("halt", "stop") or desired.generation > local.generation:
        return Step.END
    return Step.WAIT if local.reported else Step.REPORT_STARTED


def _from_frozen(local: Frozen, desired: DesiredLease, incarnation: str) -> Step:
    if desired.generation < local.generation:
        return Step.WAIT
    if desired.phase in ("halt", "stop") or desired.generation > local.generation:
        return Step.END
    if desired.phase == "start" and local.freeze and desired.thaw == Thaw(incarnation=incarnation, freeze=local.freeze):
        return Step.THAW
    return Step.REPORT_FROZEN if local.freeze and not local.reported else Step.WAIT


def _from_finished(local: Finished, desired: DesiredLease) -> Step:
    if desired.generation < local.generation:
        return Step.WAIT
    if not local.reported:
        return Step.REPORT_FINISHED
    if desired.phase == "stop" or desired.generation > local.generation:
        return Step.DISCARD
    return Step.WAIT
