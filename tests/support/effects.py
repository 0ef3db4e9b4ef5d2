"""What effects call for, in tests where nothing may be broken."""

from collections.abc import Iterable

from volt.contracts.messages import Event
from volt.runtime.engine import Broken


def sound(found: Iterable[Event | Broken]) -> list[Event]:
    """The events. Raises AssertionError for one that could not be made."""
    events: list[Event] = []
    for one in found:
        assert not isinstance(one, Broken), one
        events.append(one)
    return events
