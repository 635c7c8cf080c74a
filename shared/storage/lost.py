"""Ranges of a log that cannot be read: what they are, and how a log line tells of them."""

from collections.abc import Sequence
from typing import Any

import attrs

_SHOWN_MAX = 10
"""Ranges in one line of the log."""


@attrs.frozen
class Lost:
    """A range of a log that cannot be read. `records`: as many as its index tells of; 0: it does not tell."""

    offset: int
    length: int
    records: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def describe_lost(lost: Sequence[Lost]) -> dict[str, Any]:
    """Ranges, for a line of the log: where they are, and how much."""
    return {
        "ranges": [f"{each.offset}+{each.length}" for each in lost[:_SHOWN_MAX]],
        "bytes": sum(each.length for each in lost),
        "records": sum(each.records for each in lost),
    }
