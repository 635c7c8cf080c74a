"""What a read asks of a data folder or a broker (`SourceReader`), and what it does about losses."""

import sys
from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from brokers.pipeline.source.options import SourceOptions, TopicChoice
from brokers.pipeline.source.ranges import LogRange, RecordChunk
from shared.errors import BrokerError
from shared.storage.format import IndexEntry, skip_records


class DataLoss(BrokerError):
    """Records cannot be read, and `failOnDataLoss` is true."""


@attrs.frozen
class LossPolicy:
    """What a read does about damage and loss.

    `lose(text)` raises DataLoss, or returns so that reading goes on behind the loss.
    """

    verify_crc: bool
    lose: Callable[[str], None]


class SourceReader(Protocol):
    """A data folder or a broker, open for reading. What follows from its entries and records is told here.

    A `log` is the range of it that can be read now.
    """

    source: str

    def close(self) -> None:
        """Close files and connections."""

    def logs(self, topics: TopicChoice) -> dict[str, LogRange]:
        """Return the logs that are there, of those asked for, by name."""

    def is_other(self, log: LogRange, id_before: int, offset: int) -> bool:
        """Whether `log` is not the log that was seen before with that id and read up to `offset`."""

    def at_time(self, log: LogRange, unix_ms: int) -> int | None:
        """Return where the first record of that time or later is, at most an index entry too early.

        None: all records are older.
        """

    def entry_at(self, log: LogRange, offset: int) -> IndexEntry | None:
        """Return the index entry at an offset. Where none can be read: None, or the last one before."""

    def entries_from(self, log: LogRange, start: int) -> Iterator[IndexEntry]:
        """Yield the index entries that end behind `start`, up to the log's end."""

    def records(self, log: LogRange, start: int, size: int) -> bytes:
        """Return some `size` bytes from `start` on, a record's start; none if they cannot be read."""

    def kept(self, wanted: LogRange, policy: LossPolicy) -> LogRange:
        """Return what of a range retention has not dropped by now; the rest is told to the policy."""
        return wanted

    def chunks(self, wanted: LogRange, policy: LossPolicy, *, bare: bool = False) -> Iterator[RecordChunk]:
        """Yield the range's records in chunks of some megabytes, which may begin before it and end behind it.

        The policy raises DataLoss for a range that is gone or damaged, or has it passed over. `bare`: chunks
        that lie wholly in the range come without bytes, and damage is told only where the index tells it.
        """

    def start_below(self, log: LogRange, offset: int) -> int:
        """Return the last record's start, or the log's end, at or below an offset within the log."""
        if offset in (log.start, log.stop):
            return offset
        entry = self.entry_at(log, offset)
        if entry is None or entry.end <= offset:
            return offset  # a gap, which the reader reports
        start = max(entry.offset, log.start)
        data = self.records(log, start, entry.end - start)
        return start + skip_records(data, 0, min(offset - start, len(data)))[0] if data else offset

    def cut(self, log: LogRange, offset: int) -> int:
        """Return where an index entry begins near `offset` in the range."""
        entry = self.entry_at(log, offset)
        return log.start if entry is None else entry.offset


def rules(options: SourceOptions) -> LossPolicy:
    """Return the options' policy. What is passed over goes to the log of the process that reads."""

    def lose(text: str) -> None:
        if options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss is true; with false, reading goes on behind it)")
        warn(text)

    return LossPolicy(options.verify_crc, lose)


def lost(wanted: LogRange, start: int, stop: int, why: object) -> str:
    """Say that a part of a range is lost."""
    start, stop = max(start, wanted.start), min(stop, wanted.stop)
    return f"{wanted.topic} in {wanted.source}: offsets {start} to {stop} are lost: {why}"


def dropped(first: int) -> str:
    return f"retention dropped it (the first kept offset is {first})"


def warn(text: str) -> None:
    """Write a line to the process's log: Spark keeps the standard error of its workers."""
    print(f"brokers: {text}", file=sys.stderr)
