"""Messages at times: every so often, or as a line of cron says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Self
from zoneinfo import ZoneInfo

import attrs

from shared.cron import Cron
from shared.units import format_quantity, parse_span_ms

EVERY_MS_MIN = 1000
EVERY_MS_MAX = 10 * 365 * 86_400_000
"""Ten years; a longer time must be a mistake."""
CRON_CHARS_MAX = 200
BODY_BYTES_MAX = 4000
"""Of a body in UTF-8."""
STEP_MS = 1000
"""A clock that goes back by more was set."""
BACK_MS = 3 * 3_600_000
"""A clock that was set back by more was wrong before, and is right now."""
SCHEDULES_MAX = 32
"""Of one queue."""
_KEYS = ("every", "cron", "zone", "body")


@attrs.frozen
class Schedule:
    """When a message comes, and its body. Either `every_ms` or `cron` says when; `zone`: where cron's clock
    hangs. Times are Unix milliseconds.

    The times of `every_ms` are its multiples from 1970 on, in UTC. So they are the same after a restart.
    """

    body: str
    every_ms: int = 0
    cron: str = ""
    zone: str = "UTC"

    @classmethod
    def parse(cls, said: object) -> Self:
        """A schedule from an object with `every` or `cron`, `zone` and `body`. Raises ValueError."""
        if not isinstance(said, Mapping):
            raise ValueError('is an object such as {"every": "10m", "body": "..."}')
        for key, value in said.items():
            if key not in _KEYS:
                raise ValueError(f"has no {str(key)[:64]!r}; there are {', '.join(_KEYS)}")
            if not isinstance(value, str):
                raise ValueError(f"{key} is a text")
        if ("every" in said) == ("cron" in said):
            raise ValueError("has either every or cron")
        body = said.get("body", "")
        if len(body.encode("utf-8", "surrogatepass")) > BODY_BYTES_MAX:
            raise ValueError(f"body is at most {BODY_BYTES_MAX} bytes")
        zone = said.get("zone", "UTC")
        if "every" in said:
            if "zone" in said:
                raise ValueError("zone goes with cron")
            return cls(body, every_ms=_every_ms(said["every"]))
        found = cls(body, cron=said["cron"], zone=zone)
        found._check_cron()
        return found

    @property
    def said(self) -> dict[str, str]:
        """What `parse` makes the same schedule of."""
        if self.every_ms:
            return {"every": format_quantity(self.every_ms, "ms"), "body": self.body}
        return {"cron": self.cron, "zone": self.zone, "body": self.body}

    def _check_cron(self) -> None:
        if len(self.cron) > CRON_CHARS_MAX:
            raise ValueError(f"cron is at most {CRON_CHARS_MAX} characters")
        zone_of(self.zone)
        try:
            Cron.parse(self.cron)
        except ValueError as error:
            raise ValueError(f"cron {self.cron!r}: {error}") from None
        if self.next_after(0) is None:
            raise ValueError(f"cron {self.cron!r} has no time in 50 years")

    def next_after(self, now_ms: int) -> int | None:
        """The first time after `now_ms`. None: there is none in 50 years."""
        if self.every_ms:
            return (now_ms // self.every_ms + 1) * self.every_ms
        time = Cron.parse(self.cron).after(now_ms / 1000, zone_of(self.zone))
        return None if time is None else 1000 * time

    def last_until(self, now_ms: int) -> int | None:
        """The last time that is not after `now_ms`. None: there is none in 50 years."""
        if self.every_ms:
            return now_ms // self.every_ms * self.every_ms
        time = Cron.parse(self.cron).until(now_ms / 1000, zone_of(self.zone))
        return None if time is None else 1000 * time


@attrs.frozen
class Schedules:
    """The schedules of one queue: in settings a list of tables, or its JSON."""

    reads = (str, list)
    """What `parse` takes."""
    all: tuple[Schedule, ...] = ()

    @classmethod
    def parse(cls, said: object) -> Self:
        """Raises ValueError."""
        if isinstance(said, str):
            try:
                said = json.loads(said)
            except (ValueError, RecursionError):
                raise ValueError("is a list of objects, as JSON") from None
        if not isinstance(said, list) or len(said) > SCHEDULES_MAX:
            raise ValueError(f"is a list of at most {SCHEDULES_MAX} objects")
        found: list[Schedule] = []
        for number, each in enumerate(said):
            try:
                found.append(Schedule.parse(each))
            except ValueError as error:
                raise ValueError(f"number {number}: {error}") from None
        return cls(tuple(found))

    def __str__(self) -> str:
        return json.dumps([each.said for each in self.all])


def zone_of(name: str) -> tzinfo:
    """Raises ValueError."""
    if name == "UTC":
        return UTC  # also where the machine has no zones
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(f"zone: there is no {name[:64]!r} on this machine, as in Europe/Berlin") from None


def _every_ms(text: str) -> int:
    try:
        every_ms = parse_span_ms(text)
    except ValueError as error:
        raise ValueError(f"every: {error}") from None
    if not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
        raise ValueError("every is from 1s to ten years")
    return every_ms


@attrs.define(eq=False)
class Due:
    """The times of one schedule that are done, up to `done_ms`, and the next.

    Each is done once. Of those that were missed the last one is.
    """

    schedule: Schedule
    done_ms: int
    name: str = attrs.field(init=False)
    """What it says, as text."""
    next_ms: int | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.next_ms = self.schedule.next_after(self.done_ms)
        self.name = json.dumps(self.schedule.said)

    @classmethod
    def going_on(cls, schedule: Schedule, done_ms: int, now_ms: int) -> Self:
        """One that is done up to then. Where the clock was set back since, `every` begins anew, and cron's
        times do not come again, unless it was by more than three hours: as crond has it."""
        back_ms = done_ms - now_ms
        anew = back_ms > (STEP_MS if schedule.every_ms else BACK_MS)
        return cls(schedule, now_ms if anew else done_ms)

    def take(self, now_ms: int) -> int | None:
        """The time to do now, which counts as done from here on. None: none has come."""
        if self.next_ms is None or now_ms < self.next_ms:
            return None
        last = self.schedule.last_until(now_ms)
        done = self.next_ms if last is None else max(last, self.next_ms)
        self.done_ms = done
        self.next_ms = self.schedule.next_after(done)
        return done
