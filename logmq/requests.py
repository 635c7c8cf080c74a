"""What each request of a connection does, but for writes; `session` has the input, the order and the end.

A handler gets the fields of a grammatical line. It raises Refusal, and `NotYetError` to wait for earlier
requests.

Source: PROTOCOL.md, "Requests".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from logmq import runs
from logmq.readers import READER_BYTES, Fetch, Tail
from logmq.states import Event
from logmq.windows import FIRST_READ_BYTES, NEXT_READ_BYTES, Window
from logmq.wire import (
    HELP_LINE,
    Code,
    Refusal,
    check_memory,
    chunk_line,
    name_untrusted,
    number_untrusted,
    refusal_for,
    topic_untrusted,
)
from shared.access import MANAGE, READ
from shared.errors import BeyondEnd, StoreError, printable
from shared.file_range import FileRange
from shared.replies import ReplySlot

if TYPE_CHECKING:
    from logmq.session import Session
    from shared.storage.store import Log, Ticket

LISTED_ROWS = 512
"""Rows in one piece of a listing: about half a millisecond."""
MARKED_BYTES = 32 * 1024 * 1024
"""Log bytes whose marks are one piece of a listing: usually 512 entries."""
LOGINS_MAX = 3
"""Refusals in a row after which the connection closes."""

_EOF = b"EOF\n"


class NotYetError(Exception):
    """The request is to be tried again when every earlier one of its connection is answered."""


def consume_run(session: Session, data: bytes) -> int:
    """The CONSUME lines at the front of `data`, if all its lines are that, of one topic.

    Returns how far it went: 0 where the lines need a closer look, less than all where something stops
    them. 64 lines for records of 100 bytes cost 60 us so, and 333 us line by line.
    """
    last = data.rfind(b"\n")
    topic_end = data.find(b" ", len("CONSUME "), max(last, 0))
    if topic_end < 0:
        return 0
    word = data[: topic_end + 1]
    fields = data[len(word) : last].split(b"\n" + word)
    if not b"".join(fields).isdigit() or not 1 <= min(map(len, fields)) <= max(map(len, fields)) <= 18:
        return 0
    topic = word[len("CONSUME ") : -1]
    if session.guard is not None and not session.guard.may(session.user, READ, topic):
        return 0  # each is refused and counted as a line
    try:
        log = session.topics.find_untrusted(topic)
    except Refusal:
        return 0
    done = _consume_all(session, log, list(map(int, fields)))
    if done == len(fields):
        return last + 1
    return sum(map(len, fields[:done])) + done * (len(word) + 1)


def _consume(session: Session, fields: Sequence[bytes]) -> None:
    log = _readable(session, fields[0])
    if not _consume_all(session, log, (number_untrusted(fields[1], "offset"),)):
        _await_turn(session)


def _consume_all(session: Session, log: Log | None, offsets: Sequence[int]) -> int:
    """Answer CONSUMEs of one topic until something stops them; returns how many.

    It stops at an offset that is not visible yet, and that this connection may have just written.
    """
    if log is None:
        session.reply(_EOF * len(offsets))
        return len(offsets)
    done = 0
    while done < len(offsets):
        offset = offsets[done]
        window = session.broker.windows.get(session)
        follows = window is not None and window.log is log and window.offset == offset
        if window is not None and follows and window.records and offset >= log.first:
            done += _say_messages(session, window, offsets, done)
        elif offset < log.visible:
            _read_ahead(session, log, offset, NEXT_READ_BYTES if follows else FIRST_READ_BYTES)
            done += 1
        elif offset < log.end and session.replies.pending:
            break
        else:
            session.reply(_EOF)
            done += 1
        if session.stop_if_crowded() or session.turn_over():
            break
    return done


def _read_ahead(session: Session, log: Log, offset: int, size: int) -> None:
    """Answer a CONSUME from the log, and keep what was read with it."""

    def finish(records: bytes) -> None:
        window = Window(log, offset, records)
        session.broker.windows.put(session, window)
        _say_messages(session, window, (offset,), 0)

    session.read_log(lambda done: log.read(offset, size, done), finish)


def _say_messages(session: Session, window: Window, offsets: Sequence[int], start: int) -> int:
    """Answer those of `offsets[start:]` that ask for the window's records in turn; returns how many."""
    count, at = runs.consumed(offsets, start, window.records, window.at, window.offset, window.length)
    lines, _ = runs.message_lines(window.records[window.at : at], window.offset)
    window.advance(at)
    session.counts.messages_consumed += count
    session.reply(lines)
    return count


def _fetch(session: Session, fields: Sequence[bytes]) -> None:
    settings = session.broker.settings
    log = _readable(session, fields[0])
    offset = number_untrusted(fields[1], "offset")
    size = min(number_untrusted(fields[2], "max-bytes"), settings.fetch_bytes_max)
    wait_ms = number_untrusted(fields[3], "wait-ms") if len(fields) > 3 else 0
    if log is not None and offset > log.end:
        raise refusal_for(BeyondEnd(log.end))
    if wait_ms and not session.broker.draining and (log is None or offset >= log.visible):
        check_memory(session.topics.waiters.memory, READER_BYTES, session.user)
        deadline = session.connection.now + min(wait_ms, settings.fetch_wait_ms_max) / 1000
        fetch = Fetch(session, session.topics.waiters, fields[0].decode(), offset, size, deadline)
        if session.fetches is None:
            session.fetches = {}
        session.fetches[fetch] = None
        session.await_fetches()
        fetch.start()
        return
    if log is None or offset >= log.visible:
        if log is not None and offset < log.end:
            _await_turn(session)  # this connection may have just written it
        session.reply(_EOF)
        return

    def finish(chunk: FileRange) -> None:
        session.counts.bytes_fetched += chunk.length
        session.reply(chunk_line(offset, chunk.length))
        session.replies.reply(chunk.chunk())

    session.read_log(lambda done: log.read_chunk(offset, size, done), finish)


def _begin_tail(session: Session, fields: Sequence[bytes]) -> None:
    name, offset = topic_untrusted(fields[0]), number_untrusted(fields[1], "offset")
    session.require(READ, fields[0])
    check_memory(session.topics.waiters.memory, READER_BYTES, session.user)
    session.tail = tail = Tail(session, session.topics.waiters, name, offset)
    session.step(Event.TAIL_BEGINS)
    session.connection.on_drained = session.drained
    session.replies.slot(tail.start)
    if session.broker.draining:
        session.end_with(Event.INPUT_ENDS)


def _offsets(session: Session, fields: Sequence[bytes]) -> None:
    _await_turn(session)
    log = _existing(session, READ, fields[0])
    session.reply(b"OFFSETS %d %d\n" % (log.first, log.visible))


def _seek(session: Session, fields: Sequence[bytes]) -> None:
    _await_turn(session)
    unix_ms = number_untrusted(fields[1], "unix-ms")
    log = _existing(session, READ, fields[0])
    session.turn_over()
    session.reply(b"OK %d\n" % log.seek(unix_ms))


def _commit(session: Session, fields: Sequence[bytes]) -> None:
    group = name_untrusted(fields[0], "group")
    session.require(READ, b"group/" + fields[0])
    offset = number_untrusted(fields[2], "offset")
    log = _existing(session, READ, fields[1])
    if offset < log.first:
        raise Refusal(Code.OUT_OF_RANGE, f"the first kept offset is {log.first}")
    if offset > log.visible:
        _await_turn(session)  # it may be about to be the end
        raise Refusal(Code.BAD_OFFSET, f"beyond the end; the nearest below is {log.visible}")

    def finish(_: bool) -> None:
        try:
            ticket = session.broker.groups.commit(group, log, offset, session.user)
        except (StoreError, Refusal) as error:
            session.refuse(error)
        else:
            session.replies.reply_after(ticket, b"OK %d\n" % offset)

    session.read_log(lambda done: log.is_record_start(offset, done), finish)


def _committed(session: Session, fields: Sequence[bytes]) -> None:
    group = name_untrusted(fields[0], "group")
    session.require(READ, b"group/" + fields[0])
    log = _existing(session, READ, fields[1])
    found = session.broker.groups.committed(group, log)
    if found is None:
        raise Refusal(Code.NO_COMMIT, f"group {group} has committed nothing of {log.name}")
    offset, ticket = found
    answer_after(session, ticket, b"OK %d\n" % offset)


def _delete(session: Session, fields: Sequence[bytes]) -> None:
    _await_turn(session)
    log = _existing(session, MANAGE, fields[0])
    ticket = session.broker.delete(log)
    session.identity.audit("delete", fields[0])
    session.replies.reply_after(ticket, b"OK\n")


def _topics(session: Session, fields: Sequence[bytes]) -> None:
    _await_turn(session)

    def pieces() -> Iterator[tuple[bytes, bool]]:
        after, last = "", False
        while not last:
            names = session.topics.page(after, LISTED_ROWS)
            last = len(names) < LISTED_ROWS
            rows = []
            for name in names:
                log = session.topics.find(name)
                guard = session.guard
                if log is not None and (guard is None or guard.may_see(session.user, name)):
                    rows.append(b"TOPIC %b %d %d\n" % (name.encode(), log.first, log.visible))
            after = names[-1] if names else after
            yield b"".join(rows), last

    _begin_listing(session, pieces())


def _marks(session: Session, fields: Sequence[bytes]) -> None:
    _await_turn(session)
    start, stop = number_untrusted(fields[1], "from"), number_untrusted(fields[2], "to")
    log = _existing(session, READ, fields[0])
    stop = min(stop, log.visible)

    def pieces() -> Iterator[tuple[bytes, bool]]:
        at = listed = max(start, log.first)
        while True:
            end = min(stop, at + MARKED_BYTES)
            rows = []
            for mark in log.index_entries(at, end) if at < end else ():
                if mark.offset + mark.length > listed:  # else the piece before had it
                    listed = mark.offset + mark.length
                    row = (mark.offset, mark.length, mark.records, mark.crc32c, mark.first_ms)
                    rows.append(b"MARK %d %d %d %d %d\n" % row)
            at = max(end, listed)
            yield b"".join(rows), at >= stop
            if at >= stop:
                return

    _begin_listing(session, pieces())


def _ping(session: Session, fields: Sequence[bytes]) -> None:
    session.reply(b"PONG\n")


def _help(session: Session, fields: Sequence[bytes]) -> None:
    session.reply(HELP_LINE)


def _quit(session: Session, fields: Sequence[bytes]) -> None:
    session.end_with(Event.QUIT)


def log_in(session: Session, line: bytes) -> None:
    """AUTH: the user, and the rest of the line."""
    _, name, password = line.split(b" ", 2)
    slot = session.replies.slot()
    session.connection.first_request_done()

    def done(fits: bool) -> None:
        if not session.user:
            session.identity.await_first_request(log_in_first().line)
        if fits:
            session.logins_refused = 0
            slot.resolve(b"OK\n")
            return
        session.logins_refused += 1
        slot.resolve(session.refused(Refusal(Code.DENIED, "wrong name or password")))
        if session.logins_refused >= LOGINS_MAX:
            session.end_with(Event.LOGIN_REFUSED)

    session.identity.log_in(name.decode("utf-8", "replace"), password, done)


def end_http(session: Session, line: bytes) -> None:
    """A web page may have a browser send what it likes to any port: nothing behind this is executed."""
    session.counts.http += 1
    session.broker.log.warning(
        "an HTTP request came to the LogMQ port: nothing of it was executed, and the connection is "
        "closed; correct the address at `peer`, LogMQ does not speak HTTP",
        peer=session.connection.peer,
        line="(a login)" if line.startswith(b"AUTH ") else printable(line),
    )
    session.refuse(Refusal(Code.SYNTAX, "this is LogMQ, HTTP is not spoken here; closing"))
    session.end_with(Event.HTTP)


def end_tls(session: Session) -> None:
    """A handshake holds bytes that others chose, such as a server's ticket: no line in it is executed."""
    session.counts.tls += 1
    session.broker.log.warning(
        "TLS came to the LogMQ port, which is set up without: the connection was closed, nothing was "
        "executed; [logmq.tls] is where a certificate is set",
        peer=session.connection.peer,
    )
    session.refuse(Refusal(Code.SYNTAX, "this is LogMQ without TLS; closing"))
    session.end_with(Event.TLS)


def _begin_listing(session: Session, pieces: Iterator[tuple[bytes, bool]]) -> None:
    """Write an answer of many lines piece by piece, as the peer reads, while other connections are served.

    `pieces`: each with whether it is the last.
    """

    def start(slot: ReplySlot) -> None:
        session.listing = pieces, slot
        session.list_more()

    session.connection.on_drained = session.drained
    session.replies.slot(start)


def _await_turn(session: Session) -> None:
    """Wait for earlier requests: this one looks at, or changes, what they change."""
    if session.replies.pending:
        raise NotYetError


def answer_after(session: Session, ticket: Ticket | None, reply: bytes) -> None:
    """Answer one request once `ticket` is done; None: now."""
    if ticket is None:
        session.reply(reply)
    else:
        session.replies.reply_after(ticket, reply)


def _readable(session: Session, topic: bytes) -> Log | None:
    """The log of a topic to be read, if it exists. Raises Refusal."""
    session.require(READ, topic)
    return session.topics.find_untrusted(topic)


def _existing(session: Session, action: str, topic: bytes) -> Log:
    """The log of a topic that must exist. Raises Refusal."""
    session.require(action, topic)
    return session.topics.existing_untrusted(topic)


def log_in_first() -> Refusal:
    return Refusal(Code.DENIED, "log in first: AUTH <user> <password>")


REQUESTS: MappingProxyType[bytes, Callable[[Session, Sequence[bytes]], None]] = MappingProxyType(
    {
        b"CONSUME": _consume,
        b"FETCH": _fetch,
        b"MARKS": _marks,
        b"TAIL": _begin_tail,
        b"OFFSETS": _offsets,
        b"SEEK": _seek,
        b"TOPICS": _topics,
        b"COMMIT": _commit,
        b"COMMITTED": _committed,
        b"DELETE": _delete,
        b"PING": _ping,
        b"HELP": _help,
        b"QUIT": _quit,
    }
)
"""Handlers of requests other than PRODUCE, APPEND and BATCH, which `Session` handles itself for speed."""
