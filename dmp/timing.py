"""When a message is not to be delivered before: the header `x-delay`, and a queue's header of a time (`eta`).

A header that says nothing of use is passed over, since headers are never refused. So is a delay that is no
number of milliseconds, a time that cannot be read, and both where they are above ten years.
"""

from __future__ import annotations

import datetime
import math
from fnmatch import fnmatchcase
from typing import Any, Self

import attrs

from dmp.data_types import read_field
from dmp.refusals import Refusal

DELAY = b"x-delay"
MS_MAX = 10 * 366 * 86_400_000
"""The longest time, ten years."""


@attrs.frozen
class EtaHeaders:
    """Which header says when a message is due, by queues' names: `PATTERN=HEADER`, with commas between."""

    _of: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        found: list[tuple[str, str]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            pattern, equals, header = (each.strip() for each in part.rpartition("="))
            if not pattern or not equals or not 0 < len(header.encode()) <= 255:
                raise ValueError("it is PATTERN=HEADER with commas between, such as celery*=eta")
            found.append((pattern, header))
        return cls(tuple(found))

    def of(self, queue: str) -> bytes | None:
        """The header of this queue: that of the first pattern which matches; None: none does."""
        return next((header.encode() for pattern, header in self._of if fnmatchcase(queue, pattern)), None)

    def __str__(self) -> str:
        return ", ".join(f"{pattern}={header}" for pattern, header in self._of)


def delay_in(table: bytes) -> int:
    """The milliseconds of `x-delay` in a headers table that has been checked; 0: there is none."""
    value = _field(table, DELAY)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MS_MAX:
        return 0
    return value


def eta_in(table: bytes, header: bytes, now_ms: int) -> int:
    """The Unix time, in milliseconds, of a header with an ISO time or Unix seconds, in a headers table that
    has been checked; 0: it is not there, cannot be read, or has passed."""
    due_ms = _unix_ms(_field(table, header))
    return due_ms if now_ms < due_ms <= now_ms + MS_MAX else 0


def _unix_ms(value: Any) -> int:
    seconds: float = 0.0
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                value = datetime.datetime.fromisoformat(value)
            except ValueError:
                return 0
    if isinstance(value, datetime.datetime):
        value = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        seconds = value.timestamp()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value
    if not math.isfinite(seconds) or not 0 < seconds < 1e12:
        return 0
    return math.ceil(seconds * 1000)


def _field(table: bytes, name: bytes) -> Any:
    if name not in table:  # nearly all: nothing is decoded
        return None
    try:
        return read_field(table, name)
    except Refusal:
        return None
