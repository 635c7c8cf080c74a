"""Each time of a schedule comes once, in the zone that it names; what was missed comes once."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.schedules import Due, Schedule

BERLIN = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "body": "night"}
SAID = [
    {"every": "10m", "body": "a"},
    {"every": "1h", "body": ""},
    {"cron": "*/7 3-5 * * MON-FRI", "body": "b"},
    BERLIN,
]


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize("said", SAID)
def test_what_was_said_is_said_again(said: dict[str, str]) -> None:
    schedule = Schedule.parse(said)
    assert Schedule.parse(schedule.said) == schedule


@given(st.sampled_from(SAID), st.integers(1_600_000_000_000, 1_900_000_000_000))
def test_the_next_time_and_the_last_are_neighbours(said: dict[str, str], now: int) -> None:
    schedule = Schedule.parse(said)
    following, last = schedule.next_after(now), schedule.last_until(now)
    assert following is not None
    assert last is not None
    assert last <= now < following
    assert schedule.next_after(last) == following
    assert schedule.last_until(following) == following


@given(
    st.sampled_from(SAID),
    st.lists(st.integers(1, 20_000_000), min_size=1, max_size=40),
    st.sets(st.integers(0, 39)),
)
def test_each_time_is_done_once_over_restarts_and_what_was_missed_once(
    said: dict[str, str], steps: list[int], restarts: set[int]
) -> None:
    schedule = Schedule.parse(said)
    now = 1_700_000_000_000
    due = Due(schedule, now)
    for number, step in enumerate(steps):
        before, now = now, now + step
        if number in restarts:
            due = Due(schedule, due.done_ms)
        done = due.take(now)
        last = schedule.last_until(now)
        assert last is not None
        assert done == (last if last > before else None)
        assert due.take(now) is None


def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    due = Due(Schedule.parse({"every": "1m", "body": ""}), 0)
    assert due.take(60_000) == 60_000
    assert due.take(1_000) is None
    assert due.take(119_999) is None
    assert due.take(120_000) == 120_000


def test_a_night_without_that_hour_has_it_once_and_so_has_one_with_two() -> None:
    schedule = Schedule.parse(BERLIN)
    for night, following in (("2026-03-29", "2026-03-30"), ("2026-10-25", "2026-10-26")):
        due = Due(schedule, at(f"{night} 00:00", "Europe/Berlin"))
        times = list[int]()
        for minute in range(0, 24 * 60, 10):
            done = due.take(at(f"{night} 00:00", "Europe/Berlin") + minute * 60_000)
            times += [] if done is None else [done]
        assert len(times) == 1
        assert due.next_ms == at(f"{following} 02:30", "Europe/Berlin")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("10m", "is an object"),
        ({"every": "10m", "cron": "* * * * *"}, "either"),
        ({"body": "x"}, "either"),
        ({"every": "10m", "extra": "x"}, "has no 'extra'"),
        ({"every": 10}, "every is a text"),
        ({"every": "10ms"}, "from 1s"),
        ({"every": "1.5ms"}, "every"),
        ({"every": "99999d"}, "from 1s"),
        ({"every": "10m", "zone": "UTC"}, "zone goes with cron"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "61 * * * *"}, "minute '61' is not from 0 to 59"),
        ({"cron": "* * 5-2 * *"}, "day '5-2' ends before"),
        ({"cron": "* * * * FOO"}, "weekday 'FOO'"),
        ({"cron": "*/0 * * * *"}, "minute '0'"),
        ({"cron": "1,,2 * * * *"}, "minute ''"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 29 2 MON", "body": "x" * 4001}, "body is at most"),
        ({"cron": "* " * 200}, "at most 200"),
        ({"cron": "* * * * *", "zone": "Nowhere/Land"}, "there is no 'Nowhere/Land'"),
        ({"cron": "* * * * *", "zone": "../etc/passwd"}, "there is no"),
        ({"cron": "* * * * *", "zone": ""}, "there is no"),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(said: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Schedule.parse(said)
