"""The straight way: what most reads of most clients are, done without a detour.

A consumer with one credit sends an ACK and the CONSUME behind it in one write, a worker the PRODUCE of what
it made between them; a producer that waits for each answer sends one PRODUCE. Such a read is a frame or
three, so taking it apart in general, and gathering neighbours where there are none, costs far more than what
it asks. Here it is done where nothing is out of the ordinary: the whole read is that, the queues are there,
and nobody was before. What is not done by then `Session` does in general: there is nothing that only this
way can do.
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
_unpack = WORDS.unpack_from
_pack = WORDS.pack
assert HEADER.size == WORDS.size == HEADER_BYTES


def taken(session: "Session", data: bytes) -> int:
    """How many bytes of `data` are done; 0: none. The session is open; nothing is left or stopped."""
    size = len(data)
    if size < HEADER_BYTES:
        return 0
    magic, length, what, message_id = _unpack(data)
    if magic != MAGIC:
        return 0
    if what == _PRODUCE:
        done = size == HEADER_BYTES + length and _produced(session, data, 0, size, message_id)
        return size if done else 0
    if what == _ACK and not length and size > HEADER_BYTES:
        return _took_turn(session, data, message_id)
    return 0


def _produced(session: "Session", data: bytes, start: int, stop: int, message_id: int) -> bool:
    """One message for one queue."""
    payload = start + HEADER_BYTES
    if not 2 < stop - payload <= PAYLOAD_BYTES_MAX:
        return False
    body = payload + 2 + (data[payload] << 8 | data[payload + 1])
    queue = session.broker.queues.get(data[payload + 2 : body])
    size = stop - body
    if queue is None or size < 0 or queue.depth >= queue.options.depth:
        return False
    try:
        ticket = queue.produce((data[body:stop],), size)
    except Refusal:
        return False  # it is asked again, and refused again
    reply = _pack(MAGIC, 0, _PRODUCE_OK, message_id)
    if ticket is None:
        session.say(reply)
    else:
        session.owe(ticket, reply)
    return True


def _took_turn(session: "Session", data: bytes, ack_id: int) -> int:
    """An ACK, perhaps a PRODUCE, and a CONSUME for the next message of the same queue, if that is ready."""
    name, queue = session.queue_name, session.queue
    last = len(data) - HEADER_BYTES - len(name)
    if last < HEADER_BYTES or not data.endswith(name):
        return 0
    magic, length, what, want_id = _unpack(data, last)
    if what != _CONSUME or magic != MAGIC or length != len(name):
        return 0
    made = last > HEADER_BYTES
    if made:
        if last < 2 * HEADER_BYTES:
            return 0
        magic, length, what, made_id = _unpack(data, HEADER_BYTES)
        if what != _PRODUCE or magic != MAGIC or length != last - 2 * HEADER_BYTES:
            return 0
    out = session.held.get(ack_id)
    if (
        out is None
        or out[0] is not queue
        or queue.deleted
        or session.waiting >= session.broker.settings.credits_max
    ):
        return 0
    try:
        ticket = queue.acked(session, (ack_id,), (out,))
    except Refusal:
        return 0
    del session.held[ack_id]
    reply = _pack(MAGIC, 0, _ACK_OK, ack_id)
    if ticket is not None:
        session.owe_acked(ticket, reply, 1)
        reply = b""
    elif made or session.replies.owed:
        session.say(reply)
        reply = b""
    if made and not _produced(session, data, HEADER_BYTES, last, made_id):
        return HEADER_BYTES
    seq = queue.head
    if session.is_next() and (body := queue.take_next()) is not None:
        session.connection.write(reply + session.hand((queue, seq, body, 1)))
    else:
        if reply:
            session.connection.write(reply)
        session.consume((want_id,))
    return len(data)
