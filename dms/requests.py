"""What each rare request of a connection does; `session` has the input, the order and the end.

A handler gets the message id and the whole payload. It raises Refusal.
PRODUCEs and PRODUCE_WITHs are in `dms.intake`; ACKs without payload, and CONSUMEs of the queue that is
consumed already, are in the session.

Source: PROTOCOL.md, "Messages".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dms import named_jobs
from dms.engine import Queue, deleted, not_held
from dms.job_head import JobHead
from dms.job_requests import job_name_untrusted, job_time_untrusted, nack_untrusted
from dms.options import options_untrusted
from dms.records import DeadLetter
from dms.states import TRANSITIONS, Event, State
from dms.wire import (
    ID_AT,
    REPLIES,
    Refusal,
    Status,
    Type,
    client_of,
    login_of,
    malformed,
    name_untrusted,
    pack,
    pack_list,
    pack_object,
    split_name,
    split_object,
)
from shared.access import MANAGE, READ, WRITE, Guard
from shared.net.stops import Stop
from shared.objects import client_name
from shared.queues.cold import is_cold
from shared.replies import ReplySlot
from shared.turns import batched

if TYPE_CHECKING:
    from dms.jobs import Jobs
    from dms.session import Session
    from shared.queues.runs import Run
    from shared.storage.store import Ticket

NO_NAME = b"\xff\xff\xff"
"""Begins no valid payload."""
SERVER_NAME = b"brokers dms"
LISTED_MAX = 600
"""As many queues as fit the answer to LIST_QUEUES, and more."""
LISTING = Stop.FIRST_OWN
"""A reason to hold input back, besides those of `Stop`: a listing is under way."""


def handle(session: Session, type_: int, message_id: int, payload: bytes) -> None:
    """Handle one complete request that is legal in this state."""
    handler = _HANDLERS.get(type_)
    try:
        if handler is not None:
            handler(session, message_id, payload)
        elif type_ != Type.DISCONNECT_OK:  # the answer to our DISCONNECT
            raise Refusal(Status.INVALID_TYPE, f"no request is of type {type_:#04x}")
    except Refusal as refusal:
        session.refuse(message_id, refusal)


def _handshake(session: Session, message_id: int, payload: bytes) -> None:
    if session.state is not State.NEW:
        raise malformed("the handshake was made")
    session.connection.first_request_done()
    session.client = client_name(client_of(payload))
    login = login_of(payload)

    def done(fits: bool) -> None:
        if fits:
            _welcome(session, message_id)
        else:
            _refuse_login(session, message_id, "wrong name or password")

    if login is not None:
        session.identity.log_in(*login, done)
    else:
        _welcome(session, message_id)


def _welcome(session: Session, message_id: int) -> None:
    engine = session.engine
    if not session.user:
        text = 'log in first: a HANDSHAKE of {"user": "...", "password": "..."}'
        _refuse_login(session, message_id, text)
        return
    if not engine.admit(session.consumer, session.user):
        limit = engine.settings.clients_max
        engine.counts.clients_refused += 1
        text = f"there are clients_max = {limit} clients already, or {session.user}'s share of them"
        session.refuse(message_id, Refusal(Status.INTERNAL, text, limit="clients_max"))
        session.end_by(Event.TOO_MANY)
        return
    session.state = TRANSITIONS[session.state][Event.HANDSHAKE]
    session.connection.outbox.on_clear = session.not_sent
    session.reply(pack(Type.HANDSHAKE_ACK, message_id, SERVER_NAME))


def _refuse_login(session: Session, message_id: int, text: str) -> None:
    error = Refusal(Status.DENIED, text).wire_error(message_id, Type.HANDSHAKE_NACK)
    session.close_with(error, Event.LOGIN_REFUSED)


def _create_queue(session: Session, message_id: int, payload: bytes) -> None:
    name_bytes, end = split_name(payload)
    name = name_untrusted(name_bytes)
    asked = options_untrusted(payload[end:], name)
    require(session, MANAGE, name_bytes)
    if asked.get("dead_letter"):
        require(session, WRITE, str(asked["dead_letter"]))
    _, ticket = session.engine.create(name, asked, session.user)
    session.engine.log.debug("queue created", peer=session.connection.peer, queue=name, options=asked)
    _confirm(session, ticket, Type.CREATE_QUEUE, message_id)


def _delete_queue(session: Session, message_id: int, payload: bytes) -> None:
    queue, engine = existing(session, MANAGE, payload), session.engine
    depth, ticket = queue.depth, engine.delete(queue)
    engine.log.debug("queue deleted", peer=session.connection.peer, queue=queue.text, messages=depth)
    session.identity.audit("delete", queue.name)
    _confirm(session, ticket, Type.DELETE_QUEUE, message_id)


def _confirm(session: Session, ticket: Ticket | None, type_: Type, message_id: int) -> None:
    session.answer(ticket, pack(REPLIES[type_], 0)[:ID_AT], (message_id.to_bytes(4),))


def _list_queues(session: Session, message_id: int, payload: bytes) -> None:
    after = _only_name(payload) if payload else None
    engine = session.engine
    if session.guard is None:
        queues = engine.queues
        found = [(name, queues[name].depth) for name in engine.names(after, LISTED_MAX)]
        session.reply(pack(Type.LIST_QUEUES_OK, message_id, pack_list(len(queues), found)))
        return
    session.pause_input(LISTING)
    session.flush()  # the list may be written at once, and comes behind the answers before it
    engine.long_work.add(_list_visible(session, session.guard, session.replies.slot(), message_id, after))


def _list_visible(
    session: Session, guard: Guard, slot: ReplySlot, message_id: int, after: bytes | None
) -> Iterator[None]:
    """LIST_QUEUES for a user with rules. Each name is looked up in them, also for the total."""
    engine, user = session.engine, session.user
    total, shown = 0, list[bytes]()
    try:
        for names in batched(engine.names(None, len(engine.queues))):
            visible = [name for name in names if guard.may_see(user, name)]
            total += len(visible)
            shown += [name for name in visible if after is None or name > after]
            yield
    finally:
        if not session.lost:
            found = [(name, engine.queues[name].depth) for name in shown if name in engine.queues]
            slot.resolve(pack(Type.LIST_QUEUES_OK, message_id, pack_list(total, found[:LISTED_MAX])))
            session.resume_next_turn(LISTING)


def _consume(session: Session, message_id: int, payload: bytes) -> None:
    """A CONSUME that needs a closer look: of another queue than the last, or one too many."""
    _begin_to_consume(session, payload, with_heads=False)
    session.consume((message_id.to_bytes(4),))


def _begin_to_consume(session: Session, payload: bytes, *, with_heads: bool) -> None:
    name = _only_name(payload)
    consumer = session.consumer
    if consumer.credits and session.queue is not None and session.queue.name != name:
        raise malformed(f"CONSUMEs of {session.queue.text} wait on this connection")
    if consumer.credits and session.tells_heads is not with_heads:
        raise malformed("CONSUMEs and CONSUME_WITHs do not wait on one connection")
    queue = existing(session, READ, payload)
    limit = session.engine.settings.credits_max
    if consumer.waiting >= limit:
        text = f"credits_max = {limit} CONSUMEs wait on this connection already"
        raise Refusal(Status.INTERNAL, text, limit="credits_max")
    session.queue, session.queue_name = queue, NO_NAME if with_heads else payload
    session.tells_heads = with_heads
    if consumer.queue is not queue:
        consumer.consume(queue)


def _consume_with(session: Session, message_id: int, payload: bytes) -> None:
    _begin_to_consume(session, payload, with_heads=True)
    session.consume((message_id.to_bytes(4),))


def deliveries_with(ids: Sequence[bytes], run: Run) -> bytes:
    """DELIVER_WITH frames of delivered messages."""
    frames = []
    for delivery_id, seq, body in zip(ids, run.numbers, run.bodies, strict=True):
        about = {"seq": seq, "deliveries": run.tries, **shown(run.head, body)}
        frames.append(pack(Type.DELIVER_WITH, int.from_bytes(delivery_id), pack_object(about) + body))
    return b"".join(frames)


def shown(head: JobHead | None, body: bytes) -> dict[str, Any]:
    """What a consumer is told of a message beside its body."""
    told: dict[str, Any] = {}
    if isinstance(body, DeadLetter):
        told = {"dead": body.told}
        if body.job:
            told |= JobHead.of(body.job).shown
    if head is not None and head.produced_ms:
        told |= head.shown
    return {"priority": 0, **told}


def _ack(session: Session, message_id: int, payload: bytes) -> None:
    _check_named(session, message_id, payload)
    session.ack_then_consume((message_id.to_bytes(4),), ())


def _nack(session: Session, message_id: int, payload: bytes) -> None:
    delay_ms, text = 0, ""
    if payload:
        name, end = split_name(payload)
        if not name or end < len(payload):
            delay_ms, text = nack_untrusted(payload[end:])
        _check_named(session, message_id, payload[:end] if name else b"")
    consumer = session.consumer
    deliveries = consumer.unacked.take((message_id.to_bytes(4),))
    if deliveries is None:
        raise not_held()
    ((_, queue, run),) = deliveries
    if consumer.user:
        consumer.gave((run,))
    if queue.deleted:
        queue.release((run,))
        raise deleted(queue)
    if delay_ms or text or queue.options.retry_ms:
        ticket = queue.requeue((run,), nacked=True, delay_ms=delay_ms, text=text)
        _confirm(session, ticket, Type.NACK, message_id)
    else:  # it may be delivered again at once, behind this answer
        session.reply(pack(Type.NACK_OK, message_id))
        queue.requeue((run,), nacked=True)


def _touch(session: Session, message_id: int, payload: bytes) -> None:
    _check_named(session, message_id, payload)
    delivery_id, consumer = message_id.to_bytes(4), session.consumer
    delivery = consumer.unacked.get(delivery_id)
    if delivery is None:
        raise not_held()
    queue = delivery[1]
    if queue.deleted:
        raise deleted(queue)
    if queue.deadlines is not None:
        queue.deadlines.begin(consumer, (delivery_id,))
    session.reply(pack(Type.TOUCH_OK, message_id))


def _named_job(session: Session, action: str, payload: bytes) -> tuple[Jobs, bytes]:
    """The jobs of the queue that a request names, and the JSON that says which one. Raises Refusal."""
    name, end = split_name(payload)
    name_untrusted(name)
    text, rest = split_object(payload, end)
    if rest:
        raise malformed(f"{len(rest)} bytes too many behind the JSON object")
    return existing(session, action, payload[:end]).made_for_jobs(), text


def _cancel(session: Session, message_id: int, payload: bytes) -> None:
    jobs, text = _named_job(session, WRITE, payload)
    _confirm(session, named_jobs.cancel(jobs, job_name_untrusted(text)), Type.CANCEL, message_id)


def _reschedule(session: Session, message_id: int, payload: bytes) -> None:
    jobs, text = _named_job(session, WRITE, payload)
    name, time = job_time_untrusted(text, session.engine.times.wall_ms())
    _confirm(session, named_jobs.reschedule(jobs, name, time), Type.RESCHEDULE, message_id)


def _get_job(session: Session, message_id: int, payload: bytes) -> None:
    jobs, text = _named_job(session, READ, payload)
    run, state = named_jobs.get(jobs, job_name_untrusted(text))
    due_ms = session.engine.times.unix_ms_of(run.head.due)
    slot = session.replies.slot()

    def answer() -> None:
        if session.lost:
            return
        if is_cold(run):
            refusal = Refusal(Status.INTERNAL, "the job cannot be read from the disk")
            slot.resolve(refusal.frames((message_id.to_bytes(4),)))
            return
        about = {"seq": run.first, "state": state, "deliveries": run.tries, **run.head.shown}
        if state == "waiting":
            about["due_ms"] = due_ms
        if run.head.text:
            about["text"] = run.head.text
        slot.resolve(pack(Type.GET_JOB_OK, message_id, pack_object(about) + run.bodies[0]))

    jobs.load((run,), answer)


def _check_named(session: Session, message_id: int, payload: bytes) -> None:
    """An ACK or NACK may name the queue, which then must be the delivery's. Raises Refusal."""
    if payload:
        name = _only_name(payload)
        delivery = session.consumer.unacked.get(message_id.to_bytes(4))
        if delivery is not None and delivery[1].name != name:
            raise malformed(f"that delivery is of {delivery[1].text}")


def _disconnect(session: Session, message_id: int, payload: bytes) -> None:
    if payload:
        raise malformed("DISCONNECT has no payload")
    session.expire_credits(math.inf)
    if session.consumer.unacked:
        session.untried = min(session.consumer.unacked.runs).__ne__
    session.reply(pack(Type.DISCONNECT_OK, message_id))
    session.end_by(Event.DISCONNECT)


def require(session: Session, action: str, name: bytes | str) -> None:
    """Raise Refusal if the user may not do that."""
    if session.guard is not None and not session.identity.may(action, name):
        raise Refusal(Status.DENIED, "not allowed")


def existing(session: Session, action: str, payload: bytes) -> Queue:
    """The queue named by the whole payload, for a user who may do `action` to it. Raises Refusal."""
    name = _only_name(payload)
    require(session, action, name)
    queue = session.engine.queues.get(name)
    if queue is None:
        raise Refusal(Status.QUEUE_NOT_FOUND, f"{name.decode()} does not exist")
    return queue


def _only_name(payload: bytes) -> bytes:
    """The name that is the whole payload, checked. Raises Refusal."""
    name, end = split_name(payload)
    name_untrusted(name)
    if end != len(payload):
        raise malformed(f"{len(payload) - end} bytes too many behind the name")
    return name


_HANDLERS: Mapping[int, Callable[[Session, int, bytes], None]] = {
    Type.HANDSHAKE: _handshake,
    Type.CREATE_QUEUE: _create_queue,
    Type.DELETE_QUEUE: _delete_queue,
    Type.LIST_QUEUES: _list_queues,
    Type.CONSUME: _consume,
    Type.CONSUME_WITH: _consume_with,
    Type.ACK: _ack,
    Type.NACK: _nack,
    Type.TOUCH: _touch,
    Type.CANCEL: _cancel,
    Type.RESCHEDULE: _reschedule,
    Type.GET_JOB: _get_job,
    Type.DISCONNECT: _disconnect,
}
"""By type. PRODUCE and PRODUCE_WITH have none: they are combined with their neighbours."""
assert _HANDLERS.keys() == REPLIES.keys() - {Type.PRODUCE, Type.PRODUCE_WITH}
