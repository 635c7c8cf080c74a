"""Reading the logs of a LogMQ server, by OFFSETS, MARKS, SEEK and FETCH; and its groups, by COMMITTED.

The wire does not say which log a name belongs to. So the time of the newest record stands for a log's id. A
topic was made again if it ends before our position, or if a record before our position is newer than that
time. One case is missed: a topic that is made again, and filled beyond our position, within a second of our
last look. The wire does not say either which ranges are unverified. The server does not serve damaged ranges.

Source: logmq/PROTOCOL.md.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import product, zip_longest
from typing import cast

import attrs
import pyarrow as pa
from crc32c import crc32c

from brokers.pipeline.source.link import PIPELINED, Link
from brokers.pipeline.source.options import Reach, Server, TopicChoice
from brokers.pipeline.source.origin import LossPolicy, Origin
from brokers.pipeline.source.spans import Chunk, LogSpot, Span, chunk_groups, sound_chunks
from brokers.pipeline.source.stretch import Asked, Entries, FoundEntries, Need, Stretch, advance_all
from logmq import connector
from logmq.connector import LogmqError, Topic
from shared.errors import BrokerError
from shared.storage import format
from shared.storage.format import EntryFlag, IndexEntry

SAME_MS = 1000
"""How far an entry's time may be off. It is that of its first record; the others may be 200 ms younger. After
a crash a server makes its newest entries again, and they may begin elsewhere."""
_DAMAGE = "STORAGE"


class Served(Origin):
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

    def spots(self, topics: TopicChoice) -> dict[str, LogSpot]:
        if topics.pattern is None:
            asks = [connector.offsets(name) for name in topics.names]
            answers = zip(topics.names, self._link.ask_all(asks), strict=True)
            found = {name: answer for name, answer in answers if not isinstance(answer, LogmqError)}
        else:
            rows = cast(list[Topic], self._link.ask(connector.topics()))
            by_name = {row.name: (row.first, row.end) for row in rows}
            found = {name: by_name[name] for name in topics.matching(by_name)}
        spots = {name: LogSpot(self.source, name, 0, first, end) for name, (first, end) in found.items()}
        filled = [spot for spot in spots.values() if spot.end > spot.first]
        newest = zip(filled, self.entries_at([(spot, spot.end - 1) for spot in filled]), strict=True)
        return spots | {
            spot.name: attrs.evolve(spot, id=entry.first_ms) for spot, entry in newest if entry is not None
        }

    def is_other(self, spot: LogSpot, id_before: int, offset: int) -> bool:
        if offset > spot.end:
            return True
        if not id_before or offset <= spot.first:
            return False
        (entry,) = self.entries_at([(spot, offset - 1)])
        return entry is not None and entry.first_ms > id_before + SAME_MS

    # -- places in a log

    def at_time(self, spot: LogSpot, unix_ms: int) -> int | None:
        (offset,) = self._link.ask(connector.seek(spot.name, unix_ms))
        return None if offset >= spot.end else max(offset, spot.first)

    def entries_at(self, asked: Sequence[tuple[LogSpot, int]]) -> list[IndexEntry | None]:
        answers = self._link.ask_all([connector.marks(spot.name, at, at + 1) for spot, at in asked])
        # Refused: it is damaged, or gone meanwhile.
        return [_entries(found)[-1] if isinstance(found, list) and found else None for found in answers]

    def records(self, spot: LogSpot, start: int, size: int) -> bytes:
        return _bytes_at(start, self._link.ask_all([connector.fetch(spot.name, start, size)])[0])

    def advance(self, stretches: Sequence[Stretch]) -> None:
        for start in range(0, len(stretches), PIPELINED):
            advance_all(stretches[start : start + PIPELINED], self._answers)

    def _answers(self, asked: Sequence[Asked]) -> Iterator[FoundEntries | bytes]:
        answers = self._link.ask_all([_ask(stretch.spot.name, need) for stretch, need in asked])
        for (_, need), answer in zip(asked, answers, strict=True):
            if isinstance(need, Entries):
                yield FoundEntries([] if isinstance(answer, LogmqError) else _entries(answer), need.stop)
            else:
                yield _bytes_at(need.start, answer)

    # -- groups' places

    def committed(self, groups: Sequence[str], topics: Sequence[str]) -> dict[tuple[str, str], int]:
        """Return the positions of these groups, by group and topic. The wire has no list of groups."""
        pairs = list(product(groups, topics))
        answers = self._link.ask_all([connector.committed(group, topic) for group, topic in pairs])
        for answer in answers:
            if isinstance(answer, LogmqError) and answer.code == _DAMAGE:
                raise OSError(f"{self.source}: {answer}")
        return {
            pair: cast(tuple[int], answer)[0]
            for pair, answer in zip(pairs, answers, strict=True)
            if not isinstance(answer, LogmqError)  # the group has no position there
        }

    def commit(self, group: str, places: Mapping[str, int]) -> dict[str, LogmqError]:
        """Commit the positions of a group. Returns what the server refuses, by topic."""
        asks = [connector.commit(group, name, offset) for name, offset in places.items()]
        answers = zip(places, self._link.ask_all(asks), strict=True)
        return {name: answer for name, answer in answers if isinstance(answer, LogmqError)}

    # -- reading

    def chunks(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        yield from self._read(span, policy, list(chunk_groups(self._covered(span, policy))))

    def entries(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        for entries in chunk_groups(self._covered(span, policy)):
            is_told = not any(entry.unverified for entry in entries)
            if is_told and span.start <= entries[0].offset and entries[-1].end <= span.stop:
                yield Chunk(entries[0].offset, b"", entries)
            else:
                yield from self._read(span, policy, [entries])

    def _covered(self, span: Span, policy: LossPolicy) -> Iterator[IndexEntry]:
        """Yield entries for all of the span that is there, and report the rest as lost."""
        ends, marks = self._link.ask_all(
            [connector.offsets(span.topic), connector.marks(span.topic, span.start, span.stop)]
        )
        for answer in (ends, marks):
            if isinstance(answer, LogmqError):
                self._lose(policy, span, span.start, span.stop, answer)
                return
        first, end = ends
        entries = _entries(marks)
        if span.stop > end or (entries and span.log_id and entries[-1].first_ms > span.log_id + SAME_MS):
            self._lose(policy, span, span.start, span.stop, "the topic was deleted and made again")
            return
        if first > span.start:
            self._lose(policy, span, span.start, min(first, span.stop), _dropped(first))
        yield from _covering(entries, first, span)

    def _read(self, span: Span, policy: LossPolicy, groups: Sequence[list[IndexEntry]]) -> Iterator[Chunk]:
        fetched = self.fetched(span.topic, [(entries[0].offset, entries[-1].end) for entries in groups])
        try:
            for entries, data in zip(groups, fetched, strict=True):
                if isinstance(data, LogmqError):
                    yield from self._refused(span, policy, entries, data)
                else:
                    yield from self._checked(span, policy, entries, data)
        finally:
            fetched.close()

    def _refused(
        self, span: Span, policy: LossPolicy, entries: list[IndexEntry], error: LogmqError
    ) -> Iterator[Chunk]:
        """The server refused the bytes of these entries: find out which of them it has."""
        if len(entries) > 1 and error.code in (_DAMAGE, "OUT_OF_RANGE"):
            yield from self._read(span, policy, [[entry] for entry in entries])
            return
        text: str | LogmqError = error
        if error.code == "OUT_OF_RANGE":
            first, _ = self._link.ask(connector.offsets(span.topic))
            text = _dropped(first)
        self._lose(policy, span, entries[0].offset, entries[-1].end, text)

    def _checked(
        self, span: Span, policy: LossPolicy, entries: list[IndexEntry], data: bytes
    ) -> Iterator[Chunk]:
        def fault(entry: IndexEntry, part: memoryview) -> str | None:
            wrong = policy.verify_crc and not entry.unverified and crc32c(part) != entry.crc32c
            return "not the bytes that were written (CRC)" if wrong else None

        base = entries[0].offset
        for number, entry in enumerate(entries):
            if entry.unverified:  # `_covering` made it up, and did not know how many records it covers
                records = format.count_records(data[entry.offset - base : entry.end - base])
                entries[number] = entry._replace(records=records or 0)
        yield from sound_chunks(
            data, entries, fault, lambda entry, text: self._lose(policy, span, entry.offset, entry.end, text)
        )

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

    def _lose(self, policy: LossPolicy, span: Span, start: int, stop: int, why: BrokerError | str) -> None:
        start, stop = max(start, span.start), min(stop, span.stop)
        policy.lose(f"{span.topic} on {span.source}: offsets {start} to {stop} are lost: {why}")


def _covering(entries: Sequence[IndexEntry], first: int, span: Span) -> Iterator[IndexEntry]:
    """Yield entries for every byte of the span that is there.

    Where an entry is missing, or retention has taken a part of it, one is made up and flagged unverified. Its
    records are counted later.
    """
    at, time = max(span.start, first), span.log_id
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
    if at < span.stop:
        yield IndexEntry(at, time, time, span.stop - at, 0, 0, EntryFlag.UNVERIFIED)


def _ask(topic: str, need: Need) -> connector.Ask:
    if isinstance(need, Entries):
        return connector.marks(topic, need.start, need.stop)
    return connector.fetch(topic, need.start, need.size)


def _bytes_at(start: int, answer: tuple[int, bytes] | LogmqError) -> bytes:
    offset, data = (-1, b"") if isinstance(answer, LogmqError) else answer
    return data if offset == start else b""


def _entries(marks: Sequence[connector.Mark]) -> list[IndexEntry]:
    return [
        IndexEntry(mark.offset, mark.unix_ms, mark.unix_ms, mark.length, mark.records, mark.crc32c)
        for mark in marks
    ]


def _dropped(first: int) -> str:
    return f"retention dropped it (the first kept offset is {first})"


def _allocate(length: int) -> memoryview:
    """Allocate memory that is not cleared, because it is overwritten."""
    return memoryview(pa.allocate_buffer(length)).cast("B")
