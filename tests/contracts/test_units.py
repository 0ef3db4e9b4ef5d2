"""Money, durations and the timing of liveness."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from volt.contracts import timing
from volt.contracts.timing import PROFILES, ProfileName, Timing
from volt.contracts.units import (
    AMOUNT_MICROUSD_MAX,
    DURATION_SECONDS_MAX,
    MICROUSD_PER_USD,
    format_usd,
    parse_duration_seconds,
    parse_usd,
)

AMOUNTS_MICROUSD = st.integers(-AMOUNT_MICROUSD_MAX, AMOUNT_MICROUSD_MAX)


@given(AMOUNTS_MICROUSD)
def test_an_amount_is_the_same_after_it_was_written_and_read(amount_microusd: int) -> None:
    assert parse_usd(format_usd(amount_microusd)) == amount_microusd


@pytest.mark.parametrize(
    ("text", "amount_microusd"),
    [("1.85", 1_850_000), ("0", 0), ("0.000001", 1), (" 2 ", 2_000_000), ("-3.5", -3_500_000), ("007", 7_000_000)],
)
def test_amounts_as_people_write_them(text: str, amount_microusd: int) -> None:
    assert parse_usd(text) == amount_microusd


@pytest.mark.parametrize(
    "text",
    [
        *["", "$1", "1,5", "1.", ".5", "1e3", "1e999999999", "NaN", "Infinity", "0x1", "+1", "--1", "1 000", "1_000"],
        *["1e999999", "0.0000001", "1.00000000000000000000000000001", "1000000000.000001", "9" * 40, "١"],
    ],
)
def test_what_is_no_plain_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|range|places"):
        parse_usd(text)


@given(st.text(max_size=30))
def test_any_text_is_an_amount_in_range_or_refused(text: str) -> None:
    try:
        amount_microusd = parse_usd(text)
    except ValueError:
        return
    assert abs(amount_microusd) <= AMOUNT_MICROUSD_MAX


@given(AMOUNTS_MICROUSD, st.integers(0, 6))
def test_a_rounded_amount_is_off_by_at_most_half_of_its_last_place(amount_microusd: int, places: int) -> None:
    step_microusd = MICROUSD_PER_USD // 10**places
    shown_microusd = parse_usd(format_usd(amount_microusd, places))
    assert abs(shown_microusd - amount_microusd) * 2 <= step_microusd


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("90s", 90),
        ("30m", 1_800),
        ("1h30m", 5_400),
        ("1d1s", 86_401),
        (" 2h ", 7_200),
        ("90d", 7_776_000),
    ],
)
def test_durations_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *["", "10", "0", "h", "24", "24 h", "24H", "24hours", "1.5h", "-1h", "30m1h", "1h1h", "0s", "0h0m", "91d"],
        *["99999999s", "1w", "1h30", "24h\n1m", "２４h"],
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|range"):
        parse_duration_seconds(text)


@given(hours=st.integers(0, 999), minutes=st.integers(0, 999), seconds=st.integers(0, 999))
def test_the_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int) -> None:
    total_seconds = hours * 3_600 + minutes * 60 + seconds
    if 0 < total_seconds <= DURATION_SECONDS_MAX:
        assert parse_duration_seconds(f"{hours}h{minutes}m{seconds}s") == total_seconds


@pytest.mark.parametrize("name", list(PROFILES))
def test_in_every_profile_a_node_has_stopped_before_it_is_called_lost(name: ProfileName) -> None:
    assert PROFILES[name].is_safe()


def tightest(profile: Timing) -> Timing:
    """The profile with the shortest safe time to loss."""
    return next(
        shorter
        for lost_after_ms in range(profile.fence_after_ms, profile.lost_after_ms + 1)
        if (shorter := replace(profile, lost_after_ms=lost_after_ms)).is_safe()
    )


@pytest.mark.parametrize("name", list(PROFILES))
def test_each_term_of_the_rule_is_needed(name: ProfileName, monkeypatch: pytest.MonkeyPatch) -> None:
    tight = tightest(PROFILES[name])
    assert not replace(tight, lost_after_ms=tight.lost_after_ms - 1).is_safe()
    assert not replace(tight, fence_after_ms=tight.fence_after_ms + 1).is_safe()
    for term, more in (("WATCHDOG_TICK_MS", 1), ("FREEZE_MS", 1), ("DRIFT_BASIS_POINTS", 10)):
        with monkeypatch.context() as patched:
            patched.setattr(timing, term, getattr(timing, term) + more)
            assert not tight.is_safe(), term
    assert tight.is_safe()


@given(fence_after_ms=st.integers(1, 10**6), slack_ms=st.integers(-500, 500))
def test_safe_means_that_the_slowest_clock_fences_in_time(fence_after_ms: int, slack_ms: int) -> None:
    slowest_ms = fence_after_ms * (10_000 + timing.DRIFT_BASIS_POINTS) / 10_000
    stopped_ms = slowest_ms + timing.WATCHDOG_TICK_MS + timing.FREEZE_MS
    lost_after_ms = int(stopped_ms) + slack_ms
    profile = replace(timing.EMBEDDED, fence_after_ms=fence_after_ms, lost_after_ms=lost_after_ms)
    assert profile.is_safe() == (lost_after_ms >= stopped_ms)


@pytest.mark.parametrize("name", list(PROFILES))
def test_at_every_pace_of_the_fleet_a_node_has_stopped_before_it_is_called_lost(name: ProfileName) -> None:
    paces = [PROFILES[name].at_level(level) for level in range(timing.PACE_LEVEL_MAX + 1)]
    assert paces[0] == PROFILES[name]
    assert all(pace.is_safe() for pace in paces)
    assert [slow.beat_ms for slow in paces[1:]] == [2 * fast.beat_ms for fast in paces[:-1]]


@given(fence_after_ms=st.integers(0, 10**6))
def test_the_l_that_follows_from_a_stated_f_is_safe(fence_after_ms: int) -> None:
    for profile in PROFILES.values():
        lost_after_ms = profile.lost_after_fence(fence_after_ms)
        assert replace(profile, fence_after_ms=fence_after_ms, lost_after_ms=lost_after_ms).is_safe()


def test_cover_reaches_as_far_as_a_node_may_be_silent_and_no_further() -> None:
    for profile in PROFILES.values():
        assert profile.cover_gap_ms == profile.fence_after_ms
        assert profile.beat_ms * 2 < profile.fence_after_ms, "one lost beat is no fence"
