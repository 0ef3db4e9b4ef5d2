"""How often a child that died is started again."""

from hypothesis import given
from hypothesis import strategies as st

from volt.embedded.restarts import BACKOFF_FIRST_SECONDS, BACKOFF_SECONDS_MAX, RestartBudget

WINDOW_SECONDS = 10.0


def test_each_pause_is_twice_the_one_before_up_to_a_bound() -> None:
    budget = RestartBudget(restarts_max=8, window_seconds=WINDOW_SECONDS)
    pauses = [budget.pause_seconds(0.0) for _ in range(8)]
    assert pauses == [min(BACKOFF_FIRST_SECONDS * 2**n, BACKOFF_SECONDS_MAX) for n in range(8)]
    assert pauses[-1] == BACKOFF_SECONDS_MAX


def test_a_death_beyond_the_budget_gets_no_restart() -> None:
    budget = RestartBudget(restarts_max=2, window_seconds=WINDOW_SECONDS)
    assert [budget.pause_seconds(at) is None for at in (0.0, 1.0, 2.0)] == [False, False, True]


def test_a_death_after_a_quiet_window_starts_from_the_first_pause() -> None:
    budget = RestartBudget(restarts_max=2, window_seconds=WINDOW_SECONDS)
    budget.pause_seconds(0.0)
    budget.pause_seconds(1.0)
    assert budget.pause_seconds(1.0 + WINDOW_SECONDS) == BACKOFF_FIRST_SECONDS


@given(st.lists(st.floats(0.0, 5.0), max_size=60), st.integers(0, 6))
def test_no_window_holds_more_restarts_than_allowed(gaps: list[float], restarts_max: int) -> None:
    budget = RestartBudget(restarts_max, WINDOW_SECONDS)
    now, granted = 0.0, list[float]()
    for gap in gaps:
        now += gap
        if budget.pause_seconds(now) is not None:
            granted.append(now)
        assert sum(at > now - WINDOW_SECONDS for at in granted) <= restarts_max
