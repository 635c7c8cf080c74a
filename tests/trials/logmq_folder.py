"""A data folder under a LogMQ load.

After a cut and a recovery the server is asked for everything, and the files are read. Both are compared with
the book.
"""

import math
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from tests.trials import plain_reader
from tests.trials.folder import Adapter, DialogError, HasMode, Verification, durability
from tests.trials.logmq_judge import Found, judge, settle
from tests.trials.logmq_ledger import Book, Write
from tests.trials.logmq_load import KEPT, RETENTION_BYTES, LogmqLoad, batch_request
from tests.trials.tally import Verdict

_FETCH_BYTES = 8 << 20
_SECONDS = 30.0
COPY = "copy-"
"""How the topics begin that bridges write to."""
COPY_BYTES = 20_000
_REPEATED_MAX = 60
"""Batches sent again for each writer: fewer than the broker remembers."""

Snapshot = Mapping[str, Found]


@attrs.define(eq=False)
class LogmqAdapter(Adapter):
    """Topics with one writer or several, groups, BATCHes sent again, and a retention."""

    protocol = "logmq"
    book: Book = attrs.field(factory=Book, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """Topics whose name begins with a mode's have that mode."""
        lines = ["[logmq]", f'durability = "{durability(modes[0])}"']
        for mode in modes:
            lines += [f'[logmq.topics."{mode}-{KEPT}"]', f'durability = "{durability(mode)}"']
            lines += [f"retention_bytes = {RETENTION_BYTES}"]
            lines += [f'[logmq.topics."{mode}-*"]', f'durability = "{durability(mode)}"']
        # What a bridge writes shares commits with topics of other modes, and drops its front.
        lines += [f'[logmq.topics."{COPY}*"]', f"retention_bytes = {COPY_BYTES}"]
        for mode in _carried(modes):
            lines += ["[[bridge]]", f'name = "{mode}"', 'start = "first"']
            lines += [f'from = "logmq:{_source_of(mode)}"', f'to = "logmq:{COPY}{mode}"']
        return lines

    def load(self) -> LogmqLoad:
        return LogmqLoad(self.address, self.book, self.modes, self.source)

    def promised_records(self, until: float) -> int:
        return sum(
            operation.count
            for ledger in self.book.ledgers.values()
            for operation in ledger.operations
            if isinstance(operation, Write) and operation.promised(until)
        )

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        return verify(self.address, self.server.data, self.book, promised_until)

    def look(self) -> Snapshot:
        with Dialog(self.address) as dialog:
            return take(dialog, self.book)

    def same(self, name: str, before: Snapshot, now: Snapshot) -> bool:
        old, new = before.get(name), now.get(name)
        if old is not None and new is not None and self.book.ledgers[name].kept_bytes is not None:
            shorter = max(new.first - old.first, 0)  # retention goes on
            old = attrs.evolve(old, first=old.first + shorter, data=old.data[shorter:])
        return old == new


def _carried(modes: Sequence[str]) -> list[str]:
    """Of a topic in mode `none` a power cut may take what a bridge has carried."""
    return [mode for mode in modes if mode != "none"]


def _source_of(mode: str) -> str:
    return f"{mode}-shared-0"


class OutOfRangeError(DialogError):
    """It lies below the first kept offset."""


class Dialog:
    """One connection, one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=_SECONDS)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "Dialog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, request: bytes) -> bytes:
        """The first line of the answer, without its end."""
        self._socket.sendall(request)
        return self.line()

    def line(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise DialogError(f"the connection ended within {line[:80]!r}")
        return line[:-1]

    def exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise DialogError(f"the connection ended {size - len(data)} bytes early")
        return data

    def topics(self) -> dict[str, tuple[int, int]]:
        """First and end of every topic."""
        topics = {}
        line = self.ask(b"TOPICS\n")
        while line != b"END":
            word, name, first, end = line.split(b" ")
            if word != b"TOPIC":
                raise DialogError(f"TOPICS: {line[:80]!r}")
            topics[name.decode()] = int(first), int(end)
            line = self.line()
        return topics

    def first(self, topic: str) -> int:
        """The first kept offset."""
        line = self.ask(b"OFFSETS %s\n" % topic.encode())
        if not line.startswith(b"OFFSETS "):
            raise DialogError(f"OFFSETS {topic}: {line[:80]!r}")
        return int(line.split(b" ")[1])

    def records(self, topic: str, first: int, end: int) -> bytes:
        """The log from `first` to `end`, by FETCH."""
        parts = []
        at = first
        while at < end:
            line = self.ask(b"FETCH %s %d %d\n" % (topic.encode(), at, _FETCH_BYTES))
            word, *fields = line.split(b" ")
            if line.startswith(b"ERR OUT_OF_RANGE "):
                raise OutOfRangeError(f"FETCH {topic} {at}: {line[:80]!r}")
            if word != b"CHUNK":
                raise DialogError(f"FETCH {topic} {at}: {line[:80]!r}")
            offset, length, after = map(int, fields)
            parts.append(self.exactly(length))
            if offset != at or after != at + length or not length:
                raise DialogError(f"FETCH {topic} {at}: {line!r}")
            at = after
        line = self.ask(b"FETCH %s %d 1\n" % (topic.encode(), end))
        if line != b"EOF":
            raise DialogError(f"FETCH {topic} {end}, its end: {line[:80]!r}")
        return b"".join(parts)

    def whole(self, topic: str) -> tuple[int, bytes]:
        """The first kept offset, and all records up to the end, while others write and retention drops."""
        first = at = self.first(topic)
        data = b""
        while (line := self.ask(b"FETCH %s %d %d\n" % (topic.encode(), at, _FETCH_BYTES))) != b"EOF":
            word, *fields = line.split(b" ")
            if line.startswith(b"ERR OUT_OF_RANGE "):
                first = at = self.first(topic)
                data = b""
                continue
            if word != b"CHUNK":
                raise DialogError(f"FETCH {topic} {at}: {line[:80]!r}")
            data += self.exactly(int(fields[1]))
            at = int(fields[2])
        return first, data

    def committed(self, group: str, topic: str) -> int | None:
        line = self.ask(b"COMMITTED %s %s\n" % (group.encode(), topic.encode()))
        if line.startswith((b"ERR NO_COMMIT ", b"ERR NO_TOPIC ")):
            return None
        word, value = line.split(b" ", 1)
        if word != b"OK":
            raise DialogError(f"COMMITTED {group} {topic}: {line[:80]!r}")
        return int(value)

    def consume(self, topic: str, offset: int) -> bytes:
        line = self.ask(b"CONSUME %s %d\n" % (topic.encode(), offset))
        word, at, length, start = line.split(b" ", 3)
        if word != b"MESSAGE" or int(at) != offset:
            raise DialogError(f"CONSUME {topic} {offset}: {line[:80]!r}")
        rest = start + b"\n"  # a payload may hold line ends
        missing = int(length) + 1 - len(rest)
        rest += self.exactly(missing) if missing > 0 else b""
        if len(rest) != int(length) + 1:
            raise DialogError(
                f"CONSUME {topic} {offset}: a payload of {len(rest) - 1} bytes, not {int(length)}"
            )
        return rest[:-1]

    def marks(self, topic: str, first: int, end: int) -> list[plain_reader.Entry]:
        entries = []
        line = self.ask(b"MARKS %s %d %d\n" % (topic.encode(), first, end))
        while line != b"END":
            word, *fields = line.split(b" ")
            if word != b"MARK":
                raise DialogError(f"MARKS {topic}: {line[:80]!r}")
            offset, length, records, crc, _ = map(int, fields)
            entries.append(plain_reader.Entry(offset, length, records, crc))
            line = self.line()
        return entries


def take(dialog: Dialog, book: Book, names: Sequence[str] | None = None) -> dict[str, Found]:
    """Everything that the server shows, of all topics or of those named."""
    found = {}
    for name, (first, end) in dialog.topics().items():
        if name.startswith(COPY) or (names is not None and name not in names):
            continue
        ledger = book.ledgers.get(name)
        groups = sorted(ledger.groups) if ledger is not None else []
        commits = {group: dialog.committed(group, name) for group in groups}
        committed = {group: offset for group, offset in commits.items() if offset is not None}
        if ledger is not None and ledger.kept_bytes is not None:
            found[name] = Found(*_take_shrinking(dialog, name, first, end), committed)
        else:
            found[name] = Found(first, dialog.records(name, first, end), committed)
    return found


def _take_shrinking(dialog: Dialog, name: str, first: int, end: int) -> tuple[int, bytes]:
    """The records of a topic that retention works on meanwhile, from the first one kept."""
    while True:
        try:
            return first, dialog.records(name, first, end)
        except OutOfRangeError:
            first = dialog.first(name)


def verify(
    address: tuple[str, int],
    folder: Path,
    book: Book,
    promised_until: Callable[[HasMode], float] = lambda ledger: math.inf,
) -> Verification:
    """Compare; then, as a client would, send every BATCH again whose fate it does not know, and compare that.

    Afterwards the book begins a new page. `promised_until` is `judge`'s, by topic.
    """
    with Dialog(address) as dialog:
        found = take(dialog, book)
        verdict, verdicts = Verdict(), dict[str, Verdict]()
        again: dict[str, list[Write]] = {}
        for name, ledger in book.ledgers.items():
            one = judge(ledger, found.get(name), promised_until(ledger))
            verdict.add(one)
            verdicts.setdefault(ledger.mode, Verdict()).add(one)
            samples = [write for write in ledger.operations if isinstance(write, Write)]
            again[name] = settle(ledger, found.get(name), one.life)
            if not one.faults and name in found and ledger.kept_bytes is None:
                verdict.faults += _ask_in_other_words(dialog, name, found[name], samples)
        verdict.faults += [f"{name}: a topic that nobody made" for name in found if name not in book.ledgers]
        verdict.faults += _compare_files(dialog, folder, found)
        verdict.faults += _compare_copies(dialog, found)
        result = Verification(verdict, verdicts, found)
        if not verdict.faults:
            _send_again(dialog, book, again, result)
        return result


def _ask_in_other_words(dialog: Dialog, name: str, found: Found, writes: Sequence[Write]) -> list[str]:
    """CONSUME and MARKS say the same as FETCH."""
    faults = []
    placed = [
        write for write in writes if write.stands is not None and found.first <= write.stands < found.end
    ]
    for write in {id(one): one for one in (*placed[:1], *placed[-1:])}.values():
        assert write.stands is not None
        size = int.from_bytes(write.records[:4], "big")
        if dialog.consume(name, write.stands) != write.records[4 : 4 + size]:
            faults.append(f"{name}: CONSUME {write.stands} gives other bytes than FETCH")
    marks = dialog.marks(name, found.first, found.end)
    said = plain_reader.index_faults(marks, found.first, found.data, start=found.first)
    return faults + [f"{name}: MARKS: {fault}" for fault in said]


def _compare_files(dialog: Dialog, folder: Path, found: Snapshot) -> list[str]:
    faults = []
    for name, topic in found.items():
        try:
            entries = plain_reader.index_entries(folder, name)
        except (OSError, ValueError) as error:
            faults.append(f"{name}: {error}")
            continue
        data = plain_reader.log_bytes(folder, name)
        first = dialog.first(name)  # asked last: retention may have moved it, and made a hole below it
        kept = topic.data[first - topic.first :]
        if data is None or first < topic.first or data[first:] != kept:
            size = "no file" if data is None else f"{len(data)} bytes"
            faults.append(f"{name}: the file ({size}) is not what the server shows ({topic.end} bytes)")
        else:
            faults += [
                f"{name}: {fault}" for fault in plain_reader.index_faults(entries, first, data, start=0)
            ]
    strays = plain_reader.topics_with_files(folder) - set(found)
    return faults + [
        f"{name}: a log file, though there is no such topic"
        for name in sorted(strays)
        if not name.startswith(COPY)
    ]


def _compare_copies(dialog: Dialog, found: Snapshot) -> list[str]:
    """What a bridge has carried is there once, in order, and so at the offsets that it had."""
    faults = []
    for name in dialog.topics():
        if name.startswith(COPY):
            first, data = dialog.whole(name)
            source = found.get(_source_of(name.removeprefix(COPY)), Found())
            if source.data[first - source.first :][: len(data)] != data:
                faults.append(f"{name}: from {first} on it is not what its topic is, up to {source.end}")
    return faults


def _send_again(dialog: Dialog, book: Book, again: Mapping[str, list[Write]], result: Verification) -> None:
    verdict = result.verdict
    for name, writes in again.items():
        ledger = book.ledgers[name]
        for write in _newest(writes):
            result.repeated += 1
            line = dialog.ask(batch_request(name, write))
            word, _, value = line.partition(b" ")
            if word != b"OK":
                verdict.faults.append(f"{name}: batch {write.batch} sent again: {line[:80]!r}")
            elif write.stands is None:
                now = time.monotonic()
                ledger.operations.append(
                    attrs.evolve(
                        write,
                        queued=now,
                        answered=now,
                        refused="",  # by the server that was cut off
                        offset=int(value),
                        batch=None,
                        stands=None,
                    )
                )
            elif int(value) != write.stands:
                verdict.faults.append(
                    f"{name}: batch {write.batch} at {write.stands}, sent again at {value!r}"
                )
    changed = [name for name, ledger in book.ledgers.items() if ledger.operations]
    found = take(dialog, book, changed)
    for name in changed:
        ledger = book.ledgers[name]
        one = judge(ledger, found.get(name))
        one.kept = 0  # counted when they were first acknowledged, or not at all
        verdict.faults += [f"after batches were sent again: {fault}" for fault in one.faults]
        settle(ledger, found.get(name), one.life)
    result.snapshot = {**result.snapshot, **found}


def _newest(writes: Sequence[Write]) -> list[Write]:
    """Of each writer the last batches, in the order in which they were sent."""
    by_writer: dict[str, list[Write]] = {}
    for write in writes:
        by_writer.setdefault(write.writer, []).append(write)
    return [write for those in by_writer.values() for write in those[-_REPEATED_MAX:]]
