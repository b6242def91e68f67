"""Delays: their bounds, their jitter, and Retry-After in every form."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sume_jobs.decisions import backoff

chances = st.floats(0.0, 1.0, exclude_max=True)


@given(st.floats(0.0, 1e6), chances)
def test_jitter_only_ever_makes_a_wait_longer(seconds: float, chance: float) -> None:
    assert seconds <= backoff.spread(seconds, chance) <= seconds * 1.25


def test_failures_double_from_5_seconds_to_15_minutes() -> None:
    waits = [backoff.after_failure(attempts, 0.0) for attempts in range(1, 11)]
    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]


@given(st.integers(-5, 10**6), chances)
def test_a_wait_after_a_failure_is_in_bounds(attempts: int, chance: float) -> None:
    wait = backoff.after_failure(attempts, chance)
    assert 5.0 <= wait <= 900.0 * 1.25
    assert wait >= backoff.after_failure(attempts, 0.0)


def test_account_stops_double_from_5_to_15_minutes() -> None:
    assert [backoff.account_stop(n) for n in (0, 1, 2, 3, 4, 99)] == [300, 300, 600, 900, 900, 900]


@given(st.floats(0.0, 1e9), st.booleans(), chances)
def test_the_next_look_is_in_bounds(age: float, attention: bool, chance: float) -> None:
    wait = backoff.next_poll(age, attention, chance)
    shortest, longest = (3600.0, 86400.0) if attention else (5.0, 300.0)
    assert shortest <= wait <= longest * 1.25


def test_the_next_look_grows_with_age() -> None:
    ages = (0, 50, 200, 1000, 3000, 10**6)
    assert [backoff.next_poll(age, False, 0.0) for age in ages] == [5, 5, 20, 100, 300, 300]
    assert [backoff.next_poll(age, True, 0.0) for age in ages] == [3600] * 5 + [86400]


# ------------------------------------------------------------------------- Retry-After

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
AT_DATE = 1445412480.0
LATER = "Wed, 21 Oct 2015 07:29:30 GMT"


@pytest.mark.parametrize(
    ("value", "sent_at", "now", "expected"),
    [
        ("30", None, 0.0, 30.0),
        (" 30 ", None, 0.0, 30.0),
        ("0030", None, 0.0, 30.0),
        ("900", None, 0.0, 900.0),
        ("901", None, 0.0, 900.0),
        ("86400", None, 0.0, 900.0),
        ("99999999999999999999", None, 0.0, 900.0),
        # A date: against the answer's own Date, whatever the process's clock says.
        (LATER, DATE, 0.0, 90.0),
        (LATER, DATE, AT_DATE + 1e6, 90.0),
        (LATER, None, AT_DATE, 90.0),
        (LATER, "nonsense", AT_DATE, 90.0),
        (LATER, None, AT_DATE - 1e6, 900.0),
        ("Wednesday, 21-Oct-15 07:29:30 GMT", DATE, 0.0, 90.0),
        ("Wed Oct 21 07:29:30 2015", DATE, 0.0, 90.0),
        ("Wed, 21 Oct 2015 07:29:30 -0000", DATE, 0.0, 90.0),
        ("Wed, 21 Oct 2015 09:29:30 +0200", DATE, 0.0, 90.0),
        # As if absent: zero, the past, nonsense.
        (None, DATE, 0.0, None),
        ("0", None, 0.0, None),
        ("-5", None, 0.0, None),
        ("+5", None, 0.0, None),
        ("1.5", None, 0.0, None),
        ("1e3", None, 0.0, None),
        ("\u0663\u0660", None, 0.0, None),
        ("", None, 0.0, None),
        ("soon", None, 0.0, None),
        ("30, 60", None, 0.0, None),
        ("inf", None, 0.0, None),
        (DATE, DATE, 0.0, None),
        (DATE, LATER, 0.0, None),
    ],
)
def test_retry_after(
    value: str | None, sent_at: str | None, now: float, expected: float | None
) -> None:
    assert backoff.parse_retry_after(value, sent_at, now) == expected


@pytest.fixture
def far_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.delenv("TZ")
    time.tzset()


@pytest.mark.usefixtures("far_zone")
@pytest.mark.parametrize(
    "value", ["Wed, 21 Oct 2015 07:29:30 -0000", "Wed Oct 21 07:29:30 2015", LATER]
)
def test_the_machines_zone_does_not_matter(value: str) -> None:
    assert backoff.parse_retry_after(value, DATE, 0.0) == 90.0
    assert backoff.parse_retry_after(value, None, AT_DATE) == 90.0


@given(st.integers(1, 10**12), st.integers(1, 4 * 10**9))
def test_a_wait_that_was_asked_for_is_never_shortened_below_the_cap(
    seconds: int, sent_at: int
) -> None:
    expected = min(seconds, 900)
    assert backoff.parse_retry_after(str(seconds), None, 0.0) == expected
    if sent_at + seconds < 2**33:
        due, date = formatdate(sent_at + seconds, usegmt=True), formatdate(sent_at, usegmt=True)
        assert backoff.parse_retry_after(due, date, 0.0) == expected


@given(st.text(), st.none() | st.text(), st.floats(0, 1e10))
def test_retry_after_never_raises(value: str, sent_at: str | None, now: float) -> None:
    wait = backoff.parse_retry_after(value, sent_at, now)
    assert wait is None or 0 < wait <= 900
