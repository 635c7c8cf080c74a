"""The straight way: what most reads of most clients are, done without a detour.

A consumer with one credit sends an ACK and the CONSUME behind it in one write; a producer that waits for each
answer sends one PRODUCE. Such a read is one frame or two, so taking it apart in general, and gathering
neighbours where there are none, costs far more than what it asks. Here it is done where nothing is out of
the ordinary: the whole read is that, the queue is the one expected, and nobody was before. Else nothing has
happened, False says so, and `Session` does it in general: there is nothing that only this way can do.
"""

from typing import TYPE_CHECKING

from dms.runs import WORDS, word
from dms.wire import HEADER, HEADER_BYTES, MAGIC, PAYLOAD_BYTES_MAX, Refusal, Type

if TYPE_CHECKING:
    from dms.session import Session

_ACK = word(Type.ACK)
_ACK_OK = word(Type.ACK_OK)
_CONSUME = word(Type.CONSUME)
_PRODUCE = word(Type.PRODUCE)
_PRODUCE_OK = word(Type.PRODUCE_OK)
_TURN_BYTES = 2 * HEADER_BYTES
_unpack = WORDS.unpack_from
_pack = WORDS.pack
assert HEADER.size == WORDS.size == HEADER_BYTES


def taken(session: "Session", data: bytes) -> bool:
    """Whether `data` was one of these, and it is done. The session is open; nothing is left or stopped."""
    size = len(data)
    if size < HEADER_BYTES:
        return False
    magic, length, what, message_id = _unpack(data)
    if magic != MAGIC:
        return False
    if what == _PRODUCE:
        return (
            size == HEADER_BYTES + length
            and 2 < length <= PAYLOAD_BYTES_MAX
            and _produced(session, data, message_id)
        )
    if what == _ACK and not length and size == _TURN_BYTES + len(session.queue_name):
        magic, length, what, want_id = _unpack(data, HEADER_BYTES)
        return (
            what == _CONSUME
            and magic == MAGIC
            and length == size - _TURN_BYTES
            and data.endswith(session.queue_name)
            and _took_turn(session, message_id, want_id)
        )
    return False


def _produced(session: "Session", data: bytes, message_id: int) -> bool:
    """One message for one queue."""
    start = HEADER_BYTES + 2 + (data[HEADER_BYTES] << 8 | data[HEADER_BYTES + 1])
    queue = session.broker.queues.get(data[HEADER_BYTES + 2 : start])
    size = len(data) - start
    if queue is None or size < 0 or queue.depth >= queue.options.depth:
        return False
    try:
        ticket = queue.produce((data[start:],), size)
    except Refusal:
        return False  # it is asked again, and refused again
    reply = _pack(MAGIC, 0, _PRODUCE_OK, message_id)
    if ticket is None:
        session.say(reply)
    else:
        session.owe(ticket, reply)
    return True


def _took_turn(session: "Session", message_id: int, want_id: int) -> bool:
    """An ACK, and a CONSUME for the next message of the same queue, if that is ready."""
    out = session.held.get(message_id)
    queue = session.queue
    if (
        out is None
        or out[0] is not queue
        or queue.deleted
        or session.waiting >= session.broker.settings.credits_max
    ):
        return False
    try:
        ticket = queue.acked(session, (message_id,), (out,))
    except Refusal:
        return False
    del session.held[message_id]
    reply = _pack(MAGIC, 0, _ACK_OK, message_id)
    if ticket is not None:
        session.owe_acked(ticket, reply, 1)
        reply = b""
    elif session.replies.owed:
        session.say(reply)
        reply = b""
    seq = queue.head
    if session.is_next() and (body := queue.take_next()) is not None:
        session.connection.write(reply + session.hand((queue, seq, body, 1)))
    else:
        if reply:
            session.connection.write(reply)
        session.consume((want_id,))
    return True
