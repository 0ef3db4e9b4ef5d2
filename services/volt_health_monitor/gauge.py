"""What an operator's alerts look at."""

from collections.abc import Callable, Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation


def show_holding(holds: Callable[[], bool]) -> None:
    """The gauge `volt.losses_held`: 1 while the brake holds every loss, 0 otherwise."""

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(int(holds()))]

    metrics.get_meter("volt").create_observable_gauge("volt.losses_held", callbacks=[observe])
