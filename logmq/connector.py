"""LogMQ's wire for clients: requests as bytes, and objects that parse their answers. No I/O.

Other packages use only this module of LogMQ; so does Spark's data source.

Each request has an `Answer` that knows the shape of its answer. `take` gets the bytes received so far, and
where the answer begins. It returns where the answer ends, or -1 if it is incomplete.

Source: PROTOCOL.md, "Requests" and "Replies".
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import attrs

from logmq.runs import HEADER_BYTES
from logmq.wire import NAME_BYTES_MAX as NAME_BYTES_MAX
from logmq.wire import NUMBER_MAX
from logmq.wire import SKIPPED_BODY_BYTES_MAX as SKIPPED_BODY_BYTES_MAX
from logmq.wire import Refusal as Refusal
from logmq.wire import name_untrusted as name_untrusted
from logmq.wire import topic_untrusted as topic_untrusted
from shared.errors import EXIT_MISSING, BrokerError, RemoteProtocolError

if TYPE_CHECKING:
    from shared.client.login import Login

LINE_BYTES_MAX = 64 * 1024
"""Bytes of any line but MESSAGE: the longest, HELP's, is below 1 KiB."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a chunk or message: the protocol's own limit."""

Buffer = bytes | bytearray


@attrs.define(eq=False)
class LogmqError(BrokerError):
    """The server refused a request. `code`: SYNTAX, NO_TOPIC, ...; see PROTOCOL.md."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class NoTopic(LogmqError):
    """The topic does not exist, or no longer."""

    exit_code = EXIT_MISSING


@attrs.frozen
class Record:
    """One message and its offset. `next_offset`: that of the next message."""

    offset: int
    payload: bytes = attrs.field(repr=lambda payload: f"<{len(payload)} bytes>")

    @property
    def next_offset(self) -> int:
        return self.offset + HEADER_BYTES + len(self.payload)


@attrs.frozen
class Topic:
    """A row of TOPICS, or the answer to OFFSETS: the first kept offset, and the visible end."""

    name: str
    first: int
    end: int


@attrs.frozen
class Mark:
    """A row of MARKS. `crc32c`: of the raw log bytes; `unix_ms`: when the first record was written."""

    offset: int
    length: int
    records: int
    crc32c: int
    unix_ms: int


class Ask(NamedTuple):
    """A request, and a factory for its answer object."""

    request: bytes
    answer: "Callable[[], Answer]"


# These raise Refusal for a name that no server accepts.


def offsets(topic: str) -> Ask:
    """The result: the first kept offset and the end."""
    return Ask(_line_of("OFFSETS", checked_name(topic)), lambda: LineAnswer(b"OFFSETS", 2))


def topics() -> Ask:
    """The result: a `Topic` each, by name."""
    return Ask(b"TOPICS\n", lambda: RowsAnswer(topic_row))


def marks(topic: str, start: int, stop: int) -> Ask:
    """The result: a `Mark` each, those that touch [start, stop)."""
    return Ask(_line_of("MARKS", checked_name(topic), start, stop), lambda: RowsAnswer(mark_row))


def seek(topic: str, unix_ms: int) -> Ask:
    """The result: the offset, in a tuple."""
    return Ask(_line_of("SEEK", checked_name(topic), unix_ms), _ok)


def consume(topic: str, offset: int) -> Ask:
    """The result: a Record; None at or past the end."""
    return Ask(_line_of("CONSUME", checked_name(topic), offset), RecordAnswer)


def fetch(topic: str, offset: int, bytes_max: int, wait_ms: int | None = None) -> Ask:
    """The result: the offset of the bytes, and the bytes; none at the end."""
    wait = () if wait_ms is None else (wait_ms,)
    return Ask(_line_of("FETCH", checked_name(topic), offset, bytes_max, *wait), lambda: ChunkAnswer(offset))


def append(topic: str, message: bytes) -> Ask:
    """The result: the offset, in a tuple."""
    return Ask(_line_of("APPEND", checked_name(topic), len(message)) + message, _ok)


def batch(topic: str, writer: str, seq: int, length: int) -> Ask:
    """The line before `length` bytes of records. The result: the offset of the first, in a tuple."""
    return Ask(_line_of("BATCH", checked_name(topic), checked_name(writer), seq, length), _ok)


def commit(group: str, topic: str, offset: int) -> Ask:
    """The result: the offset, in a tuple."""
    return Ask(_line_of("COMMIT", checked_name(group), checked_name(topic), offset), _ok)


def committed(group: str, topic: str) -> Ask:
    """The result: the offset, in a tuple."""
    return Ask(_line_of("COMMITTED", checked_name(group), checked_name(topic)), _ok)


def delete(topic: str) -> Ask:
    return Ask(_line_of("DELETE", checked_name(topic)), lambda: LineAnswer(b"OK", 0))


def auth(login: "Login") -> bytes:
    """The line that logs in. Raises ValueError, whose text shows no password."""
    name, password = login.user.encode(), login.secret.encode()
    if not name or b" " in name or b"\n" in name + password or not password:
        raise ValueError("LogMQ takes a user's name without spaces, and a password of one line")
    return b"AUTH %b %b\n" % (name, password)


def check_logged_in(line: bytes, login: "Login") -> None:
    """The answer to `auth`. Raises LogmqError, and RemoteProtocolError; neither shows the password."""
    refused = _refused(line)
    if refused is None and line != b"OK":
        raise RemoteProtocolError("the server's answer to a login is not LogMQ's")
    if refused is not None:  # its text may contain what the server was sent
        text = refused.text if refused.code == "DENIED" else "the server takes no logins"
        raise LogmqError(refused.code, login.hide(f"login as {login.user}: {text}"))


def ping() -> Ask:
    return Ask(b"PING\n", lambda: LineAnswer(b"PONG", 0))


def _line_of(word: str, *fields: object) -> bytes:
    return " ".join([word, *map(str, fields)]).encode() + b"\n"


def checked_name(name: str) -> str:
    """A name of a topic, group or writer that may be in a request. Raises Refusal, and TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"topics and groups are named by text, not by {type(name).__name__}")
    return topic_untrusted(name.encode())


def _ok() -> "LineAnswer":
    return LineAnswer(b"OK", 1)


class Answer:
    """An answer to come. `on_done` is called once `error` or `result` is set."""

    __slots__ = ("done", "error", "on_done", "result")

    def __init__(self) -> None:
        self.done = False
        self.result: object = None
        self.error: BrokerError | None = None
        self.on_done: Callable[[], None] | None = None

    def take(self, data: Buffer, at: int) -> int:
        raise NotImplementedError

    def fail(self, error: BrokerError) -> None:
        """End the wait for an answer that will not come."""
        self.error = error
        self._finish()

    def outcome(self) -> object:
        """The result of an answer that is done. Raises its error."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.result

    def _finish(self) -> None:
        self.done = True
        if self.on_done is not None:
            self.on_done()


class LineAnswer(Answer):
    """One line, beginning with `word`, then numbers; the result is a tuple of them."""

    __slots__ = ("_numbers", "_word")

    def __init__(self, word: bytes, numbers: int) -> None:
        super().__init__()
        self._word = word
        self._numbers = numbers

    def take(self, data: Buffer, at: int) -> int:
        line, end = _line(data, at)
        if line is None:
            return -1
        self.error = _refused(line)
        if self.error is None:
            self.result = _fields(line, self._word, self._numbers)
        self._finish()
        return end


class LoginAnswer(Answer):
    """The answer to `auth`. No error of it shows the password."""

    __slots__ = ("_login",)

    def __init__(self, login: "Login") -> None:
        super().__init__()
        self._login = login

    def take(self, data: Buffer, at: int) -> int:
        end = data.find(b"\n", at)
        if end < 0 and len(data) - at <= LINE_BYTES_MAX:
            return -1
        try:
            check_logged_in(bytes(data[at : end if end >= 0 else len(data)]), self._login)
        except LogmqError as error:
            self.error = error
        self._finish()
        return end + 1


class OffsetsAnswer(Answer):
    """`OK <offset>` for each of `count` consecutive requests; a refused one has its LogmqError instead."""

    __slots__ = ("_missing", "offsets")

    def __init__(self, count: int) -> None:
        super().__init__()
        self._missing = count
        self.offsets: list[int | LogmqError] = []
        self.result = self.offsets

    def take(self, data: Buffer, at: int) -> int:
        while self._missing:
            line, end = _line(data, at)
            if line is None:
                return at if at else -1
            at = end
            refused = _refused(line)
            self.offsets.append(_fields(line, b"OK", 1)[0] if refused is None else refused)
            self._missing -= 1
        self._finish()
        return at


class RecordAnswer(Answer):
    """`MESSAGE ...` or `EOF`; the result is a Record or None."""

    __slots__ = ()

    def take(self, data: Buffer, at: int) -> int:
        if not data.startswith(b"MESSAGE ", at):
            line, end = _line(data, at)
            if line is None:
                return -1
            self.error = _refused(line)
            if self.error is None and line != b"EOF":
                raise _garbled(line)
        else:
            record, end = take_message(data, at)
            if record is None:
                return -1
            self.result = record
        self._finish()
        return end


class ChunkAnswer(Answer):
    """`CHUNK ...` and its bytes, or `EOF`; the result is (offset, bytes), no bytes at the end."""

    __slots__ = ("_offset",)

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    def take(self, data: Buffer, at: int) -> int:
        line, end = _line(data, at)
        if line is None:
            return -1
        self.error = _refused(line)
        if self.error is None:
            if line == b"EOF":
                self.result = (self._offset, b"")
            else:
                offset, length, following = _fields(line, b"CHUNK", 3)
                if following != offset + length or length > BODY_BYTES_MAX:
                    raise _garbled(line)
                if len(data) < end + length:
                    return -1
                self.result = (offset, bytes(memoryview(data)[end : end + length]))
                end += length
        self._finish()
        return end


class RowsAnswer(Answer):
    """Lines until `END`; `row` makes something of each."""

    __slots__ = ("_row", "rows")

    def __init__(self, row: Callable[[bytes], object]) -> None:
        super().__init__()
        self._row = row
        self.rows: list[object] = []
        self.result = self.rows

    def take(self, data: Buffer, at: int) -> int:
        while True:
            line, end = _line(data, at)
            if line is None:
                return at if at else -1
            at = end
            self.error = _refused(line)
            if self.error is not None or line == b"END":
                self._finish()
                return at
            self.rows.append(self._row(line))


def topic_row(line: bytes) -> Topic:
    word, _, rest = line.partition(b" ")
    name, _, numbers = rest.partition(b" ")
    first, end = _fields(word + b" " + numbers, b"TOPIC", 2)
    return Topic(name.decode("ascii", "replace"), first, end)


def mark_row(line: bytes) -> Mark:
    return Mark(*_fields(line, b"MARK", 5))


def take_message(data: Buffer, at: int) -> tuple[Record | None, int]:
    """The MESSAGE line at `at`, and the position behind it; None if it is incomplete."""
    line_end = data.find(b"\n", at, at + LINE_BYTES_MAX)
    second = data.find(b" ", at + len("MESSAGE "), at + LINE_BYTES_MAX)
    head_end = data.find(b" ", second + 1, at + LINE_BYTES_MAX) if second >= 0 else -1
    if head_end < 0 or 0 <= line_end < head_end:  # "MESSAGE <offset> <length> " is incomplete
        if line_end >= 0 or len(data) - at > LINE_BYTES_MAX:
            raise _garbled(bytes(data[at : at + 100]))
        return None, at
    offset, length = _fields(bytes(data[at:head_end]), b"MESSAGE", 2)
    if length > BODY_BYTES_MAX:
        raise _garbled(bytes(data[at:head_end]))
    start = head_end + 1
    end = start + length
    if len(data) <= end:
        return None, at
    if data[end] != 10:
        raise _garbled(bytes(data[at:head_end]))
    return Record(offset, bytes(data[start:end])), end + 1


def records_of(data: bytes, offset: int) -> list[Record]:
    """The records of a chunk that begins at `offset`."""
    records, at, size = [], 0, len(data)
    while at < size:
        start = at + HEADER_BYTES
        end = start + int.from_bytes(data[at:start], "big")
        if end > size:
            raise RemoteProtocolError(f"a chunk at offset {offset} that is not whole records")
        records.append(Record(offset + at, data[start:end]))
        at = end
    return records


def _line(data: Buffer, at: int) -> tuple[bytes | None, int]:
    end = data.find(b"\n", at)
    if end < 0:
        if len(data) - at > LINE_BYTES_MAX:
            raise _garbled(bytes(data[at : at + 100]))
        return None, at
    return bytes(data[at:end]), end + 1


def _refused(line: bytes) -> LogmqError | None:
    if not line.startswith(b"ERR "):
        return None
    code, _, text = line[4:].decode("utf-8", "replace").partition(" ")
    return NoTopic(code, text) if code == "NO_TOPIC" else LogmqError(code, text)


def _fields(line: bytes, word: bytes, count: int) -> tuple[int, ...]:
    first, *fields = line.split(b" ")
    if first != word or len(fields) != count or not all(field.isdigit() for field in fields):
        raise _garbled(line)
    if any(len(field) > 19 for field in fields):
        raise _garbled(line)
    numbers = tuple(map(int, fields))
    if numbers and max(numbers) > NUMBER_MAX:
        raise _garbled(line)
    return numbers


def _garbled(line: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(f"the server's answer is not LogMQ's: {line[:100]!r}")
