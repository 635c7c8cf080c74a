"""Logs over TCP: several LogMQ servers, read together by FETCH, MARKS and SEEK.

A topic's name in the pipeline is its own where one of the servers alone has it. `topic@host:port` is that of
one server, which is how the same name on two of them is told apart; the plain name is an error then, since
offsets and rows of two logs must not be mixed up under it. Every server has to answer whenever names are
looked up: one that does not might hold the topic.

The wire does not say which log a name belongs to, so that a topic was deleted and made again is told by time:
its record before our place cannot be newer than the newest one that we had seen there. (A topic that was made
again and filled beyond our place within a second of our last look is taken for the old one, unless the place
is no record's start there.)

Source: logmq/PROTOCOL.md.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import attrs
import pyarrow as pa
from crc32c import crc32c

from brokers.pipeline.source.link import Link, Patience, Reach, Server
from brokers.pipeline.source.logs import Chunk, Damaged, DataLost, Extent, LogMissing, Stretch
from logmq.answers import LineAnswer, LogmqError, Mark, RowsAnswer, Topic, mark_row, topic_row
from shared.errors import BrokerError

SAME_MS = 1000
"""A mark's time is that of its first record: the records behind it may be 200 ms younger, and where a server
has made its newest marks anew after a crash they may begin elsewhere."""


class Ambiguous(BrokerError):
    """A topic's name means logs on several servers."""


@attrs.frozen
class Servers:
    """A place: the addresses of one server or several, and how they are reached."""

    servers: tuple[Server, ...]
    reach: Reach = attrs.field(factory=Reach)

    @contextmanager
    def open(self) -> Iterator["ServerLogs"]:
        logs = ServerLogs(self)
        try:
            yield logs
        finally:
            logs.close()


def parse_servers(text: str) -> tuple[Server, ...]:
    """`host:port,host:port`. Raises ValueError."""
    servers = tuple(Server.parse(each) for each in text.split(",") if each.strip())
    if not servers:
        raise ValueError("names no server; host:port,host:port is expected")
    twice = {str(each) for each in servers if servers.count(each) > 1}
    if twice:
        raise ValueError(f"names {min(twice)} twice")
    return servers


@attrs.frozen
class _Topic:
    """Where a name leads."""

    link: Link
    topic: str

    @property
    def wire(self) -> bytes:
        return self.topic.encode()

    def __str__(self) -> str:
        return f"topic {self.topic} on {self.link.server}"


class ServerLogs:
    """See `brokers.pipeline.source.logs.Logs`."""

    def __init__(self, place: Servers) -> None:
        self._reach = place.reach
        self._links = {str(server): Link(server, place.reach) for server in place.servers}
        self._found: dict[str, _Topic] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    # -- looking things up

    def names(self) -> Sequence[str]:
        where: dict[str, list[str]] = {}
        for server, link in self._links.items():
            rows: list[Topic] = link.ask(b"TOPICS\n", lambda: RowsAnswer(topic_row))
            for row in rows:
                where.setdefault(row.name, []).append(server)
        names = []
        for name, servers in where.items():
            names += [name] if len(servers) == 1 else [f"{name}@{server}" for server in servers]
        return sorted(names)

    def extents(self, names: Iterable[str]) -> Mapping[str, Extent]:
        found = self._offsets(dict.fromkeys(names))
        newest = self._ask(
            [
                (where, b"MARKS %b %d %d\n" % (where.wire, end - 1, end), _marks)
                for where, first, end in found.values()
                if end > first
            ]
        )
        times = {
            (where.link.server, where.topic): marks[-1].unix_ms
            for (where, _, _), marks in zip(
                (each for each in found.values() if each[2] > each[1]), newest, strict=True
            )
            if not isinstance(marks, LogmqError) and marks
        }
        return {
            name: Extent(first, end, str(times.get((where.link.server, where.topic), "")))
            for name, (where, first, end) in found.items()
        }

    def made_again(self, name: str, offset: int, seen: str) -> bool:
        where, first, end = self._one(name)
        if end < offset:
            return True
        if not seen or offset <= first:
            return False
        marks = where.link.ask(b"MARKS %b %d %d\n" % (where.wire, offset - 1, offset), _marks)
        return bool(marks) and marks[-1].unix_ms > int(seen) + SAME_MS

    def seek(self, name: str, unix_ms: int) -> int:
        where, _, _ = self._one(name)
        request = b"SEEK %b %d\n" % (where.wire, max(unix_ms, 0))
        (offset,) = where.link.ask(request, lambda: LineAnswer(b"OK", 1))
        return int(offset)

    def cuts(self, name: str, start: int, stop: int, bytes_each: int) -> Sequence[int]:
        places = range(start + bytes_each, stop, bytes_each)
        if not places:
            return []
        where, _, _ = self._one(name)
        asked = self._ask([(where, b"MARKS %b %d %d\n" % (where.wire, at, at + 1), _marks) for at in places])
        cuts: list[int] = []
        last = start
        for marks in asked:
            if isinstance(marks, LogmqError):
                raise marks
            if marks and last < marks[0].offset < stop:
                last = marks[0].offset
                cuts.append(last)
        return cuts

    # -- reading

    def chunks(self, name: str, start: int, stop: int, bytes_max: int, verify: bool) -> Iterator[Chunk]:
        if start >= stop:
            return
        where, first, marks = self._marks(name, start, stop)
        spans = list(_spans(marks, start, stop, bytes_max, first if verify else None))
        fetched = self._fetched(where, [(begin, end) for begin, end, _ in spans])
        with closing(fetched):
            for (begin, end, those), data in zip(spans, fetched, strict=True):
                if verify:
                    _verify(where, data, begin, those)
                low, high = max(begin, start), min(end, stop)
                times = [Stretch(max(mark.offset, low), mark.unix_ms) for mark in those if mark.offset < high]
                yield Chunk(low, data[low - begin : high - begin], times)

    def _marks(self, name: str, start: int, stop: int) -> tuple[_Topic, int, list[Mark]]:
        where, first, end = self._one(name)
        if start < first:
            raise _overtaken(where, start, first)
        if stop > end:
            raise DataLost(f"{where} ends at {end}, before {stop}: it was deleted and made again")
        marks = where.link.ask(b"MARKS %b %d %d\n" % (where.wire, start, stop), _marks)
        if not marks or marks[0].offset > start:
            raise _overtaken(where, start, self._one(name)[1])
        return where, first, marks

    def _fetched(self, where: _Topic, spans: Sequence[tuple[int, int]]) -> Generator[memoryview, None, None]:
        """The bytes of each span; the next one is on its way while one is used. Raises DataLost, Damaged.

        Over a connection of its own, made again where it breaks.
        """
        link = Link(where.link.server, self._reach)
        patience = Patience(self._reach.retry_seconds)
        asked = False

        def ask(at: int, stop: int) -> None:
            link.send(b"FETCH %b %d %d\n" % (where.wire, at, stop - at))

        try:
            for number, (start, stop) in enumerate(spans, 1):
                parts: list[memoryview] = []
                at = start
                while at < stop:
                    try:
                        if not asked:
                            ask(at, stop)
                        asked = False
                        found = link.receive_chunk(_allocate)
                        whole = isinstance(found, tuple) and at + len(found[1]) == stop
                        if whole and number < len(spans):
                            ask(*spans[number])
                            asked = True
                    except OSError as error:
                        asked = False
                        link.failed(error, patience)
                        continue
                    patience.renew()
                    if isinstance(found, LogmqError):
                        raise self._lost(where, at, found)
                    if found is None or found[0] != at or at + len(found[1]) > stop:
                        text = f"{where} has no records from {at} to {stop}: it was deleted, or made again"
                        raise DataLost(text)
                    parts.append(found[1])
                    at += len(found[1])
                yield parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        finally:
            link.close()

    def _lost(self, where: _Topic, offset: int, refused: LogmqError) -> BrokerError:
        match refused.code:
            case "OUT_OF_RANGE":
                return _overtaken(where, offset, self._first(where))
            case "NO_TOPIC" | "BAD_OFFSET":
                return DataLost(f"{where}, offset {offset}: it was deleted, or made again ({refused})")
            case _:
                return Damaged(f"{where}, offset {offset}: {refused}")

    # -- which server

    def _one(self, name: str) -> tuple[_Topic, int, int]:
        """Where a name leads, its first offset and its end. Raises LogMissing."""
        found = self._offsets([name]).get(name)
        if found is None:
            raise LogMissing(f"there is no topic {name} on {', '.join(self._links)}")
        return found

    def _first(self, where: _Topic) -> int:
        first, _ = where.link.ask(b"OFFSETS %b\n" % where.wire, lambda: LineAnswer(b"OFFSETS", 2))
        return int(first)

    def _offsets(self, names: Iterable[str]) -> dict[str, tuple[_Topic, int, int]]:
        """Where each name leads, with first and end; those that lead nowhere are left out."""
        asked: list[tuple[str, _Topic]] = []
        for name in names:
            known = self._found.get(name)
            asked += [(name, each) for each in ([known] if known else self._candidates(name))]
        answers = self._ask([(where, b"OFFSETS %b\n" % where.wire, _offsets) for _, where in asked])
        found: dict[str, tuple[_Topic, int, int]] = {}
        gone = []
        for (name, where), answer in zip(asked, answers, strict=True):
            if isinstance(answer, LogmqError):
                if answer.code != "NO_TOPIC":
                    raise LogMissing(f"{name}: {answer}")
                if self._found.pop(name, None) is not None:
                    gone.append(name)  # it may be on another one now
            elif name in found:
                here, there = found[name][0].link.server, where.link.server
                raise Ambiguous(
                    f"topic {name} is on {here} and on {there}: ask for {name}@{here} or {name}@{there}"
                )
            else:
                found[name] = (where, *answer)
        self._found.update((name, where) for name, (where, _, _) in found.items())
        return found | (self._offsets(gone) if gone else {})

    def _candidates(self, name: str) -> list[_Topic]:
        topic, at, server = name.partition("@")
        if not at:
            return [_Topic(link, topic) for link in self._links.values()]
        link = self._links.get(server)
        if link is None:
            raise LogMissing(
                f"{name}: {server} is not one of the servers, which are {', '.join(self._links)}"
            )
        return [_Topic(link, topic)]

    def _ask(self, asks: Sequence[tuple[_Topic, bytes, Any]]) -> list[Any]:
        """Answers in the order of what is asked, each server's pipelined."""
        places: dict[str, list[int]] = {}
        for place, (where, _, _) in enumerate(asks):
            places.setdefault(str(where.link.server), []).append(place)
        answers: list[Any] = [None] * len(asks)
        for server, those in places.items():
            results = self._links[server].ask_all([asks[place][1:] for place in those])
            for place, result in zip(those, results, strict=True):
                answers[place] = result
        return answers


def _marks() -> RowsAnswer:
    return RowsAnswer(mark_row)


def _offsets() -> LineAnswer:
    return LineAnswer(b"OFFSETS", 2)


def _spans(
    marks: Sequence[Mark], start: int, stop: int, bytes_max: int, verifiable_from: int | None
) -> Iterator[tuple[int, int, Sequence[Mark]]]:
    """What is fetched at once: from, to, and the marks in it; together they hold [start, stop).

    Cut at marks. `verifiable_from`: the first offset that is there, where the marks at both ends are wanted
    whole for their CRCs; None where only [start, stop) is.
    """
    at = start if verifiable_from is None else marks[0].offset
    if verifiable_from is not None and at < verifiable_from:
        at = start
    those: list[Mark] = []
    end = at
    for mark in marks:
        following = mark.offset + mark.length
        if verifiable_from is None:
            following = min(following, stop)
        if those and following - at > bytes_max:
            yield at, end, those
            at, those = end, []
        those.append(mark)
        end = following
    if end < stop:  # newer than the newest mark
        end = stop
    yield at, end, those


def _verify(where: _Topic, data: memoryview, offset: int, marks: Sequence[Mark]) -> None:
    for mark in marks:
        low = mark.offset - offset
        if low >= 0 and crc32c(data[low : low + mark.length]) != mark.crc32c:
            raise Damaged(
                f"{where}: the {mark.length} bytes from offset {mark.offset} on do not match their CRC; "
                "see brokers log verify"
            )


def _overtaken(where: _Topic, offset: int, first: int) -> DataLost:
    text = f"{where}: retention has dropped what was to be read, from {offset} up to {first}, the first kept"
    return DataLost(text, max(first, offset))


def _allocate(length: int) -> memoryview:
    """Room that is not cleared first: it is overwritten anyway."""
    return memoryview(pa.allocate_buffer(length)).cast("B")
