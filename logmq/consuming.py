"""CONSUME: one record a request, many requests at a time.

Source: PROTOCOL.md, "Requests".
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logmq.answering import answer, at_the_end, begin_read, refused
from logmq.runs import consumed, message_lines
from logmq.windows import FIRST_READ_BYTES, NEXT_READ_BYTES, Window
from logmq.wire import Refusal, number_untrusted
from shared.errors import StoreError
from shared.replies import ReplySlot
from shared.storage.store import Log

if TYPE_CHECKING:
    from logmq.session import Session


def consume_run(session: "Session", data: bytes) -> int:
    """The CONSUME lines at the front of `data`, if all its lines are that, of one topic.

    Returns how far it went: 0 where the lines need a closer look, less than all where something stops them.
    """
    last = data.rfind(b"\n")
    topic_end = data.find(b" ", len("CONSUME "), max(last, 0))
    if topic_end < 0:
        return 0
    word = data[: topic_end + 1]
    fields = data[len(word) : last].split(b"\n" + word)
    if not b"".join(fields).isdigit() or not 1 <= min(map(len, fields)) <= max(map(len, fields)) <= 18:
        return 0
    try:
        log = session.topics.find_untrusted(word[len("CONSUME ") : -1])
    except Refusal:
        return 0
    done = _consume(session, log, list(map(int, fields)))
    if done == len(fields):
        return last + 1
    return sum(map(len, fields[:done])) + done * (len(word) + 1)


def consume(session: "Session", fields: Sequence[bytes]) -> None:
    log = session.topics.find_untrusted(fields[0])
    _consume(session, log, (number_untrusted(fields[1], "offset"),))


def _consume(session: "Session", log: Log | None, offsets: Sequence[int]) -> int:
    """Answer CONSUMEs of one topic, as many as nothing stops; returns how many."""
    if log is None:
        session.replies.reply(b"EOF\n" * len(offsets))
        return len(offsets)
    done = 0
    while done < len(offsets):
        offset = offsets[done]
        window = session.broker.windows.get(session)
        if (
            window is None
            or window.log is not log
            or window.offset != offset
            or not window.records
            or offset < log.first
        ):
            following = window is not None and window.log is log and window.offset == offset
            window = _read_ahead(session, log, offset, NEXT_READ_BYTES if following else FIRST_READ_BYTES)
            if window is None:
                done += 1
                if session.stop_if_crowded():
                    break
                continue
        count, at = consumed(offsets, done, window.records, window.at, window.offset, window.length)
        session.replies.reply(message_lines(window.records[window.at : at], window.offset))
        session.counts.messages_consumed += count
        window.advance(at)
        done += count
        if session.stop_if_crowded():
            break
    return done


def _read_ahead(session: "Session", log: Log, offset: int, size: int) -> Window | None:
    """A window that begins at `offset`; None where its request is answered here, or will be."""
    if offset >= log.visible:
        at_the_end(session, log, offset, lambda held: _read_in_turn(session, log, offset, held))
        return None
    window: Window | None = None

    def finish(records: bytes | StoreError, held: ReplySlot | None) -> None:
        nonlocal window
        if isinstance(records, StoreError):
            answer(session, held, refused(session, records))
        elif not records:
            answer(session, held, b"EOF\n")
        elif not session.lost:
            window = Window(log, offset, records)
            session.broker.windows.put(session, window)
            if held is not None:  # the caller has gone
                _, at = consumed((offset,), 0, records, 0, offset, window.length)
                session.counts.messages_consumed += 1
                held.resolve(message_lines(records[:at], offset))
                window.advance(at)

    begin_read(session, lambda done: log.read(offset, size, done), finish)
    return window


def _read_in_turn(session: "Session", log: Log, offset: int, held: ReplySlot) -> None:
    """What the same connection wrote just before is visible now, if it ever will be."""

    def done(records: bytes | StoreError) -> None:
        if isinstance(records, StoreError):
            held.resolve(refused(session, records))
        elif records:
            _, at = consumed((offset,), 0, records, 0, offset, 0)
            session.counts.messages_consumed += 1
            held.resolve(message_lines(records[:at], offset))
        else:
            held.resolve(b"EOF\n")

    if offset < log.visible:
        log.read(offset, FIRST_READ_BYTES, session.replies.guarded(done))
    else:
        held.resolve(b"EOF\n")
