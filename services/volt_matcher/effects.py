"""The matcher as the runtime runs it: a pass after every change that could matter, and nothing in between."""

from volt.contracts.messages import Event
from volt.contracts.subjects import ALL_BIDS, ALL_CLUSTERS, ALL_JOBS, ALL_NODES, LOG_LEDGER, LOG_MARKET
from volt.runtime.engine import Definition
from volt_matcher.clear import clear
from volt_matcher.domain import evolve
from volt_matcher.state import State


def effects(state: State, at_ms: int) -> tuple[Event, ...]:
    """The next market message. Once a pass had nothing to say, no other is tried until something changes."""
    if not (state.open or state.quotes) or (state.settled == state.changes and not _is_time(state, at_ms)):
        return ()
    cleared = clear(state, at_ms)
    if cleared is None:
        state.settled, state.settled_ms = state.changes, at_ms
        return ()
    return (cleared,)


def _is_time(state: State, at_ms: int) -> bool:
    """Whether an instant has come since the last pass at which time alone makes a difference."""
    return any(state.settled_ms < due_ms <= at_ms for due_ms in state.due_ms.values())


DEFINITION = Definition(
    name="matcher",
    reads=(ALL_JOBS, ALL_BIDS, ALL_CLUSTERS, ALL_NODES, LOG_LEDGER, LOG_MARKET),
    initial=State,
    evolve=evolve,
    effects=effects,
)
