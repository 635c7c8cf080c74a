"""The settings of the storage core, each with its default and its reason; section `[storage]`."""

import re
from enum import IntEnum
from typing import Literal, Self

import attrs
from attrs import validators

from shared.units import GIB, KIB, MIB, limit

INTERVAL_SECONDS_DEFAULT = 0.05
INTERVAL_SECONDS_MAX = 1.0


class Mode(IntEnum):
    """What a ticket waits for; the strictest is the least."""

    SHIPPED = -1
    SYNCED = 0
    WRITTEN = 1


@attrs.frozen
class Durability:
    """When an append counts as done (PROMISES: modes).

    `always`: after the sync that covers it. `interval`: after the write, and a sync at most `seconds` later.
    `none`: after the write; nothing is synced for it.
    """

    mode: Literal["always", "interval", "none"]
    seconds: float = 0.0
    shipped: bool = attrs.field(default=False, eq=False, repr=False)
    """Only once the bucket has it, too: of this run of the server, and not a part of the text."""
    waits_for: Mode = attrs.field(init=False, eq=False, repr=False)

    @waits_for.default
    def _(self) -> Mode:
        if self.shipped:
            return Mode.SHIPPED
        return Mode.SYNCED if self.mode == "always" else Mode.WRITTEN

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `always`, `none`, `interval` (50 ms) or `interval:<n>ms` (or `s`), above 0 and at most 1 s.

        Older data folders say ` unjournaled` behind an interval, which means nothing now. Raises ValueError.
        """
        text = text.removesuffix(" unjournaled")
        if text == "always":
            return cls("always")
        if text == "none":
            return cls("none")
        if text == "interval":
            return cls("interval", INTERVAL_SECONDS_DEFAULT)
        match = re.fullmatch(r"interval:(\d+(?:\.\d+)?)(ms|s)", text)
        if match is None:
            raise ValueError(f"a durability is always, interval:50ms or none, not {text!r}")
        seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
        if not 0 < seconds <= INTERVAL_SECONDS_MAX:
            raise ValueError("an interval is above 0 and at most 1 s")
        return cls("interval", seconds)

    def __str__(self) -> str:
        return f"interval:{self.seconds * 1000:g}ms" if self.mode == "interval" else self.mode


@attrs.frozen
class Retention:
    """What a log keeps at least; None: everything. Whole entries (about 64 KiB) go, the oldest first."""

    bytes_kept: int | None = None
    ms_kept: int | None = None


@attrs.frozen
class StorageSettings:
    """Section `[storage]`."""

    segment_bytes: int = limit(64 * MIB, 4 * KIB, 4 * GIB)
    """The size of a journal segment; smaller if the journal would exceed its share of the file system. 64
    MiB: a checkpoint every half second at full speed, and little to replay."""
    journal_fraction: float = attrs.field(default=1 / 8, validator=[validators.gt(0), validators.le(0.5)])
    """The share of the file system for all segments together."""
    zero_fill: bool = True
    """Write new segments full of zeros ahead of their use: a sync then need not write block maps (half the
    time on ext4)."""
    pending_bytes_max: int = attrs.field(default=64 * MIB, validator=validators.ge(1))
    """Sessions stop reading when more bytes than this wait for the disk."""
    inline_bytes_max: int = attrs.field(default=1 * MIB, validator=validators.ge(0))
    """A larger commit is written in a thread."""
    inline_sync_seconds: float = attrs.field(default=300e-6, validator=validators.ge(0))
    """A smaller one is made without a thread while recent syncs took less than this. On a loop that is busy
    with many such: a few times as long (`Committer`)."""
    tail_bytes_max: int = attrs.field(default=64 * MIB, validator=validators.ge(0))
    """Records that are synced in the journal and wait in memory for their logs' files. From three quarters on
    the oldest are written. Above it commits wait."""
    tail_log_bytes: int = attrs.field(default=512 * KIB, validator=validators.ge(0))
    """How many bytes of one log are written to its file at once; fewer after 1 s. A commit with an eighth of
    this for one log writes that itself; 0: every commit does. Commits of 16 KiB to each of 64 logs: 2.2 us of
    processor a KiB, against 3.0 with 256 KiB and a sixteenth."""
    reference_bytes: int = attrs.field(default=1 * MIB, validator=validators.ge(0))
    """A commit with so many bytes for one log writes these to its file alone, and the journal refers to them;
    0: never. Below that the second sync costs more than writing the bytes twice. Seen for 64 logs with 256
    KiB each: 28,000 records of 4 KiB a second by reference, 71,000 through the journal."""
    checkpoint_direct_bytes: int = attrs.field(default=256 * MIB, validator=validators.ge(1))
    """A checkpoint is due after so many bytes that the journal refers to: recovery must check them all."""
    sync_all_logs: int = attrs.field(default=64, validator=validators.ge(0))
    """More changed logs than this are synced by one syncfs (seen: 3 ms, against 40 ms for 1,000 logs)."""
    open_files_max: int = attrs.field(default=0, validator=validators.ge(0))
    """Log files kept open; 0: as many as the process's limit leaves beside connections, 400 to 8192."""
    cache_bytes: int = attrs.field(default=16 * MIB, validator=validators.ge(0))
    """The cache of blocks read for single records."""
    reader_threads: int = attrs.field(default=4, validator=validators.ge(1))
    """Concurrent reads from the disk."""
    reserve_bytes_min: int = attrs.field(default=64 * MIB, validator=validators.ge(0))
    """The least free space at which publishing stops, on small file systems; see `reserve_fraction`."""
    reserve_bytes_max: int = attrs.field(default=1024 * MIB, validator=validators.ge(0))
    """The most free space at which publishing stops, on large file systems."""
    reserve_fraction: float = attrs.field(default=0.02, validator=[validators.ge(0), validators.le(0.5)])
    """Publishing stops below max(min, min(fraction of the file system, max)) free bytes."""
    retention_seconds: float = attrs.field(default=10.0, validator=validators.gt(0))
    """How often retention runs."""
    scrub_bytes_per_second: int = attrs.field(default=1 * MIB, validator=validators.ge(0))
    """Slow background reading that finds flipped bits; 0: none."""
