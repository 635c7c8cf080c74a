"""Ranges of a log that cannot be read, and their form in log lines."""

from collections.abc import Sequence
from typing import Any

import attrs

_SHOWN_MAX = 10
"""Most ranges in one line of the log."""


@attrs.frozen
class Lost:
    """A range of a log that cannot be read. `records`: how many its index counts there; 0: unknown."""

    offset: int
    length: int
    records: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def describe_lost(lost: Sequence[Lost]) -> dict[str, Any]:
    """Ranges for a log line: where they are, and their bytes and records."""
    return {
        "ranges": [f"{each.offset}+{each.length}" for each in lost[:_SHOWN_MAX]],
        "bytes": sum(each.length for each in lost),
        "records": sum(each.records for each in lost),
    }
