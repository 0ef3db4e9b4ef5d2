"""The matcher answers no commands: everything it acts on is in the log."""

from volt.runtime.host import Host, Task
from volt_matcher.state import State


def attach(_host: Host[State]) -> tuple[Task, ...]:
    """Subscribes to nothing, and needs nothing beside the engine."""
    return ()
