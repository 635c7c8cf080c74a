"""A data folder under a LogMQ load.

After a cut and a recovery the server is asked for everything, and the files are read. Both are compared with
what the model allows.
"""

import math
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from brokers.commands import control
from tests.support.promises import BrokenPromiseError
from tests.trials import plain_reader
from tests.trials.folder import Adapter, DialogError, HasMode, Verification, durability
from tests.trials.logmq_load import KEPT, RETENTION_BYTES, Book, LogmqLoad
from tests.trials.logmq_model import LENGTH_BYTES, Message, Record, Topic, split
from tests.trials.tally import Verdict

_FETCH_BYTES = 8 << 20
_SECONDS = 30.0
COPY = "copy-"
"""How the topics begin that bridges write to."""
COPY_BYTES = 20_000
_REPEATED_MAX = 60
"""Batches sent again for each writer: fewer than the broker remembers."""


@attrs.frozen
class Found:
    """A topic as it is after recovery: its records from offset `first` to `end`, and its groups' offsets."""

    first: int = 0
    data: bytes = b""
    commits: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def end(self) -> int:
        return self.first + len(self.data)


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
        model, page = self.book.model, self.book.page
        messages = (each for topic in model.topics.values() for each in topic.messages.values())
        return sum(
            each.acked and each.first_begun > page and each.known_seconds <= until for each in messages
        )

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        return verify(self.address, self.server.data, self.book, promised_until)

    def look(self) -> Snapshot:
        with Dialog(self.address) as dialog:
            return take(dialog, self.book)

    def same(self, name: str, before: Snapshot, now: Snapshot) -> bool:
        old, new = before.get(name), now.get(name)
        if old is not None and new is not None and self.book.model.topic(name).kept_bytes is not None:
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
        groups = sorted(group for topic, group in book.groups if topic == name)
        commits = {group: dialog.committed(group, name) for group in groups}
        committed = {group: offset for group, offset in commits.items() if offset is not None}
        if book.model.topic(name).kept_bytes is not None:
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
    promised_until: Callable[[HasMode], float] = lambda topic: math.inf,
) -> Verification:
    """Compare; then, as a client would, send every BATCH again whose fate it does not know, and compare that.

    Afterwards the book begins a new page. `promised_until`: when what was acknowledged was safe, by mode.
    """
    model = book.model
    for topic in model.topics.values():
        model.machine_ended({topic.mode: promised_until(topic)})
    with Dialog(address) as dialog:
        begun = model.read()
        found = take(dialog, book)
        verdict, verdicts = Verdict(), dict[str, Verdict]()
        verdict.faults += [f"{name}: a topic that nobody made" for name in found if name not in model.topics]
        for name, topic in list(model.topics.items()):
            one = verdicts.setdefault(topic.mode, Verdict())
            there = found.get(name, Found())
            before = len(model.lost)
            verdict.faults += _saw(book, topic, there, begun, exists=name in found)
            _count(book, topic, model.lost[before:], one)
            if name in found and topic.kept_bytes is None:
                verdict.faults += _ask_in_other_words(dialog, name, there)
        for one in verdicts.values():
            verdict.add(one)
        verdict.faults += _compare_files(dialog, folder, found)
        verdict.faults += _compare_copies(dialog, found)
        model.restarted()
        result = Verification(verdict, verdicts, found)
        if not verdict.faults:
            _send_again(dialog, book, result)
            found = dict(result.snapshot)
    model.settle({name: topic.commits for name, topic in found.items()})
    model.lost.clear()
    book.batches.clear()
    book.there = set(found)
    book.page = model.read()
    return result


def _saw(book: Book, topic: Topic, there: Found, begun: int, *, exists: bool) -> list[str]:
    """What is wrong with a topic: the first fault that is found."""
    model = book.model
    lossy = not model.is_safe(topic)
    try:
        model.saw_all(topic.name, _records(topic.name, there), begun, there.first)
        stayed = topic.name in book.there and not any(deletion.acked for deletion in topic.deletions)
        begun_only = any(message.ended == math.inf for message in topic.messages.values())
        if exists and not (there.end or lossy or stayed or begun_only):
            raise BrokenPromiseError(f"{topic.name} is there, and nobody ever wrote to it")
        for name, group in book.groups:
            offset = there.commits.get(group)
            if name == topic.name and (not lossy or topic.mode == "always"):
                model.saw_committed(group, name, offset, begun)
            if name == topic.name and offset is not None and offset > there.end:
                raise BrokenPromiseError(f"group {group} is at {offset} of {name}, past its end {there.end}")
    except BrokenPromiseError as error:
        return [str(error)]
    return []


def _records(name: str, there: Found) -> list[Record]:
    records = split(there.data, there.first)
    if records is None:
        raise BrokenPromiseError(f"{name} ends within a record")
    return records


def _count(book: Book, topic: Topic, lost: Sequence[Message], verdict: Verdict) -> None:
    """What of this page has stood, and what was allowed to go."""
    verdict.lost += len(lost)
    verdict.oldest_lost = min([verdict.oldest_lost, *(message.known_seconds for message in lost)])
    gone = set(map(id, lost))
    for message in topic.messages.values():
        if message.first_begun > book.page and id(message) not in gone:
            there = message.payload in topic.there
            verdict.kept += message.acked and (there or message.lost)
            verdict.extra += there and not message.acked
            if there:
                verdict.newest_kept = max(verdict.newest_kept, book.ticks.time_of(message.first_begun))
    verdict.deletes += sum(deletion.acked for deletion in topic.deletions)
    verdict.commits += sum(
        each.known_seconds > -math.inf and each.ended < math.inf
        for commitments in topic.commitments.values()
        for each in commitments
    )


def _ask_in_other_words(dialog: Dialog, name: str, found: Found) -> list[str]:
    """CONSUME and MARKS say the same as FETCH."""
    faults = []
    records = split(found.data, found.first) or []
    for offset, payload in [*records[:1], *records[-1:]]:
        if dialog.consume(name, offset) != payload:
            faults.append(f"{name}: CONSUME {offset} gives other bytes than FETCH")
    marks = dialog.marks(name, found.first, found.end)
    said = plain_reader.index_faults(marks, found.first, found.data, start=found.first)
    return faults + [f"{name}: MARKS: {fault}" for fault in said]


def _left_bytes(folder: Path, name: str) -> int:
    """So much of a topic is in the bucket only."""
    (row,) = (row for row in control.socket_client(folder).rows("topics") if row["name"] == name)
    return int(row["bytes"] - row["local_bytes"])


def _compare_files(dialog: Dialog, folder: Path, found: Snapshot) -> list[str]:
    faults = []
    for name, topic in found.items():
        try:
            entries = plain_reader.index_entries(folder, name)
        except (OSError, ValueError) as error:
            faults.append(f"{name}: {error}")
            continue
        data = plain_reader.log_bytes(folder, name)
        # Asked last: retention may have moved it, and made a hole below it. What is in the bucket only, too.
        first = dialog.first(name) + _left_bytes(folder, name)
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


def _send_again(dialog: Dialog, book: Book, result: Verification) -> None:
    """Of each writer the last batches, in the order in which they were sent."""
    model, faults, wire = book.model, result.verdict.faults, book.new_wire()
    for batches in book.batches.values():
        for batch in batches[-_REPEATED_MAX:]:
            result.repeated += 1
            for message in batch.messages:
                model.send_again(message, wire)
            line = dialog.ask(batch.request)
            word, _, value = line.partition(b" ")
            if word != b"OK":
                faults.append(f"{batch.topic}: batch {batch.seq} sent again: {line[:80]!r}")
                continue
            offset = int(value)
            try:
                for message in batch.messages:
                    model.acked(message, offset)
                    offset += LENGTH_BYTES + len(message.payload)
            except BrokenPromiseError as error:
                faults.append(f"after batches were sent again: {error}")
    changed = list({name for name, _ in book.batches})
    begun = model.read()
    found = take(dialog, book, changed)
    for name in changed:
        told = _saw(book, model.topic(name), found.get(name, Found()), begun, exists=name in found)
        faults += [f"after batches were sent again: {fault}" for fault in told]
    result.snapshot = {**result.snapshot, **found}
