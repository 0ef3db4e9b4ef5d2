"""Cover: the stretches of stream time that running leases' beats account for, and how they come into the log.

A chain of beats of one incarnation that all report a lease's generation running, each of them followed by the next
while it is good, covers what lies between its first and its last. What is found below the watermark is recorded once,
clipped to it, and then the watermark moves; it moves in whole flush periods, so that a recording that takes several
messages has one end. It moves only while a job is open: from its first gang until it is covered past its end.

    job   Absent ──gang──▶ Open ──ClusterReleased──▶ Ended ──covered to its end──▶ Closed
                            └─────────JobClosed────────┴─────────────────────────────▶
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from volt.contracts.market import Gang
from volt.contracts.nodes import BeatsCovered, CoverSpan, Heartbeat
from volt_health_monitor.nodes import NodeKey, Sight, Tenure

SPANS_PER_EVENT_MAX = 1_500
"""Of at most 170 bytes each, so that they fit into one message."""

JOBS_OVER_REMEMBERED_MAX = 10_000
"""A gang that is void, because its job was over, follows the end within moments."""


class Chain(NamedTuple):
    """Beats of a lease that cover [`from_ms`, `to_ms`) without a break. The one that begins first sorts first."""

    from_ms: int
    lease: str
    generation: int
    to_ms: int

    @property
    def tenure(self) -> Tenure:
        return (self.lease, self.generation)


class Finding(NamedTuple):
    """What is to be recorded next: spans, and the watermark behind them."""

    spans: tuple[CoverSpan, ...]
    complete_to_ms: int


@dataclass(frozen=True)
class Open:
    """A job with leases; somebody waits for their cover."""

    leases: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """A job whose cluster was released at `end_ms`; cover is wanted up to there."""

    leases: tuple[str, ...]
    end_ms: int


@dataclass
class Cover:
    """What is recorded, and what is found and not recorded yet. All times are the stream's."""

    complete_to_ms: int = 0
    recorded: dict[Tenure, int] = field(default_factory=dict)
    """Up to where a lease's cover is recorded, if that is beyond the watermark."""
    broken: list[Chain] = field(default_factory=list)
    """Chains that have ended since, or reach beyond the watermark."""
    holders: dict[str, NodeKey] = field(default_factory=dict)
    """The node of each lease of an open job: only its beats count."""
    open: dict[str, Open] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    over: dict[str, None] = field(default_factory=dict)

    def grant(self, gang: Gang) -> None:
        """Opens the gang's leases, unless its job is over and the gang is void."""
        if gang.job in self.over:
            return
        self.holders |= {grant.lease: NodeKey(grant.provider, grant.node) for grant in gang.grants}
        leases = tuple(grant.lease for grant in gang.grants)
        known = self.open.get(gang.job, Open(()))
        self.open[gang.job] = Open((*known.leases, *leases))

    def release(self, job: str, end_ms: int) -> None:
        """The job's cluster is released: cover is wanted up to `end_ms`."""
        self._remember_over(job)
        known = self.open.pop(job, None)
        if known is not None:
            self.ended[job] = Ended(known.leases, end_ms)
        self._close_covered()

    def close(self, job: str) -> None:
        """Nobody waits for the job's cover any more."""
        self._remember_over(job)
        known = self.open.pop(job, None) or self.ended.pop(job, None)
        for lease in known.leases if known is not None else ():
            self.holders.pop(lease, None)

    def record(self, event: BeatsCovered) -> None:
        """Folds what was recorded. Raises AssertionError if it goes back or covers anything twice."""
        assert event.complete_to_ms >= self.complete_to_ms, "the watermark goes back"
        for span in event.spans:
            assert span.from_ms >= self._recorded_to((span.lease, span.generation)), f"{span} is covered twice"
            self.recorded[span.lease, span.generation] = span.to_ms
        self.complete_to_ms = event.complete_to_ms
        self.recorded = {tenure: to_ms for tenure, to_ms in self.recorded.items() if to_ms > self.complete_to_ms}
        self.broken = [chain for chain in self.broken if chain.to_ms > self.complete_to_ms]
        self._close_covered()

    def break_chains(self, key: NodeKey, before: Sight, running: Mapping[Tenure, int]) -> None:
        """Keeps what the node's last beat ended: the chains that do not go on in its new one's."""
        for tenure, from_ms in before.running.items():
            if running.get(tenure) != from_ms and self.holders.get(tenure[0]) == key:
                self.broken.append(Chain(from_ms, *tenure, before.at_ms))

    def finding(self, through_ms: int, sights: Mapping[NodeKey, Sight]) -> Finding | None:
        """What to record once the beats are known up to `through_ms`; None if that is nothing."""
        if not (self.open or self.ended) or through_ms <= self.complete_to_ms:
            return None
        chains = (*self.broken, *self._going_on(sights))
        # Those of which nothing is recorded yet begin first, so that a recording in parts comes to its end.
        clipped = sorted(chain for one in chains if (chain := self._clip(one, through_ms)) is not None)
        spans = tuple(_span(chain) for chain in clipped[:SPANS_PER_EVENT_MAX])
        return Finding(spans, through_ms if len(spans) == len(clipped) else self.complete_to_ms)

    def _going_on(self, sights: Mapping[NodeKey, Sight]) -> Iterator[Chain]:
        for key in dict.fromkeys(self.holders.values()):
            if sight := sights.get(key):
                for tenure, from_ms in sight.running.items():
                    if self.holders.get(tenure[0]) == key:
                        yield Chain(from_ms, *tenure, sight.at_ms)

    def _clip(self, chain: Chain, through_ms: int) -> Chain | None:
        from_ms, to_ms = max(chain.from_ms, self._recorded_to(chain.tenure)), min(chain.to_ms, through_ms)
        return Chain(from_ms, chain.lease, chain.generation, to_ms) if from_ms < to_ms else None

    def _recorded_to(self, tenure: Tenure) -> int:
        return self.recorded.get(tenure, self.complete_to_ms)

    def _close_covered(self) -> None:
        covered = [job for job, state in self.ended.items() if state.end_ms <= self.complete_to_ms]
        for job in covered:
            self.close(job)

    def _remember_over(self, job: str) -> None:
        self.over[job] = None
        if len(self.over) > JOBS_OVER_REMEMBERED_MAX:
            del self.over[next(iter(self.over))]


def running_since(beat: Heartbeat, at_ms: int, before: Sight | None) -> Mapping[Tenure, int]:
    """Since when each lease that the beat reports running has been covered without a break."""
    goes_on = before is not None and before.incarnation == beat.incarnation and at_ms - before.at_ms <= before.fence_ms
    since = before.running if before is not None and goes_on else {}
    tenures = ((lease.lease, lease.generation) for lease in beat.leases if lease.state == "running")
    return {tenure: since.get(tenure, at_ms) for tenure in tenures}


def _span(chain: Chain) -> CoverSpan:
    return CoverSpan(lease=chain.lease, generation=chain.generation, from_ms=chain.from_ms, to_ms=chain.to_ms)
