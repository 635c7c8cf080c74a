"""What each request does, PRODUCE, APPEND and BATCH apart: they are the session's own, for speed.

A handler gets the session and the fields of a line that fits the grammar, and says the answer, owes it, or
holds its place. Refusals are raised, and `NotYetError` by one that has to see its predecessors' outcome.

Source: PROTOCOL.md, "Requests".
"""

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from logmq.answering import Listing, answer, at_the_end, begin_read, in_turn, refused
from logmq.consuming import consume
from logmq.readers import Fetch, Tail
from logmq.wire import (
    HELP_LINE,
    Code,
    Refusal,
    chunk_line,
    name_untrusted,
    number_untrusted,
    refusal_for,
    topic_untrusted,
)
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.replies import ReplySlot
from shared.storage.store import Log

if TYPE_CHECKING:
    from logmq.session import Session

LISTED_ROWS = 512
"""Rows of one piece of a listing: about half a millisecond."""
MARKED_BYTES = 32 * 1024 * 1024
"""Log bytes whose marks are one piece of a listing: 512 entries in the ordinary case."""


Handler = Callable[["Session", Sequence[bytes]], None]


def fetch(session: "Session", fields: Sequence[bytes]) -> None:
    settings = session.broker.settings
    log = session.topics.find_untrusted(fields[0])
    offset = number_untrusted(fields[1], "offset")
    size = min(number_untrusted(fields[2], "max-bytes"), settings.fetch_bytes_max)
    wait_ms = number_untrusted(fields[3], "wait-ms") if len(fields) > 3 else 0
    if log is not None and offset < log.visible:
        begin_read(
            session,
            lambda done: log.read_chunk(offset, size, done),
            lambda chunk, held: answer(session, held, *_chunk(session, offset, chunk)),
        )
    elif wait_ms and not session.broker.draining:
        deadline = session.connection.now + min(wait_ms, settings.fetch_wait_ms_max) / 1000
        waiting = Fetch(session, session.topics, fields[0].decode(), offset, size, deadline)
        session.add_fetch(waiting)
        waiting.start()
    elif log is None:
        session.replies.reply(b"EOF\n")
    else:
        known = min(size, log.end - offset)  # what is written behind this request is not part of its answer
        at_the_end(session, log, offset, lambda held: _fetch_in_turn(session, log, offset, known, held))


def _fetch_in_turn(session: "Session", log: Log, offset: int, size: int, held: ReplySlot) -> None:
    if offset < log.visible:
        done = session.replies.guarded(lambda chunk: held.resolve(_chunk(session, offset, chunk)))
        log.read_chunk(offset, size, done)
    else:
        held.resolve(b"EOF\n")


def _chunk(session: "Session", offset: int, chunk: FileRange | StoreError) -> list[bytes | FileRange]:
    if isinstance(chunk, StoreError):
        return [refused(session, chunk)]
    if not chunk.length:
        chunk.release()
        return [b"EOF\n"]
    session.counts.bytes_fetched += chunk.length
    return [chunk_line(offset, chunk.length), chunk]


def tail(session: "Session", fields: Sequence[bytes]) -> None:
    name = topic_untrusted(fields[0])
    session.begin_tail(Tail(session, session.topics, name, number_untrusted(fields[1], "offset")))


def offsets(session: "Session", fields: Sequence[bytes]) -> None:
    in_turn(session)
    log = session.topics.existing_untrusted(fields[0])
    session.replies.reply(b"OFFSETS %d %d\n" % (log.first, log.visible))


def seek(session: "Session", fields: Sequence[bytes]) -> None:
    in_turn(session)
    log = session.topics.existing_untrusted(fields[0])
    unix_ms = number_untrusted(fields[1], "unix-ms")
    session.has_read()
    try:
        offset = log.seek(unix_ms)
    except StoreError as error:
        raise refusal_for(error) from None
    session.replies.reply(b"OK %d\n" % offset)


def commit(session: "Session", fields: Sequence[bytes]) -> None:
    group = name_untrusted(fields[0], "group")
    log = session.topics.existing_untrusted(fields[1])
    offset = number_untrusted(fields[2], "offset")
    if offset < log.first:
        raise Refusal(Code.OUT_OF_RANGE, f"the first kept offset is {log.first}")
    if offset > log.visible:
        in_turn(session)  # it may be about to be the end
        raise Refusal(Code.BAD_OFFSET, f"beyond the end; the nearest below is {log.visible}")

    def finish(result: bool | StoreError, held: ReplySlot | None) -> None:
        try:
            if isinstance(result, StoreError):
                raise refusal_for(result)
            ticket = session.broker.groups.commit(group, log, offset)
        except StoreError as error:
            answer(session, held, refused(session, error))
        except Refusal as refusal:
            session.counts.refused(refusal)
            answer(session, held, refusal.line)
        else:
            reply = b"OK %d\n" % offset
            if held is None:
                session.replies.reply_after(ticket, reply)
            else:
                ticket.when_done(
                    session.replies.guarded(
                        lambda done: held.resolve(
                            reply if done.error is None else refused(session, done.error)
                        )
                    )
                )

    begin_read(session, lambda done: log.is_record_start(offset, done), finish)


def committed(session: "Session", fields: Sequence[bytes]) -> None:
    group = name_untrusted(fields[0], "group")
    log = session.topics.existing_untrusted(fields[1])
    found = session.broker.groups.committed(group, log)
    if found is None:
        raise Refusal(Code.NO_COMMIT, f"group {group} has committed nothing of {log.name}")
    offset, ticket = found
    session.owe(ticket, b"OK %d\n" % offset)


def delete(session: "Session", fields: Sequence[bytes]) -> None:
    in_turn(session)
    broker = session.broker
    log = session.topics.existing_untrusted(fields[0])
    try:
        ticket = broker.delete(log)
    except StoreError as error:
        raise refusal_for(error) from None
    session.replies.reply_after(ticket, b"OK\n")


def topics(session: "Session", fields: Sequence[bytes]) -> None:
    in_turn(session)
    names = session.topics.names()

    def pieces() -> Iterator[tuple[bytes, bool]]:
        for start in range(0, len(names) or 1, LISTED_ROWS):
            rows = []
            for name in names[start : start + LISTED_ROWS]:
                log = session.topics.find(name)
                if log is not None:
                    rows.append(b"TOPIC %b %d %d\n" % (name.encode(), log.first, log.visible))
            yield b"".join(rows), start + LISTED_ROWS >= len(names)

    Listing(session, pieces())


def marks(session: "Session", fields: Sequence[bytes]) -> None:
    in_turn(session)
    log = session.topics.existing_untrusted(fields[0])
    start = number_untrusted(fields[1], "from")
    stop = min(number_untrusted(fields[2], "to"), log.visible)

    def pieces() -> Iterator[tuple[bytes, bool]]:
        at = listed = max(start, log.first)
        while True:
            end = min(stop, at + MARKED_BYTES)
            rows = []
            for mark in log.marks(at, end) if at < end else ():
                if mark.offset + mark.length > listed:  # else the piece before had it
                    listed = mark.offset + mark.length
                    rows.append(
                        b"MARK %d %d %d %d %d\n"
                        % (mark.offset, mark.length, mark.records, mark.crc32c, mark.first_ms)
                    )
            at = max(end, listed)
            yield b"".join(rows), at >= stop
            if at >= stop:
                return

    Listing(session, pieces())


def ping(session: "Session", fields: Sequence[bytes]) -> None:
    session.replies.reply(b"PONG\n")


def help_(session: "Session", fields: Sequence[bytes]) -> None:
    session.replies.reply(HELP_LINE)


def quit_(session: "Session", fields: Sequence[bytes]) -> None:
    session.quit()


handlers: MappingProxyType[bytes, Handler] = MappingProxyType(
    {
        b"CONSUME": consume,
        b"FETCH": fetch,
        b"MARKS": marks,
        b"TAIL": tail,
        b"OFFSETS": offsets,
        b"SEEK": seek,
        b"TOPICS": topics,
        b"COMMIT": commit,
        b"COMMITTED": committed,
        b"DELETE": delete,
        b"PING": ping,
        b"HELP": help_,
        b"QUIT": quit_,
    }
)
