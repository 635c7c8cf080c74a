"""What one request does, for those that come one at a time."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dms.options import options_untrusted
from dms.queue import Queue
from dms.states import Event
from dms.wire import (
    REPLIES,
    Refusal,
    Status,
    Type,
    malformed,
    name_untrusted,
    pack,
    pack_list,
    split_name,
)

if TYPE_CHECKING:
    from dms.session import Session
    from shared.storage.store import Ticket

SERVER_NAME = b"brokers dms"


def answer(session: "Session", type_: int, message_id: int, payload: bytes) -> None:
    """Do what one whole frame asks. Raises Refusal."""
    handler = _HANDLERS.get(type_)
    if handler is None:
        if type_ == Type.DISCONNECT_OK:
            return  # an answer to our goodbye
        raise Refusal(Status.INVALID_TYPE, f"no request is of type {type_:#04x}")
    handler(session, message_id, payload)


def _handshake(session: "Session", message_id: int, payload: bytes) -> None:
    if session.open_already:
        raise malformed("the handshake was made")
    if not session.open():
        limit = session.broker.settings.clients_max
        session.broker.counts.clients_refused += 1
        text = f"there are clients_max = {limit} clients already"
        session.refuse(message_id, Refusal(Status.INTERNAL, text, limit="clients_max"))
        session.end(Event.TOO_MANY)
        return
    session.say(pack(Type.HANDSHAKE_ACK, message_id, SERVER_NAME))


def _create(session: "Session", message_id: int, payload: bytes) -> None:
    name_bytes, end = split_name(payload)
    name = name_untrusted(name_bytes)
    asked = options_untrusted(payload[end:], name)
    _, ticket = session.broker.create(name, asked)
    session.broker.log.debug("queue created", peer=session.connection.peer, queue=name, options=asked)
    _confirm(session, ticket, Type.CREATE_QUEUE, message_id)


def _delete(session: "Session", message_id: int, payload: bytes) -> None:
    queue = _existing(session, payload)
    depth, ticket = queue.depth, session.broker.delete(queue)
    session.broker.log.debug("queue deleted", peer=session.connection.peer, queue=queue.text, messages=depth)
    _confirm(session, ticket, Type.DELETE_QUEUE, message_id)


def _list(session: "Session", message_id: int, payload: bytes) -> None:
    after = None
    if payload:
        after = _only_name(payload)
    broker = session.broker
    page = pack_list(len(broker.queues), broker.page(after))
    session.say(pack(Type.LIST_QUEUES_OK, message_id, page))


def _produce(session: "Session", message_id: int, payload: bytes) -> None:
    raise AssertionError("a PRODUCE is taken with its neighbours")


def _consume(session: "Session", message_id: int, payload: bytes) -> None:
    name = _only_name(payload)
    if session.waits and session.queue is not None and session.queue.name != name:
        raise malformed(f"CONSUMEs of {session.queue.text} wait on this connection")
    queue = _existing(session, payload)
    limit = session.broker.settings.credits_max
    if session.waiting >= limit:
        text = f"credits_max = {limit} CONSUMEs wait on this connection already"
        raise Refusal(Status.INTERNAL, text, limit="credits_max")
    session.queue, session.queue_name = queue, payload
    session.consume((message_id.to_bytes(4),))


def _ack(session: "Session", message_id: int, payload: bytes) -> None:
    _check_named(session, message_id, payload)
    session.ack((message_id.to_bytes(4),))


def _nack(session: "Session", message_id: int, payload: bytes) -> None:
    _check_named(session, message_id, payload)
    out = session.held.pop(message_id.to_bytes(4))
    if out is None:
        raise malformed("this connection holds no delivery of that id")
    if out[0].deleted:
        raise Refusal(Status.QUEUE_NOT_FOUND, f"{out[0].text} was deleted")
    session.say(pack(Type.NACK_OK, message_id))
    out[0].put_back((out,), nacked=True)


def _disconnect(session: "Session", message_id: int, payload: bytes) -> None:
    if payload:
        raise malformed("DISCONNECT has no payload")
    session.expire_all()
    session.say(pack(Type.DISCONNECT_OK, message_id))
    session.end(Event.DISCONNECT)


_HANDLERS: dict[int, Callable[["Session", int, bytes], None]] = {
    Type.HANDSHAKE: _handshake,
    Type.CREATE_QUEUE: _create,
    Type.DELETE_QUEUE: _delete,
    Type.LIST_QUEUES: _list,
    Type.PRODUCE: _produce,
    Type.CONSUME: _consume,
    Type.ACK: _ack,
    Type.NACK: _nack,
    Type.DISCONNECT: _disconnect,
}
assert _HANDLERS.keys() == REPLIES.keys()


def _only_name(payload: bytes) -> bytes:
    """The name that is all of the payload, checked. Raises Refusal."""
    name, end = split_name(payload)
    name_untrusted(name)
    if end != len(payload):
        raise malformed(f"{len(payload) - end} bytes too many behind the name")
    return name


def _existing(session: "Session", payload: bytes) -> Queue:
    """The queue whose name is all of the payload. Raises Refusal."""
    name = _only_name(payload)
    queue = session.broker.queues.get(name)
    if queue is None:
        raise Refusal(Status.QUEUE_NOT_FOUND, f"{name.decode()} does not exist")
    return queue


def _check_named(session: "Session", message_id: int, payload: bytes) -> None:
    """An ACK or NACK may name the queue, which then must be the delivery's. Raises Refusal."""
    if payload:
        name = _only_name(payload)
        out = session.held.get(message_id.to_bytes(4))
        if out is not None and out[0].name != name:
            raise malformed(f"that delivery is of {out[0].text}")


def _confirm(session: "Session", ticket: "Ticket | None", type_: Type, message_id: int) -> None:
    reply = pack(REPLIES[type_], message_id)
    if ticket is None:
        session.say(reply)
    else:
        session.owe(ticket, reply)
