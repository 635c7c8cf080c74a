"""Logs as found, spans of them, and chunks of records; how spans become tasks, and entries become chunks."""

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
class Span:
    """The records of a log from `start`, a record's start, to `stop`, where one ends.

    `source`: the folder, or the broker's address. `log_id`, `file`: as in `LogSpot`.
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

    @property
    def spot(self) -> "LogSpot":
        """The span's log, as if there were no more of it."""
        return LogSpot(self.source, self.topic, self.log_id, self.start, self.stop, self.file)


@attrs.frozen
class LogSpot:
    """A log as found: `first` and `end` are the offsets between which it can be read now.

    `id`: by it `is_other` tells the log from a later one of its name. `file`: its file's name, in a folder.
    """

    source: str
    name: str
    id: int
    first: int
    end: int
    file: str = ""

    def span(self, start: int, stop: int) -> Span:
        return Span(self.source, self.name, self.id, start, stop, self.file)


@attrs.frozen
class Chunk:
    """Whole records of a log from `offset` on, and the index entries that cover them without gaps.

    `data` is empty if what the entries say is enough.
    """

    offset: int
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    entries: Sequence[IndexEntry]

    @property
    def end(self) -> int:
        return self.entries[-1].end

    def part(self, entry: IndexEntry) -> "Chunk":
        """Return what one of its entries covers."""
        return chunk_of(self.offset, self.data, [entry])


def chunk_of(base: int, data: bytes, entries: Sequence[IndexEntry]) -> Chunk:
    """Return what the entries cover of `data`, which begins at the offset `base`."""
    start, stop = entries[0].offset, entries[-1].end
    is_all = start == base and stop - start == len(data)
    return Chunk(start, data if is_all else data[start - base : stop - base], entries)


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
) -> Iterator[Chunk]:
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


Cut = Callable[[Span, int], int]
"""`cut(span, offset)` returns where an index entry begins near `offset`. A log is cut there."""


def shares(
    spans: Sequence[Span],
    min_partitions: int | None,
    cut: Cut,
    *,
    size: int = SPLIT_BYTES,
    alone: bool = False,
) -> list[tuple[Span, ...]]:
    """Divide a read into tasks of about `size` bytes. Small logs share one, unless each is to be `alone`.

    Empty spans are left out. With `min_partitions` the number of tasks is a multiple of it, so that all cores
    end together.
    """
    spans = [span for span in spans if span.length > 0]
    total = sum(span.length for span in spans)
    if not total:
        return []
    if min_partitions is not None:
        rounds = ceil(total / (size * min_partitions))
        size = ceil(total / (rounds * min_partitions))
    least = size if min_partitions is None else max(size, SPLIT_BYTES_LEAST)
    pieces = (piece for span in spans for piece in _pieces(span, least, cut))
    return [(piece,) for piece in pieces] if alone else list(_packed(pieces, size))


def fair_shares(total: int, wanted: Sequence[int], *, least: int) -> list[int]:
    """Divide a total equally, at least `least` for each.

    `wanted` ascends, so what the first leave goes to those behind them.
    """
    shares = []
    for left, most in zip(range(len(wanted), 0, -1), wanted, strict=True):
        shares.append(max(total // left, least))
        total = max(total - min(shares[-1], most), 0)
    return shares


def _pieces(span: Span, size: int, cut: Cut) -> Iterable[Span]:
    start, pieces = span.start, ceil(span.length / size)
    for number in range(1, pieces):
        place = cut(span, span.start + number * span.length // pieces)
        if start < place < span.stop:
            yield attrs.evolve(span, start=start, stop=place)
            start = place
    yield attrs.evolve(span, start=start)


def _packed(pieces: Iterable[Span], size: int) -> Iterable[tuple[Span, ...]]:
    """Put pieces together in order, as many as fit `size`, but at least one."""
    taken: list[Span] = []
    length = 0
    for piece in pieces:
        if taken and length + piece.length > size:
            yield tuple(taken)
            taken, length = [], 0
        taken.append(piece)
        length += piece.length
    if taken:
        yield tuple(taken)
