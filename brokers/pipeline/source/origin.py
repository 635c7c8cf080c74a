"""What a read needs of the place that the logs are at: a data folder, or a broker."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from brokers.pipeline.source.options import Options, TopicChoice, Unverified
from brokers.pipeline.source.spans import Chunk, LogSpot, Span
from brokers.pipeline.source.stretch import Stretch
from shared.errors import BrokerError


class DataLoss(BrokerError):
    """Records that were asked for cannot be had, and `failOnDataLoss` is true."""


@attrs.frozen
class LossPolicy:
    """How a read meets what is not as it should be.

    `lose(text)` raises DataLoss, or returns: go on behind what is lost.
    """

    verify_crc: bool
    unverified: Unverified
    lose: Callable[[str], None]


class Origin(Protocol):
    """One place, open for reading."""

    source: str

    def close(self) -> None:
        """Let go of it."""

    def spots(self, topics: TopicChoice) -> dict[str, LogSpot]:
        """The logs that are there, of those asked for."""

    def is_other(self, spot: LogSpot, id_before: int, offset: int) -> bool:
        """Whether `spot` is another log than one of its name, seen with that id and read up to `offset`."""

    def at_time(self, spot: LogSpot, unix_ms: int) -> int | None:
        """Where the first record of that time or later is, at most an index entry too early.

        None: all are older.
        """

    def start_below(self, spot: LogSpot, offset: int) -> int:
        """The last record's start, or the end, at or below an offset that lies between first and end."""

    def cut(self, span: Span, offset: int) -> int:
        """A place in the span near `offset` where an index entry begins."""

    def entry_end(self, spot: LogSpot, offset: int) -> int:
        """Where the index entry ends that has `offset`, or the last before it; else where the log does."""

    def advance(self, stretches: Sequence[Stretch]) -> None:
        """Go on with each, as far as its limits let it."""

    def chunks(self, span: Span, policy: LossPolicy, *, bare: bool = False) -> Iterator[Chunk]:
        """The span's records in chunks of some megabytes; the first may begin before it, the last end behind.

        `bare`: those that lie wholly in the span may come without their bytes.
        Raises DataLoss through the policy where a range is gone or damaged, else passes it over.
        """

    def entries(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        """The same without bytes, as far as index entries tell what is asked for; no damage is looked for."""


def rules(options: Options) -> LossPolicy:
    """The options' policy. What is passed over is told in the log of the process that reads."""

    def lose(text: str) -> None:
        if options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss is true; with false, reading goes on behind it)")
        warn(text)

    return LossPolicy(options.verify_crc, options.unverified, lose)


def warn(text: str) -> None:
    """To the log of the process."""
    print(f"brokers: {text}", file=sys.stderr)
