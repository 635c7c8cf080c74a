"""What a read asks of a data folder or a broker (`Origin`), and what it does about losses."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from brokers.pipeline.source.options import SourceOptions, TopicChoice, Unverified
from brokers.pipeline.source.spans import Chunk, LogSpot, Span
from brokers.pipeline.source.stretch import Stretch
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
    unverified: Unverified
    lose: Callable[[str], None]


class Origin(Protocol):
    """A data folder or a broker, open for reading. What follows from its entries and records is told here."""

    source: str

    def close(self) -> None:
        """Close files and connections."""

    def spots(self, topics: TopicChoice) -> dict[str, LogSpot]:
        """Return the logs that are there, of those asked for."""

    def is_other(self, spot: LogSpot, id_before: int, offset: int) -> bool:
        """Whether `spot` is not the log that was seen before with that id and read up to `offset`."""

    def at_time(self, spot: LogSpot, unix_ms: int) -> int | None:
        """Return where the first record of that time or later is, at most an index entry too early.

        None: all records are older.
        """

    def entries_at(self, asked: Sequence[tuple[LogSpot, int]]) -> list[IndexEntry | None]:
        """Return the index entry at each offset. Where none can be read: None, or the last one before."""

    def records(self, spot: LogSpot, start: int, size: int) -> bytes:
        """Return some `size` bytes from `start` on, a record's start; none if they cannot be read."""

    def advance(self, stretches: Sequence[Stretch]) -> None:
        """Go on with each stretch as far as its limits allow."""

    def kept(self, span: Span, policy: LossPolicy) -> Span:
        """Return what of a span retention has not dropped by now; the rest is told to the policy."""
        return span

    def start_below(self, spot: LogSpot, offset: int) -> int:
        """Return the last record's start, or the log's end, at or below an offset within the log."""
        if offset in (spot.first, spot.end):
            return offset
        (entry,) = self.entries_at([(spot, offset)])
        if entry is None or entry.end <= offset:
            return offset  # a gap, which the reader reports
        start = max(entry.offset, spot.first)
        data = self.records(spot, start, entry.end - start)
        return start + skip_records(data, 0, min(offset - start, len(data)))[0] if data else offset

    def cut(self, span: Span, offset: int) -> int:
        """Return where an index entry begins near `offset` in the span."""
        (entry,) = self.entries_at([(span.spot, offset)])
        return span.start if entry is None else entry.offset

    def entry_end(self, spot: LogSpot, offset: int) -> int:
        """Return the end of the index entry at or before `offset`; without one, the log's end."""
        (entry,) = self.entries_at([(spot, offset)])
        return spot.end if entry is None else entry.end

    def unread_ms(self, stretches: Sequence[Stretch]) -> list[int]:
        """Return the time from each stretch's first record to its log's newest; 0: none, or not known."""
        found = self.entries_at(
            [(each.spot, at) for each in stretches for at in (each.start, max(each.spot.end - 1, 0))]
        )
        return [
            0
            if oldest is None or newest is None or oldest.end <= each.start
            else max(newest.last_ms - oldest.first_ms, 0)
            for each, oldest, newest in zip(stretches, found[::2], found[1::2], strict=True)
        ]

    def chunks(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        """Yield the span's records in chunks of some megabytes, which may begin before it and end behind it.

        The policy raises DataLoss for a range that is gone or damaged, or has it passed over.
        """

    def entries(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        """Yield what `chunks` does, but without bytes for chunks that lie wholly in the span.

        Damage is told only where the index tells it.
        """


def rules(options: SourceOptions) -> LossPolicy:
    """Return the options' policy. What is passed over goes to the log of the process that reads."""

    def lose(text: str) -> None:
        if options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss is true; with false, reading goes on behind it)")
        warn(text)

    return LossPolicy(options.verify_crc, options.unverified, lose)


def warn(text: str) -> None:
    """Write a line to the process's log: Spark keeps the standard error of its workers."""
    print(f"brokers: {text}", file=sys.stderr)
