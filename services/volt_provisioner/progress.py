"""How far a generation's checkpoints have come: which rank has stored which step, and what may be committed.

A step is committed once every rank of the generation has stored its part of it, the parts of those included that are
lost since: what is stored stays. Ranks need not store in step with each other; the highest step that all have counts,
and what is below it is forgotten.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from volt.contracts.clusters import CheckpointPart

STEPS_PENDING_MAX = 16
"""Steps of one rank that others have not stored yet, the last ones; it bounds what a cluster's state holds."""


@dataclass(frozen=True)
class Progress:
    """The uncommitted steps of a generation of so many ranks."""

    ranks: int
    stored: Mapping[int, Mapping[int, CheckpointPart]] = field(default_factory=dict)
    """By rank, and then by step."""

    def has(self, rank: int, step: int) -> bool:
        return step in self.stored.get(rank, {})

    def with_part(self, step: int, part: CheckpointPart) -> "Progress":
        steps = {**self.stored.get(part.rank, {}), step: part}
        kept = {one: steps[one] for one in sorted(steps)[-STEPS_PENDING_MAX:]}
        return replace(self, stored={**self.stored, part.rank: kept})

    def beyond(self, step: int) -> "Progress":
        """Without what a commit of this step has overtaken."""
        rest = {rank: {one: part for one, part in steps.items() if one > step} for rank, steps in self.stored.items()}
        return replace(self, stored=rest)

    def common(self) -> tuple[int, tuple[CheckpointPart, ...]] | None:
        """The highest step that every rank has stored, with their parts; None if there is none."""
        if len(self.stored) < self.ranks:
            return None
        steps = frozenset.intersection(*(frozenset(steps) for steps in self.stored.values()))
        if not steps:
            return None
        step = max(steps)
        return step, tuple(self.stored[rank][step] for rank in sorted(self.stored))
