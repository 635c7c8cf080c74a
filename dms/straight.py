"""The straight way: what most reads of most clients are, done without a detour.

A consumer with one credit sends an ACK and the CONSUME behind it in one write, a worker the PRODUCE of what
it made between them; a producer that waits for each answer sends one PRODUCE. Such a read is a frame or
three, so taking it apart in general, and gathering neighbours where there are none, costs far more than what
it asks. Here it is done where nothing is out of the ordinary: the whole read is that, the queues are there,
and nobody was before. What is not done by then `Session` does in general: there is nothing that only this
way can do.
"""

from typing import TYPE_CHECKING

from dms.runs import ACK, ACK_OK, CONSUME, PRODUCE_OK, WORDS, word
from dms.wire import HEADER, HEADER_BYTES, ID_AT, MAGIC, PAYLOAD_BYTES_MAX, TYPE_AT, Refusal, Type

if TYPE_CHECKING:
    from dms.session import Session

_PRODUCE = word(Type.PRODUCE)
_unpack = WORDS.unpack_from
assert HEADER.size == WORDS.size == HEADER_BYTES


def taken(session: "Session", data: bytes) -> int:
    """How many bytes of `data` are done; 0: none. The session is open; nothing is left or stopped."""
    if data.startswith(ACK):
        return _took_turn(session, data)
    size = len(data)
    return size if _produced(session, data, 0, size) else 0


def _produced(session: "Session", data: bytes, start: int, stop: int) -> bool:
    """One message for one queue: a whole PRODUCE, if it is that."""
    payload = start + HEADER_BYTES
    if not 2 < stop - payload <= PAYLOAD_BYTES_MAX:
        return False
    magic, length, what, _ = _unpack(data, start)
    if what != _PRODUCE or magic != MAGIC or length != stop - payload:
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
    reply = PRODUCE_OK + data[start + ID_AT : payload]
    if ticket is None:
        session.say(reply)
    else:
        session.owe(ticket, reply)
    return True


def _took_turn(session: "Session", data: bytes) -> int:
    """An ACK, perhaps a PRODUCE, and a CONSUME for the next message of the same queue, if that is ready."""
    name, queue = session.queue_name, session.queue
    last = len(data) - HEADER_BYTES - len(name)
    if last < HEADER_BYTES or not data.startswith(CONSUME[len(name)], last) or not data.endswith(name):
        return 0
    made = last > HEADER_BYTES
    if made and data[HEADER_BYTES + TYPE_AT] != Type.PRODUCE:
        return 0  # many turns, which are for a run
    ack_id = data[ID_AT:HEADER_BYTES]
    out = session.held.alone.get(ack_id)
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
    del session.held.alone[ack_id]
    reply = ACK_OK + ack_id
    if ticket is not None:
        session.owe_acked(ticket, reply, 1)
        reply = b""
    elif made or session.replies.owed:
        session.say(reply)
        reply = b""
    if made and not _produced(session, data, HEADER_BYTES, last):
        return HEADER_BYTES
    seq = queue.head
    if session.is_next() and (body := queue.take_next()) is not None:
        session.connection.write(reply + session.hand((queue, seq, body, 1)))
    else:
        if reply:
            session.connection.write(reply)
        session.consume((data[last + ID_AT : last + HEADER_BYTES],))
    return len(data)
