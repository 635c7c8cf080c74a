"""Ranges of logs, and chunks of their records; how ranges become tasks, and entries become chunks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil

import attrs

from shared.storage.format import IndexEntry

SPLIT_BYTES = 128 << 20
"""A task's share unless `minPartitions` asks for more tasks. Spark's own file sources take the same."""
SPLIT_BYTES_SPARING = 512 << 20
"""A task's share if few of its bytes go on to Spark: each task costs 10 ms or more before its first row."""

CHUNK_BYTES = 8 << 20
"""Large enough that the work done once a chunk costs nothing, small enough for a processor's cache."""
SPLIT_BYTES_LEAST = 64 << 10
"""What an index entry covers. Nothing is cut finer."""


@attrs.frozen
class LogRange:
    """The records of a log from `start`, a record's start, to `stop`, where one ends.

    `source`: the folder, or the broker's address. `log_id`: by it `is_other` tells the log from a later one
    of its name. `file`: its file's name, in a folder. A log as found is the range between its first kept
    record and its end.
    """

    source: str
    topic: str
    log_id: int
    start: int
    stop: int
    file: str = attrs.field(default="", eq=False)

    @property
    def length(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> "LogRange":
        return attrs.evolve(self, start=start, stop=stop)


@attrs.frozen
class RecordChunk:
    """Whole records of a log from `offset` on, and the index entries that cover them without gaps.

    `data` is empty if what the entries say is enough.
    """

    offset: int
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    entries: Sequence[IndexEntry]

    @property
    def end(self) -> int:
        return self.entries[-1].end

    def part(self, entry: IndexEntry) -> "RecordChunk":
        """Return what one of its entries covers."""
        return chunk_of(self.offset, self.data, [entry])


def chunk_of(base: int, data: bytes, entries: Sequence[IndexEntry]) -> RecordChunk:
    """Return what the entries cover of `data`, which begins at the offset `base`."""
    start, stop = entries[0].offset, entries[-1].end
    is_all = start == base and stop - start == len(data)
    return RecordChunk(start, data if is_all else data[start - base : stop - base], entries)


def chunk_groups(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Index entries in groups of about `CHUNK_BYTES` without gaps. Each group is read at once."""
    taken: list[IndexEntry] = []
    for entry in entries:
        if taken and (entry.end - taken[0].offset > CHUNK_BYTES or entry.offset != taken[-1].end):
            yield taken
            taken = []
        taken.append(entry)
    if taken:
        yield taken


def sound_chunks(
    data: bytes,
    entries: Sequence[IndexEntry],
    fault: Callable[[IndexEntry, memoryview], str | None],
    lose: Callable[[IndexEntry, str], None],
) -> Iterator[RecordChunk]:
    """What is in order of `data`, which starts where the first entry does.

    `fault` says what is wrong with an entry's bytes, if anything. `lose` is told of that.
    """
    base, good = entries[0].offset, list[IndexEntry]()
    for entry in entries:
        text = fault(entry, memoryview(data)[entry.offset - base : entry.end - base])
        if text is None:
            good.append(entry)
            continue
        if good:
            yield chunk_of(base, data, good)
            good = []
        lose(entry, text)
    if good:
        yield chunk_of(base, data, good)


Cut = Callable[[LogRange, int], int]
"""`cut(range, offset)` returns where an index entry begins near `offset`. A log is cut there."""


def shares(
    ranges: Sequence[LogRange],
    min_partitions: int | None,
    cut: Cut,
    *,
    size: int = SPLIT_BYTES,
) -> list[tuple[LogRange, ...]]:
    """Divide a read into tasks of about `size` bytes. Small logs share one.

    Empty ranges are left out. With `min_partitions` the number of tasks is a multiple of it, so that all
    cores end together.
    """
    ranges = [each for each in ranges if each.length > 0]
    total = sum(each.length for each in ranges)
    if not total:
        return []
    if min_partitions is not None:
        rounds = ceil(total / (size * min_partitions))
        size = ceil(total / (rounds * min_partitions))
    least = size if min_partitions is None else max(size, SPLIT_BYTES_LEAST)
    pieces = (piece for each in ranges for piece in _pieces(each, least, cut))
    return list(_packed(pieces, size))


def fair_shares(total: int, wanted: Sequence[int], *, least: int) -> list[int]:
    """Divide a total equally, at least `least` for each.

    `wanted` ascends, so what the first leave goes to those behind them.
    """
    shares = []
    for left, most in zip(range(len(wanted), 0, -1), wanted, strict=True):
        shares.append(max(total // left, least))
        total = max(total - min(shares[-1], most), 0)
    return shares


def _pieces(whole: LogRange, size: int, cut: Cut) -> Iterable[LogRange]:
    start, pieces = whole.start, ceil(whole.length / size)
    for number in range(1, pieces):
        place = cut(whole, whole.start + number * whole.length // pieces)
        if start < place < whole.stop:
            yield whole.part(start, place)
            start = place
    yield whole.part(start, whole.stop)


def _packed(pieces: Iterable[LogRange], size: int) -> Iterable[tuple[LogRange, ...]]:
    """Put pieces together in order, as many as fit `size`, but at least one."""
    taken: list[LogRange] = []
    length = 0
    for piece in pieces:
        if taken and length + piece.length > size:
            yield tuple(taken)
            taken, length = [], 0
        taken.append(piece)
        length += piece.length
    if taken:
        yield tuple(taken)
