"""What a read asks of a data folder or a broker (`Origin`), and what it does about losses."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from brokers.pipeline.source.options import Options, TopicChoice, Unverified
from brokers.pipeline.source.spans import Chunk, LogSpot, Span
from brokers.pipeline.source.stretch import Stretch
from shared.errors import BrokerError


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
    """A data folder or a broker, open for reading."""

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

    def start_below(self, spot: LogSpot, offset: int) -> int:
        """Return the last record's start, or the log's end, at or below an offset within the log."""

    def cut(self, span: Span, offset: int) -> int:
        """Return where an index entry begins near `offset` in the span."""

    def entry_end(self, spot: LogSpot, offset: int) -> int:
        """Return the end of the index entry at or before `offset`; without one, the log's end."""

    def advance(self, stretches: Sequence[Stretch]) -> None:
        """Go on with each stretch as far as its limits allow."""

    def unread_ms(self, stretches: Sequence[Stretch]) -> list[int]:
        """Return the time from each stretch's first record to its log's newest; 0: none, or not known."""

    def chunks(self, span: Span, policy: LossPolicy, *, bare: bool = False) -> Iterator[Chunk]:
        """Yield the span's records in chunks of some megabytes, which may begin before it and end behind it.

        `bare`: chunks that lie wholly in the span may come without their bytes. The policy raises DataLoss
        for a range that is gone or damaged, or has it passed over.
        """

    def entries(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        """The same as `chunks`, but without bytes where entries tell enough. Damage is not looked for."""


def rules(options: Options) -> LossPolicy:
    """Return the options' policy. What is passed over goes to the log of the process that reads."""

    def lose(text: str) -> None:
        if options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss is true; with false, reading goes on behind it)")
        warn(text)

    return LossPolicy(options.verify_crc, options.unverified, lose)


def warn(text: str) -> None:
    """Write a line to the process's log: Spark keeps the standard error of its workers."""
    print(f"brokers: {text}", file=sys.stderr)
