"""What every log is at one moment, for copying it while it goes on growing."""

from collections.abc import Iterable

import attrs

from shared.storage.catalog import LogLine
from shared.storage.format import IndexEntry
from shared.storage.inventory import line_of
from shared.storage.log import Log


@attrs.frozen
class LogSnapshot:
    """A log up to what was visible. Its bytes up to `line.end` never change, but for retention and deletion.

    `entries`: those not in the index file yet. `unapplied`: bytes not in the log file yet, as (offset,
    bytes). `log`: ask it afterwards whether it is deleted, and for its first offset.
    """

    log: Log
    line: LogLine
    entries: tuple[IndexEntry, ...]
    unapplied: tuple[tuple[int, bytes], ...]


def take(logs: Iterable[Log]) -> list[LogSnapshot]:
    """In the trio thread, between two commits: then what is visible is in the log files and indexed."""
    return [_take(log) for log in logs]


def _take(log: Log) -> LogSnapshot:
    entries = [*log.closed_entries, log.open_entry] if log.open_entry is not None else log.closed_entries
    return LogSnapshot(log, line_of(log), tuple(entries), tuple(log.unapplied or ()))
