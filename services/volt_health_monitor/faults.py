"""What the faults of a node's GPUs call for: which event the log should have next.

The log says what is quarantined and what was recorded (`Ward`); beats are seen beside it (`Signs`).

    XID in a beat ──ignored──▶ (nothing)
       │    └─aftermath──▶ suspected ──alone for ALONE_MS──▶ found         ──something near──▶ (nothing)
       └──any other──▶ found ──GpuFaulted, GpuQuarantined, NodeQuarantined──▶ recorded in the log
    reading ──a condition──▶ GpuQuarantined, NodeQuarantined
    quarantined ──clean in a reading of a later incarnation──▶ QuarantineEnded

An XID is known again by its number. One that would be recorded too soon after one like it, or on a GPU that is
quarantined already, says nothing new.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from volt.contracts.faults import (
    ALONE_MS,
    DAY_MS,
    Condition,
    Fault,
    FaultClass,
    Line,
    condition_of,
    is_aftermath,
    line_of,
)
from volt.contracts.ids import GpuUuid
from volt.contracts.nodes import GpuFaulted, GpuQuarantined, Heartbeat, NodeEvent, NodeQuarantined, QuarantineEnded
from volt.contracts.telemetry import GpuReading
from volt.contracts.units import MS_PER_HOUR, MS_PER_SECOND

RECORD_MS_MIN = 60 * MS_PER_SECOND
"""One XID of a GPU that keeps coming is recorded so often at most."""
RECORDED_MAX = 128
"""Recorded faults that are remembered of a node, for the counting of repeats."""
XIDS_REMEMBERED_MAX = 128
EVENTS_PER_HOUR_MAX = 64
"""Faults of one node that are recorded in an hour: an agent that makes them up fills no log."""
QUARANTINES_MAX = 3
QUARANTINES_WINDOW_MS = 7 * DAY_MS
"""A GPU that was quarantined so often within this time stays so for the rest of it, however clean it comes back."""


class Seen(NamedTuple):
    """An XID as a beat told of it, at the stream's time."""

    number: int
    gpu: GpuUuid
    code: int
    at_ms: int


class Recorded(NamedTuple):
    """A fault as the log has it."""

    gpu: GpuUuid
    fault: Fault
    at_ms: int
    is_quarantine: bool


@dataclass(frozen=True)
class Quarantine:
    """Why a GPU is not sold, and which incarnation of its node has shown that."""

    fault: Fault
    incarnation: str
    closes_node: bool


@dataclass(frozen=True)
class Ward:
    """What the log says of a node's GPUs. A mapping in here is never changed in place."""

    quarantined: Mapping[GpuUuid, Quarantine] = field(default_factory=dict)
    recorded: tuple[Recorded, ...] = ()
    incarnation: str = ""
    number: int = 0
    """The last XID of this incarnation that is recorded."""


@dataclass(frozen=True)
class Signs:
    """What the beats of one incarnation have shown. `found` waits for its event, `suspected` for what explains it."""

    incarnation: str
    at_ms: int
    """When the stream stored the last of them."""
    readings: Mapping[GpuUuid, GpuReading] = field(default_factory=dict)
    number: int = 0
    seen: tuple[Seen, ...] = ()
    suspected: tuple[Seen, ...] = ()
    found: tuple[Seen, ...] = ()
    ends_ms: tuple[int, ...] = ()
    """When leases of the node ended."""


class Diagnosis(NamedTuple):
    """What the log should say next."""

    gpus: tuple[GpuUuid, ...]
    fault: Fault | None
    """None: the quarantine ends."""
    fault_class: FaultClass


def warded(ward: Ward, event: NodeEvent) -> Ward:
    """What the log says with one more event."""
    match event:
        case GpuFaulted() | GpuQuarantined() | NodeQuarantined():
            is_quarantine = not isinstance(event, GpuFaulted)
            recorded = (Recorded(gpu, event.fault, event.at_ms, is_quarantine) for gpu in event.gpus)
            ward = replace(ward, recorded=(*ward.recorded, *recorded)[-RECORDED_MAX:])
            if event.fault.number:
                ward = replace(ward, incarnation=event.incarnation, number=event.fault.number)
            if is_quarantine:
                made = Quarantine(event.fault, event.incarnation, isinstance(event, NodeQuarantined))
                ward = replace(ward, quarantined={**ward.quarantined, **dict.fromkeys(event.gpus, made)})
            return ward
        case QuarantineEnded():
            left = {gpu: one for gpu, one in ward.quarantined.items() if gpu not in event.gpus}
            return replace(ward, quarantined=left)
        case _:
            return ward


def heard(signs: Signs | None, beat: Heartbeat, at_ms: int, *, ended: bool) -> Signs:
    """The signs with one more beat; `ended` says that a lease which ran in the one before runs no more."""
    if signs is None or signs.incarnation != beat.incarnation:
        signs = Signs(beat.incarnation, at_ms)
    fresh = [Seen(one.number, one.gpu, one.code, at_ms - one.age_ms) for one in beat.xids if one.number > signs.number]
    lines = [(one, line) for one in fresh if (line := line_of(one.code)) is not None]
    return settled(
        replace(
            signs,
            at_ms=at_ms,
            readings={one.gpu: one for one in beat.gpus} or signs.readings,
            number=max([signs.number, *(one.number for one in fresh)]),
            seen=(*signs.seen, *fresh)[-XIDS_REMEMBERED_MAX:],
            suspected=(*signs.suspected, *(one for one, line in lines if line.is_aftermath))[-XIDS_REMEMBERED_MAX:],
            found=(*signs.found, *(one for one, line in lines if not line.is_aftermath))[-XIDS_REMEMBERED_MAX:],
            ends_ms=(*signs.ends_ms, *((at_ms,) if ended else ()))[-XIDS_REMEMBERED_MAX:],
        ),
        at_ms,
    )


def settled(signs: Signs, at_ms: int) -> Signs:
    """With those suspicions decided for which everything near has been read."""
    due = [one for one in signs.suspected if at_ms - one.at_ms > ALONE_MS]
    if not due:
        return signs
    alone = [one for one in due if not _is_explained(signs, one)]
    return replace(
        signs,
        suspected=tuple(one for one in signs.suspected if one not in due),
        found=(*signs.found, *alone)[-XIDS_REMEMBERED_MAX:],
    )


def without_recorded(signs: Signs, ward: Ward) -> Signs:
    """Without what the log has by now."""
    if ward.incarnation != signs.incarnation:
        return signs
    return replace(signs, found=tuple(one for one in signs.found if one.number > ward.number))


def diagnosis(ward: Ward, signs: Signs) -> Diagnosis | None:
    """What the log should say next of this node's GPUs; None if it says it all."""
    if _is_noisy(ward, signs.at_ms):
        return _recovery(ward, signs)
    return _of_readings(ward, signs) or _of_xids(ward, signs) or _recovery(ward, signs)


def event_class(ward: Ward, line: Line, seen: Seen) -> FaultClass:
    """The class of one XID, with those like it that the log has already."""
    if line.repeats is None:
        return line.fault_class
    like_it = sum(
        one.gpu == seen.gpu and one.fault.xid == seen.code and seen.at_ms - one.at_ms < line.repeats.window_ms
        for one in ward.recorded
    )
    return "quarantine_gpu" if like_it + 1 >= line.repeats.times else line.fault_class


def _of_readings(ward: Ward, signs: Signs) -> Diagnosis | None:
    """All GPUs that show the same at once are in one event."""
    shown: dict[Condition, list[GpuUuid]] = {}
    for gpu, reading in signs.readings.items():
        condition = condition_of(reading)
        if condition is not None and _is_news(ward, gpu, condition.fault_class):
            shown.setdefault(condition, []).append(gpu)
    for condition, gpus in shown.items():
        return Diagnosis(tuple(gpus), Fault(kind=condition.kind, name=condition.name), condition.fault_class)
    return None


def _of_xids(ward: Ward, signs: Signs) -> Diagnosis | None:
    for seen in signs.found:
        line = line_of(seen.code)
        assert line is not None, "what is ignored is not found"
        if ward.incarnation == signs.incarnation and seen.number <= ward.number:
            continue
        fault_class = event_class(ward, line, seen)
        if _is_news(ward, seen.gpu, fault_class) and not (
            fault_class == "restart_workload" and _is_too_soon(ward.recorded, seen)
        ):
            fault = Fault(kind="xid", xid=seen.code, name=line.name, number=seen.number)
            return Diagnosis((seen.gpu,), fault, fault_class)
    return None


def _recovery(ward: Ward, signs: Signs) -> Diagnosis | None:
    clean = tuple(
        gpu
        for gpu, quarantine in ward.quarantined.items()
        if quarantine.incarnation != signs.incarnation
        and (reading := signs.readings.get(gpu)) is not None
        and reading.is_clean
        and not _comes_back_too_often(ward, gpu, signs.at_ms)
    )
    return Diagnosis(clean, None, "ignore") if clean else None


def _is_news(ward: Ward, gpu: GpuUuid, fault_class: FaultClass) -> bool:
    """Whether it takes more off the market than is off it, or nothing is."""
    known = ward.quarantined.get(gpu)
    return known is None or (fault_class == "quarantine_node" and not known.closes_node)


def _is_noisy(ward: Ward, at_ms: int) -> bool:
    last = ward.recorded[-EVENTS_PER_HOUR_MAX:]
    return len(last) == EVENTS_PER_HOUR_MAX and at_ms - last[0].at_ms < MS_PER_HOUR


def _is_too_soon(recorded: Iterable[Recorded], seen: Seen) -> bool:
    return any(
        one.gpu == seen.gpu and one.fault.xid == seen.code and seen.at_ms - one.at_ms < RECORD_MS_MIN
        for one in recorded
    )


def _is_explained(signs: Signs, one: Seen) -> bool:
    """Whether an XID that is no aftermath, or the end of a lease of its node, is near it: then it follows from that."""
    first = (other.at_ms for other in signs.seen if other.gpu == one.gpu and not is_aftermath(other.code))
    return any(abs(at_ms - one.at_ms) <= ALONE_MS for at_ms in (*signs.ends_ms, *first))


def _comes_back_too_often(ward: Ward, gpu: GpuUuid, at_ms: int) -> bool:
    quarantines = [one.at_ms for one in ward.recorded if one.gpu == gpu and one.is_quarantine]
    return len(quarantines) >= QUARANTINES_MAX and at_ms - quarantines[-QUARANTINES_MAX] < QUARANTINES_WINDOW_MS
