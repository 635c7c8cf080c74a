"""Reading a span of a log's files: whole index entries, each checked, in chunks of some megabytes.

A running broker may drop old records meanwhile: it makes a hole at the file's head, which reads as zeros,
and then its index entries become zeros too. So bytes that are not what an entry says are no damage yet: then
the journal is asked how things stand now.

An index is derived from its log: where an entry of it is not good, the records that stand there are read all
the same, as unverified ones, if they lead from the good entry before to the one behind.
"""

from collections.abc import Callable, Iterator

from crc32c import crc32c

from brokers.pipeline.source.options import Unverified
from brokers.pipeline.source.origin import LossPolicy
from brokers.pipeline.source.spans import CHUNK_BYTES, Chunk, Span, chunk_of
from shared.storage import format, index
from shared.storage.format import IndexEntry

FirstKept = Callable[[], int | None]
"""A log's first offset as of now, the journal asked too; None where the log is gone."""

_ZERO = bytes(format.LENGTH_BYTES)


class SpanReader:
    """Reads one span, of a log's file that its caller has opened, who knows that it is this log's.

    `bare`: the bytes are of no interest where all of a chunk lies in the span.
    """

    def __init__(
        self, span: Span, read: index.Read, first_kept: FirstKept, policy: LossPolicy, bare: bool
    ) -> None:
        self._span = span
        self._bytes = read
        self._first_kept = first_kept
        self._policy = policy
        self._bare = bare
        self._lost: tuple[int, int, str] | None = None
        """From where to where, and why: told when it is known how far it goes."""

    def chunks(self, marks: Iterator[IndexEntry]) -> Iterator[Chunk]:
        """`marks`: the index's entries that touch the span, in order."""
        position = self._span.start
        taken: list[IndexEntry] = []
        length = 0
        for mark in self._whole(marks):
            if taken and (mark.offset != taken[-1].end or length + mark.length > CHUNK_BYTES):
                yield from self._read(taken)
                taken, length = [], 0
            if mark.offset > position:
                self._gap(position, mark.offset)
            position = mark.end
            if self._wanted(mark):
                taken.append(mark)
                length += mark.length
        if taken:
            yield from self._read(taken)
        if position < self._span.stop:
            self._gap(position, self._span.stop)
        self._tell()

    def _whole(self, marks: Iterator[IndexEntry]) -> Iterator[IndexEntry]:
        """The entries, and new ones where one is not good."""
        position, time_ms = self._span.start, 0
        for mark in marks:
            if mark.offset > position:
                yield from self._made_anew(position, mark.offset, mark.first_ms)
            yield mark
            position, time_ms = mark.end, mark.last_ms
        if position < self._span.stop:
            yield from self._made_anew(position, self._span.stop, time_ms)

    def _made_anew(self, start: int, stop: int, time_ms: int) -> list[IndexEntry]:
        """Entries for the records from `start` to `stop`; none where the length fields do not lead there."""
        first = self._first_kept()
        while first is not None and first < stop:
            begin = max(start, first)
            found, end = index.rebuild(self._bytes, begin, stop, time_ms)
            first = self._first_kept()  # what was dropped meanwhile may have been read as a hole
            if first is not None and first <= begin:
                return found if end == stop else []
        return []

    def _wanted(self, mark: IndexEntry) -> bool:
        if mark.damaged:
            self._lose(mark.offset, mark.end, "the journal lost what stood here")
            return False
        if not mark.unverified or self._policy.unverified is Unverified.READ:
            return True
        if self._policy.unverified is Unverified.FAIL:
            self._lose(mark.offset, mark.end, "unverified: nothing says that these are the bytes written")
        return False

    def _read(self, marks: list[IndexEntry]) -> Iterator[Chunk]:
        base = marks[0].offset
        if self._bare and self._span.start <= base and marks[-1].end <= self._span.stop:
            self._tell()
            yield Chunk(base, b"", marks)
            return
        data = self._bytes(marks[-1].end - base, base)
        good: list[IndexEntry] = []
        for mark in marks:
            text = self._fault(data, mark, base)
            if text is None:
                self._tell()
                good.append(mark)
                continue
            if good:
                yield chunk_of(base, data, good)
                good = []
            self._lose(mark.offset, mark.end, text)
        if good:
            yield chunk_of(base, data, good)

    def _fault(self, data: bytes, mark: IndexEntry, base: int) -> str | None:
        part = memoryview(data)[mark.offset - base : mark.end - base]
        if len(part) < mark.length:
            return "the file is too short"
        if self._policy.verify_crc:
            return None if crc32c(part) == mark.crc32c else "these are not the bytes that were written (CRC)"
        # A hole begins before the entry: zeros, which as records would be empty ones, and more of them.
        if part[: format.LENGTH_BYTES] == _ZERO and format.count_records(bytes(part)) != mark.records:
            return "no records stand here"
        return None

    def _gap(self, start: int, stop: int) -> None:
        self._lose(start, stop, "the index says nothing of what stands here")

    def _lose(self, start: int, stop: int, text: str) -> None:
        """Note what is lost: a range is told once, and the journal asked once, however many its entries."""
        if self._lost is not None:
            before, end, why = self._lost
            if (end, why) == (start, text):
                self._lost = before, stop, text
                return
            self._tell()
        self._lost = start, stop, text

    def _tell(self) -> None:
        """Say what is lost and why: most often it was dropped by retention since the read was planned."""
        if self._lost is None:
            return
        (start, stop, text), self._lost = self._lost, None
        start, stop = max(start, self._span.start), min(stop, self._span.stop)
        first = self._first_kept()
        if first is None:
            text = "the log has been deleted"
        elif start < first:
            gone = min(first, stop)
            self._say(start, gone, f"retention dropped it (the first kept offset is {first})")
            start = gone
        if start < stop:
            self._say(start, stop, text)

    def _say(self, start: int, stop: int, text: str) -> None:
        span = self._span
        self._policy.lose(f"{span.topic} in {span.source}: offsets {start} to {stop} are lost: {text}")
