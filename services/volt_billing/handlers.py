"""Billing takes no commands: all that it knows, it reads in the log."""

from volt.runtime.host import Host, Task
from volt_billing.states import State


def attach(_host: Host[State]) -> tuple[Task, ...]:
    """Nothing to subscribe to, and nothing to run beside the engine."""
    return ()
