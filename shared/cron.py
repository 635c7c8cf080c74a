"""A line of cron: the minutes at which something is due, in a time zone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import product
from typing import Self

import attrs

CACHED = 64
"""Lines, and days of lines, that are known: a line is asked again and again about its day."""
DAYS_MAX = 366 * 50
"""So far ahead a time is searched for, and so far back: the 29th of February is a Monday more often."""
_NAMES = {
    name: number
    for names, least in (
        ("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC", 1),
        ("SUN MON TUE WED THU FRI SAT", 0),
    )
    for number, name in enumerate(names.split(), least)
}
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))


@attrs.frozen
class Cron:
    """Five fields, as in crontab(5): `*`, numbers, names, ranges, lists and steps.

    Where both day and weekday are restricted, a day that fits either counts. A time that the clocks skip
    comes by so much later. Of an hour that comes twice the first counts; both do where each hour fits.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Monday is 0, as in `date.weekday`."""
    either_day: bool
    """A day fits by its number or its weekday."""

    @classmethod
    @lru_cache(maxsize=CACHED)
    def parse(cls, line: str) -> Self:
        """Raises ValueError."""
        parts = line.split()
        if len(parts) != len(_FIELDS):
            raise ValueError("has five fields: minute, hour, day, month, weekday")
        fields = [_numbers(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        weekdays = frozenset((number + 6) % 7 for number in fields[4])
        either = not (parts[2].startswith("*") or parts[4].startswith("*"))
        return cls(fields[0], fields[1], fields[2], fields[3], weekdays, either)

    def after(self, time: float, zone: tzinfo) -> int | None:
        """The first time after that Unix time, in seconds. None: there is none in 50 years."""
        for day in _days(datetime.fromtimestamp(time, zone).date(), 1):
            if self._fits(day):
                times = _times_of(self, day, zone)
                place = bisect_right(times, time)
                if place < len(times):
                    return times[place]
        return None

    def until(self, time: float, zone: tzinfo) -> int | None:
        """The last time that is not after that."""
        for day in _days(datetime.fromtimestamp(time, zone).date(), -1):
            if self._fits(day):
                times = _times_of(self, day, zone)
                place = bisect_right(times, time)
                if place:
                    return times[place - 1]
        return None

    def _fits(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_number, by_weekday = day.day in self.days, day.weekday() in self.weekdays
        return by_number or by_weekday if self.either_day else by_number and by_weekday


@lru_cache(maxsize=CACHED)
def _times_of(cron: Cron, day: date, zone: tzinfo) -> tuple[int, ...]:
    """The times of a day, in order. For each minute of a day this takes some milliseconds."""
    folds = (0, 1) if len(cron.hours) == 24 else (0,)
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    times = {
        int(midnight.replace(hour=hour, minute=minute, fold=fold).timestamp())
        for hour, minute, fold in product(cron.hours, cron.minutes, folds)
    }
    return tuple(sorted(times))


def _days(first: date, step: int) -> Iterator[date]:
    """From the day before the first one on: a time that the clocks skip may be of that."""
    day = first - timedelta(step)
    for _ in range(DAYS_MAX):
        yield day
        day += timedelta(step)


def _numbers(field: str, name: str, least: int, most: int) -> frozenset[int]:
    """The numbers of a field. Raises ValueError."""
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, name, 1, most) if slash else 1
        first_text, dash, last_text = span.partition("-")
        if span == "*":
            first, last = least, most
        else:
            first = _number(first_text, name, least, most)
            last = _number(last_text, name, least, most) if dash else most if slash else first
        if first > last:
            raise ValueError(f"{name} {part!r} ends before it begins")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, name: str, least: int, most: int) -> int:
    number = _NAMES.get(text.upper()) if name in ("month", "weekday") else None
    if number is None and text.isascii() and text.isdecimal() and len(text) <= 2:
        number = int(text)
    if number is None or not least <= number <= most:
        raise ValueError(f"{name} {text!r} is not from {least} to {most}")
    return number
