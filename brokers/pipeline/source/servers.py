"""Reading the logs of a LogMQ server, by OFFSETS, MARKS, SEEK and FETCH.

The wire does not say which log a name belongs to. So the time of the newest record stands for a log's id. A
topic was made again if it ends before our position, or if a record before our position is newer than that
time. One case is missed: a topic that is made again, and filled beyond our position, within a second of our
last look. The wire does not say either which ranges are unverified. The server does not serve damaged ranges.

Source: logmq/PROTOCOL.md.
"""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import cast

import attrs
import pyarrow as pa
from crc32c import crc32c

from brokers.pipeline.source.link import Link
from brokers.pipeline.source.options import Reach, Server, TopicChoice
from brokers.pipeline.source.ranges import LogRange, RecordChunk, chunk_groups, sound_chunks
from brokers.pipeline.source.reader import LossPolicy, SourceReader, dropped, lost
from logmq import connector
from logmq.connector import LogmqError, Topic
from shared.storage import format
from shared.storage.format import EntryFlag, IndexEntry

WINDOW_BYTES = 1 << 20
"""The entries of so many bytes are asked for first. Most batches of many logs end within them."""
WINDOW_BYTES_MAX = 32 << 20
SAME_MS = 1000
"""How far an entry's time may be off. It is that of its first record; the others may be 200 ms younger. After
a crash a server makes its newest entries again, and they may begin elsewhere."""
_DAMAGE = "STORAGE"


class ServerReader(SourceReader):
    """A server, connected when it is first asked.

    Methods raise OSError that names a server which does not answer, and Refusal for a name that no topic has.
    """

    def __init__(self, server: Server, reach: Reach) -> None:
        self.source = str(server)
        self._server = server
        self._reach = reach
        self._link = Link(server, reach)
        self._idle: Link | None = None
        """A connection that has fetched bytes before and is free."""

    def close(self) -> None:
        self._link.close()
        if self._idle is not None:
            self._idle.close()

    # -- which logs

    def logs(self, topics: TopicChoice) -> dict[str, LogRange]:
        if topics.pattern is None:
            asks = [connector.offsets(name) for name in topics.names]
            answers = zip(topics.names, self._link.ask_all(asks), strict=True)
            bounds = {name: answer for name, answer in answers if not isinstance(answer, LogmqError)}
        else:
            rows = cast(list[Topic], self._link.ask(connector.topics()))
            by_name = {row.name: (row.first, row.end) for row in rows}
            bounds = {name: by_name[name] for name in topics.matching(by_name)}
        logs = {name: LogRange(self.source, name, 0, first, end) for name, (first, end) in bounds.items()}
        filled = [log for log in logs.values() if log.length > 0]
        newest = self._link.ask_all([connector.marks(log.topic, log.stop - 1, log.stop) for log in filled])
        return logs | {
            log.topic: attrs.evolve(log, log_id=marks[-1].unix_ms)
            for log, marks in zip(filled, newest, strict=True)
            if isinstance(marks, list) and marks
        }

    def is_other(self, log: LogRange, id_before: int, offset: int) -> bool:
        if offset > log.stop:
            return True
        if not id_before or offset <= log.start:
            return False
        entry = self.entry_at(log, offset - 1)
        return entry is not None and entry.first_ms > id_before + SAME_MS

    # -- places in a log

    def at_time(self, log: LogRange, unix_ms: int) -> int | None:
        (offset,) = self._link.ask(connector.seek(log.topic, unix_ms))
        return None if offset >= log.stop else max(offset, log.start)

    def entry_at(self, log: LogRange, offset: int) -> IndexEntry | None:
        entries = self._entries(log.topic, offset, offset + 1)
        return entries[-1] if entries else None

    def entries_from(self, log: LogRange, start: int) -> Iterator[IndexEntry]:
        window = WINDOW_BYTES
        while start < log.stop:
            stop = min(start + window, log.stop)
            entries = self._entries(log.topic, start, stop)
            yield from entries
            start = max(stop, entries[-1].end if entries else stop)
            window = min(4 * window, WINDOW_BYTES_MAX)

    def _entries(self, topic: str, start: int, stop: int) -> list[IndexEntry]:
        """Return the entries that touch [start, stop); none where it is damaged, or gone meanwhile."""
        (marks,) = self._link.ask_all([connector.marks(topic, start, stop)])
        return [] if isinstance(marks, LogmqError) else _of_marks(marks)

    def records(self, log: LogRange, start: int, size: int) -> bytes:
        (answer,) = self._link.ask_all([connector.fetch(log.topic, start, size)])
        offset, data = (-1, b"") if isinstance(answer, LogmqError) else answer
        return data if offset == start else b""

    # -- reading

    def chunks(self, wanted: LogRange, policy: LossPolicy, *, bare: bool = False) -> Iterator[RecordChunk]:
        groups = chunk_groups(self._covered(wanted, policy))
        if not bare:
            yield from self._read(wanted, policy, list(groups))
            return
        for entries in groups:
            is_told = not any(entry.unverified for entry in entries)
            if is_told and wanted.start <= entries[0].offset and entries[-1].end <= wanted.stop:
                yield RecordChunk(entries[0].offset, b"", entries)
            else:
                yield from self._read(wanted, policy, [entries])

    def _covered(self, wanted: LogRange, policy: LossPolicy) -> Iterator[IndexEntry]:
        """Yield entries for all of the range that is there, and report the rest as lost."""
        start, stop = wanted.start, wanted.stop
        ends, marks = self._link.ask_all(
            [connector.offsets(wanted.topic), connector.marks(wanted.topic, start, stop)]
        )
        for answer in (ends, marks):
            if isinstance(answer, LogmqError):
                policy.lose(lost(wanted, start, stop, answer))
                return
        first, end = ends
        entries = _of_marks(marks)
        if stop > end or (entries and wanted.log_id and entries[-1].first_ms > wanted.log_id + SAME_MS):
            policy.lose(lost(wanted, start, stop, "the topic was deleted and made again"))
            return
        if first > start:
            policy.lose(lost(wanted, start, first, dropped(first)))
        yield from _covering(entries, first, wanted)

    def _read(
        self, wanted: LogRange, policy: LossPolicy, groups: Sequence[list[IndexEntry]]
    ) -> Iterator[RecordChunk]:
        fetched = self.fetched(wanted.topic, [(entries[0].offset, entries[-1].end) for entries in groups])
        try:
            for entries, data in zip(groups, fetched, strict=True):
                if isinstance(data, LogmqError):
                    yield from self._refused(wanted, policy, entries, data)
                else:
                    yield from _checked(wanted, policy, entries, data)
        finally:
            fetched.close()

    def _refused(
        self, wanted: LogRange, policy: LossPolicy, entries: list[IndexEntry], error: LogmqError
    ) -> Iterator[RecordChunk]:
        """The server refused the bytes of these entries: find out which of them it has."""
        if len(entries) > 1 and error.code in (_DAMAGE, "OUT_OF_RANGE"):
            yield from self._read(wanted, policy, [[entry] for entry in entries])
            return
        why: str | LogmqError = error
        if error.code == "OUT_OF_RANGE":
            first, _ = self._link.ask(connector.offsets(wanted.topic))
            why = dropped(first)
        policy.lose(lost(wanted, entries[0].offset, entries[-1].end, why))

    def fetched(
        self, topic: str, ranges: Sequence[tuple[int, int]]
    ) -> Generator[bytes | LogmqError, None, None]:
        """Yield the bytes of each range, or the refusal. The next range is on its way while one is used.

        It has a connection of its own, which is made again if it breaks.
        """
        link, self._idle = self._idle or Link(self._server, self._reach), None

        def ask(at: int, stop: int) -> None:
            if at < stop:
                link.put(connector.fetch(topic, at, stop - at))

        try:
            for start, stop in ranges[:1]:
                ask(start, stop)
            for (start, stop), following in zip_longest(ranges, ranges[1:], fillvalue=(0, 0)):
                parts: list[memoryview] = []
                at = start
                refused: LogmqError | None = None
                while at < stop and refused is None:
                    found = link.take(partial(link.receive_chunk, _allocate))
                    if isinstance(found, LogmqError):
                        refused = found
                    elif found is None or found[0] != at or at + len(found[1]) > stop:
                        refused = LogmqError("NO_TOPIC", f"no records from {at} to {stop}: it was made again")
                    else:
                        parts.append(found[1])
                        at += len(found[1])
                        ask(at, stop)
                ask(*following)
                yield b"".join(parts) if refused is None else refused
            if self._idle is None:  # another `fetched` may have left its connection meanwhile
                self._idle = link
        finally:
            if link is not self._idle:
                link.close()


def _checked(
    wanted: LogRange, policy: LossPolicy, entries: list[IndexEntry], data: bytes
) -> Iterator[RecordChunk]:
    def fault(entry: IndexEntry, part: memoryview) -> str | None:
        wrong = policy.verify_crc and not entry.unverified and crc32c(part) != entry.crc32c
        return "not the bytes that were written (CRC)" if wrong else None

    base = entries[0].offset
    for number, entry in enumerate(entries):
        if entry.unverified:  # `_covering` made it up, and did not know how many records it covers
            records = format.count_records(data[entry.offset - base : entry.end - base])
            entries[number] = entry._replace(records=records or 0)
    yield from sound_chunks(
        data, entries, fault, lambda entry, text: policy.lose(lost(wanted, entry.offset, entry.end, text))
    )


def _covering(entries: Sequence[IndexEntry], first: int, wanted: LogRange) -> Iterator[IndexEntry]:
    """Yield entries for every byte of the range that is there.

    Where an entry is missing, or retention has taken a part of it, one is made up and flagged unverified. Its
    records are counted later.
    """
    at, time = max(wanted.start, first), wanted.log_id
    for entry in entries:
        if entry.end <= first:
            continue
        time = entry.first_ms
        if entry.offset < first:
            entry = entry._replace(offset=first, length=entry.end - first, flags=EntryFlag.UNVERIFIED)
        elif entry.offset > at:
            yield IndexEntry(at, time, time, entry.offset - at, 0, 0, EntryFlag.UNVERIFIED)
        yield entry
        at = entry.end
    if at < wanted.stop:
        yield IndexEntry(at, time, time, wanted.stop - at, 0, 0, EntryFlag.UNVERIFIED)


def _of_marks(marks: Sequence[connector.Mark]) -> list[IndexEntry]:
    return [
        IndexEntry(mark.offset, mark.unix_ms, mark.unix_ms, mark.length, mark.records, mark.crc32c)
        for mark in marks
    ]


def _allocate(length: int) -> memoryview:
    """Allocate memory that is not cleared, because it is overwritten."""
    return memoryview(pa.allocate_buffer(length)).cast("B")
