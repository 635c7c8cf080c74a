"""One DMS connection: frames to changes of queues, in order, all that one read brings.

Theory of operation. `apply` handles all complete frames of a read. Neighbours are combined: PRODUCEs into one
`Queue.produce` per queue, ACKs into one change, CONSUMEs into one credit. Stretches of byte-alike frames are
cut into columns by one `struct`, and not parsed frame by frame (`dms.runs`). Output is collected and written
once at the end.

Answers that wait for the disk take their place in `Replies`, which keeps the order of requests. Deliveries,
and answers to CONSUMEs that have waited, are pushes and take none.

`receive` has a fast path above all this, for clients that wait for each answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dms import intake, requests, runs
from dms.ack_lag import AckLag
from dms.engine import Consumer, Credit, Engine, Outcome, Queue
from dms.refusals import Refusals
from dms.requests import NO_NAME
from dms.runs import (
    ACK,
    ACK_OK,
    CONSUME,
    DELIVER,
    PRODUCE_OK,
    TYPE_AND_VERSION_BITS,
    TYPE_BITS,
    VERSION_BITS,
    WORDS,
    word,
)
from dms.states import TRANSITIONS, Event, State
from dms.wire import (
    HEADER,
    HEADER_BYTES,
    ID_AT,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    TYPE_AT,
    VERSION,
    Refusal,
    Status,
    Type,
    malformed,
    pack,
    refusal_for,
    unpack_header,
)
from shared.access import READ, WRITE, Guard
from shared.errors import RemoteProtocolError, StoreError
from shared.net.connection import Connection
from shared.net.session import SessionBase
from shared.net.stops import STOP_WORDS
from shared.queues.core import SLACK_BYTES
from shared.turns import Turn

if TYPE_CHECKING:
    from shared.queues.runs import Run
    from shared.storage.store import Ticket

_STOP_WORDS = STOP_WORDS | {requests.LISTING: "a listing"}

# Deadlines.
_CREDITS = 0  # of the oldest credit
_TOO_MUCH_HELD = "the server has no memory for more deliveries until some are acknowledged"
_TOO_MANY_WAIT = "the server has no memory for more CONSUMEs that wait"
_SAID_NOTHING = malformed("no handshake came in time; closing").frame(0)

_ACK = word(Type.ACK)
_CONSUME = word(Type.CONSUME)
_PRODUCE = word(Type.PRODUCE)
_PRODUCE_WITH = word(Type.PRODUCE_WITH) & TYPE_BITS
# Looking up an enum member takes 60 ns, ten times as long as a name.
_OPEN = State.OPEN
_ACK_TYPE, _PRODUCE_TYPE = int(Type.ACK), int(Type.PRODUCE)
_VERSION = VERSION << 16
_NO_FRAME = (0, 0, 0, 0)
_unpack = WORDS.unpack_from
assert HEADER.size == WORDS.size == HEADER_BYTES


class Session(SessionBase):
    """The server's side of one connection. Message and delivery ids are bytes, as in frames.

    `queue`: whose CONSUMEs may wait; `queue_name`: the payload that named it.
    """

    __slots__ = (
        "_ack_lag",
        "_credit_due",
        "_out",
        "_refusals",
        "_skip",
        "_skip_id",
        "client",
        "consumer",
        "engine",
        "produced",
        "queue",
        "queue_name",
        "state",
        "tells_heads",
        "untried",
        "writable",
    )
    stop_words = _STOP_WORDS

    def __init__(
        self, connection: Connection, engine: Engine, refusals: Refusals, gate: Guard | None = None
    ) -> None:
        super().__init__(connection, engine.settings.frame_seconds)
        self.engine = engine
        self.writable: dict[bytes, Queue] | _Writable = engine.queues  # those that the user may write to
        self._refusals = refusals
        self.consumer: Consumer = engine.consumer(self)
        self.client = ""
        self.produced = 0
        self.queue: Queue | None = None
        self.queue_name = NO_NAME
        self.tells_heads = False
        """Its CONSUMEs are CONSUME_WITHs: then a CONSUME always takes a closer look."""
        self.state = State.NEW
        self._out: list[bytes] | None = None  # output collected while input is applied
        self._skip = self._skip_id = 0  # bytes left of a too large payload
        self._credit_due = math.inf
        self._ack_lag = AckLag(connection)
        self.untried: Callable[[bytes], bool] | None = None
        """Whether a delivery, by its id, cannot have been tried when the connection ended. None: all were."""
        engine.log.debug("client connected", peer=connection.peer)
        self.identity.admit(gate)
        self._set_queues()
        self.identity.await_first_request(_SAID_NOTHING)

    # -- the fast path

    def receive(self, data: bytes) -> None:
        """Fast path above `apply`, for clients that wait for each answer.

        A consumer with one credit sends an ACK and the next CONSUME, in one write or two. A worker sends the
        PRODUCE of its result between them. A producer that waits for each answer sends one PRODUCE. Looking
        for neighbours where there are none costs more than the request itself. With 64 queues and a credit of
        one a message takes 14 us in process, and 22 without this; in memory 4.6 and 11.4.
        """
        if self.state is _OPEN and not (self.kept or self.stopped):
            size = len(data)
            name = self.queue_name
            what = data[TYPE_AT] if size > TYPE_AT else 0
            if what == _PRODUCE_TYPE:
                done = self._fast_produce(data, 0, size) * size
            elif what == _ACK_TYPE and data.startswith(ACK):
                done = self._fast_turn(data)
            elif (
                size == HEADER_BYTES + len(name)
                and data.startswith(CONSUME[len(name)])
                and data.endswith(name)
                and self._may_want(1)
            ):
                self.consume((data[ID_AT:HEADER_BYTES],))
                done = size
            else:
                done = 0
            if not done and size >= runs.RUN_LEAST * HEADER_BYTES:
                done = self._fast_run(data)
            if done == size:
                durable, outbox = self.engine.durable, self.connection.outbox
                if outbox.size > outbox.bound or (durable is not None and durable.congested):
                    self._is_crowded()
                return
            if done:
                data = data[done:]
        super().receive(data)

    def _fast_produce(self, data: bytes, start: int, stop: int) -> bool:
        """Handle one complete PRODUCE, if that is all and there is room."""
        payload = start + HEADER_BYTES
        if not 2 < stop - payload <= PAYLOAD_BYTES_MAX:
            return False
        magic, length, what, _ = _unpack(data, start)
        if what != _PRODUCE or magic != MAGIC or length != stop - payload:
            return False
        body = payload + 2 + (data[payload] << 8 | data[payload + 1])
        queue = self.writable.get(data[payload + 2 : body])
        size = stop - body
        if queue is None or size < 0 or queue.depth >= queue.options.depth:
            return False
        try:
            ticket = queue.produce((data[body:stop],), size)
        except Refusal:
            return False  # the slow path refuses it
        self.produced += 1
        reply = PRODUCE_OK + data[start + ID_AT : payload]
        if ticket is None:
            self.reply(reply)
        else:
            self.replies.reply_after(ticket, reply)
        return True

    def _fast_turn(self, data: bytes) -> int:
        """Handle an ACK, alone or followed by a CONSUME of the same queue, maybe with a PRODUCE between them.

        Returns how many bytes are done; the rest is for `apply`. 0 is always right.
        """
        name, queue, consumer = self.queue_name, self.queue, self.consumer
        last = len(data) - HEADER_BYTES - len(name)
        alone = len(data) == HEADER_BYTES
        if not alone and (
            last < HEADER_BYTES
            or self.tells_heads
            or not data.startswith(CONSUME[len(name)], last)
            or not data.endswith(name)
        ):
            return 0
        produces = last > HEADER_BYTES
        if produces and data[HEADER_BYTES + TYPE_AT] != _PRODUCE_TYPE:
            return 0
        ack_id = data[ID_AT:HEADER_BYTES]
        delivery = consumer.unacked.runs.get(ack_id)
        if (
            delivery is None
            or len(delivery[0]) > 1
            or delivery[1] is not queue
            or queue.deleted
            or consumer.waiting >= self.engine.settings.credits_max
        ):
            return 0
        try:
            ticket = queue.ack(consumer, (delivery,))
        except Refusal:
            return 0
        del consumer.unacked.runs[ack_id]
        consumer.unacked.count -= 1
        reply = ACK_OK + ack_id
        if ticket is None:
            self.reply(reply)
        else:
            self._acked_after(ticket, reply, 1)
        if alone:
            return HEADER_BYTES
        if produces and not self._fast_produce(data, HEADER_BYTES, last):
            return HEADER_BYTES
        self.consume((data[last + ID_AT : last + HEADER_BYTES],))
        return len(data)

    def _fast_run(self, data: bytes) -> int:
        """Handle the run with which a read begins: from a client with a window that is mostly all of it.

        With a window of 4 a message in memory takes 5.1 us, and 6.0 by `apply` alone; with 16, 1.7 and 1.9.
        Returns how many bytes are done; the rest is for `apply`. 0 is always right.
        """
        magic, length, what, _ = _unpack(data, 0)
        if magic != MAGIC or length > PAYLOAD_BYTES_MAX:
            return 0
        step = runs.step(data, 0, what, length, self.queue_name)
        return self._apply_run(data, 0, what, length, step) * step if step else 0

    # -- input

    def apply(self, data: bytes, at: int) -> int:
        self._out = []
        try:
            at = self._frames(data, at)
        except RemoteProtocolError as error:
            self.close_with(error, Event.BROKEN)
        finally:
            self.flush()
        self.amid = self._skip > 0
        return at

    def _frames(self, data: bytes, at: int) -> int:
        """Handle the frames; returns the position behind the last one applied.

        ACKs, and behind them CONSUMEs of `queue`, are gathered and applied together. Runs are applied whole.
        """
        end = len(data)
        acks: list[bytes] = []
        wants: list[bytes] = []
        no_run = at  # up to here no run begins
        start, turn = at, self.turn
        while end - at >= HEADER_BYTES or (self._skip and at < end):
            if at > start and turn.over():
                self.yield_turn()
                break
            magic, length, what, message_id = _unpack(data, at) if self.state is _OPEN else _NO_FRAME
            stop = at + HEADER_BYTES + length
            whole = magic == MAGIC and length <= PAYLOAD_BYTES_MAX and stop <= end
            step = runs.step(data, at, what, length, self.queue_name) if whole and at >= no_run else 0
            if step:
                if acks or wants:
                    self.ack_then_consume(acks, wants)
                    acks, wants = [], []
                count = self._apply_run(data, at, what, length, step)
                at += count * step
                if not count:
                    no_run = at + runs.RUN_MOST * step
                elif self._must_pause(turn, at < end):
                    break
                else:
                    continue
            if whole and what == _ACK and not length:
                if wants and self.engine.delivery_ids.come_soon(message_id, len(wants)):
                    self.ack_then_consume(acks, wants)  # the CONSUMEs may bring what is acknowledged
                    acks, wants = [], []
                acks.append(data[at + ID_AT : stop])
                at = stop
                continue
            if (
                whole
                and what == _CONSUME
                and length == len(self.queue_name)
                and data.startswith(self.queue_name, at + HEADER_BYTES)
                and self._may_want(len(wants) + 1)
            ):
                wants.append(data[at + ID_AT : at + HEADER_BYTES])
                at = stop
                continue
            if acks or wants:
                self.ack_then_consume(acks, wants)
                acks, wants = [], []
            if not whole or what & VERSION_BITS != _VERSION:
                after = self._rare_frame(data, at)
                if after < 0 or self.ended:
                    break
                at = after
                if self.stopped:  # a login is being checked
                    break
            elif what & TYPE_BITS == _PRODUCE & TYPE_BITS or what & TYPE_BITS == _PRODUCE_WITH:
                if what & TYPE_BITS == _PRODUCE_WITH:
                    at = intake.produce_jobs(self, data, at)
                else:
                    at = intake.produce_frames(self, data, at, length)
                if self._must_pause(turn, at < end):
                    break
            else:
                requests.handle(self, what >> 24, message_id, data[at + HEADER_BYTES : stop])
                at = stop
                if self.ended or self._must_pause(turn, at < end):
                    break  # nothing behind a DISCONNECT counts
        if acks or wants:
            self.ack_then_consume(acks, wants)
        self._is_crowded()
        return at

    def _must_pause(self, turn: Turn, more: bool) -> bool:
        """Whether to stop behind requests that may take long; `more`: there is more input."""
        if self._is_crowded():
            return True
        if more and turn.over_now():
            self.yield_turn()
            return True
        return False

    def _apply_run(self, data: bytes, at: int, what: int, length: int, step: int) -> int:
        """Apply the run that may begin at `at`: PRODUCEs, ACKs, CONSUMEs of `queue`, or ACKs with a CONSUME
        of `queue` behind each. Returns how many steps were done; 0: it is no run, or takes a closer look.
        """
        if what & TYPE_AND_VERSION_BITS == _PRODUCE:
            return intake.produce_run(self, data, at, length)
        name = self.queue_name
        acks: Sequence[bytes] | None = None
        wants: Sequence[bytes] | None = None
        if what == _CONSUME:
            if length == len(name) and data.startswith(name, at + HEADER_BYTES):
                wants = runs.alike(data, at, length)
        elif what == _ACK and not length:
            if step == HEADER_BYTES:
                acks = runs.alike(data, at, 0)
            else:
                acks, wants = runs.by_turns(data, at, name) or (None, None)
        if wants is not None and not self._may_want(len(wants)):
            return 0
        if acks is not None and not self._try_ack(acks):
            return 0
        if wants is not None:
            self.consume(wants)
        return len(acks or wants or ())

    def _rare_frame(self, data: bytes, at: int) -> int:
        """Handle a rare kind of frame; returns the position behind it, -1 if it is incomplete."""
        if self._skip:
            skipped = min(self._skip, len(data) - at)
            self._skip -= skipped
            if self._skip:
                return len(data)
            text = f"a payload is at most {PAYLOAD_BYTES_MAX} bytes"
            self.refuse(self._skip_id, Refusal(Status.PAYLOAD_TOO_LARGE, text))
            self.state = TRANSITIONS[self.state][Event.SKIPPED]
            return at + skipped
        header = unpack_header(data, at)
        if header is None:
            return -1
        length, type_, version, _, message_id = header
        if length > PAYLOAD_BYTES_MAX:
            self._skip, self._skip_id = length, message_id
            self.state = TRANSITIONS[self.state][Event.TOO_LARGE]
            self.begin_input(self.input_seconds)
            return at + HEADER_BYTES
        if version != VERSION:
            refusal = Refusal(Status.VERSION_MISMATCH, f"this server speaks version {VERSION}, not {version}")
            nack = type_ == Type.HANDSHAKE
            error = refusal.wire_error(message_id, Type.HANDSHAKE_NACK if nack else Type.ERROR)
            self.close_with(error, Event.BROKEN)
            return at
        if self.state is State.NEW and type_ != Type.HANDSHAKE:
            self.close_with(malformed("the handshake comes first").wire_error(message_id), Event.TOO_EARLY)
            return at
        stop = at + HEADER_BYTES + length
        if stop > len(data):
            return -1
        requests.handle(self, type_, message_id, data[at + HEADER_BYTES : stop])
        return stop

    # -- CONSUME

    def consume(self, ids: Sequence[bytes]) -> None:
        """CONSUMEs of `queue`."""
        queue, consumer, engine = self.queue, self.consumer, self.engine
        assert queue is not None
        count = len(ids)
        if self.hung_up:
            engine.counts.timeouts += count
            self.refuse_all(ids, _not_in_time())
            return
        memory = engine.memory
        if memory.held_full or memory.held_bytes - memory.held_charged > SLACK_BYTES:
            memory.sync()
            if memory.held_full:
                self.refuse_all(ids, Refusal(Status.INTERNAL, _TOO_MUCH_HELD, limit="memory"))
                return
        if consumer.user and not consumer.has_room:
            text = f"{consumer.user} holds his share of memory for deliveries: acknowledge some"
            self.refuse_all(ids, Refusal(Status.INTERNAL, text, limit="memory"))
            return
        cold = queue.cold
        if cold is not None and (cold.teller.untold is not None or cold.teller.error is not None):
            self.refuse_all(ids, cold.teller.tell())
            return
        waiting = consumer.waiting + count
        if waiting > consumer.credits_room and not consumer.may_wait(count):
            self.refuse_all(ids, Refusal(Status.INTERNAL, _TOO_MANY_WAIT, limit="memory"))
            return
        lag = self._ack_lag
        asked = waiting + consumer.unacked.count
        if asked > lag.credits_most:
            lag.credits_most = asked
        behind = lag.acking and lag.is_behind
        if (
            count == 1
            and not (behind or consumer.credits or queue.line or queue.stops)
            and (queue.ready.loaded or queue.ready.requeued)
            and queue.deliver_next(1, consumer)
        ):
            return
        credit = Credit(consumer, queue, ids, self.connection.now + engine.settings.consume_seconds)
        if behind or lag.deferred:
            lag.defer(credit)
        else:
            queue.line_up(credit)
        if consumer.credits:
            if engine.draining:
                self.expire_credits(math.inf)
            elif self._credit_due == math.inf:
                self._await_credits()

    def _may_want(self, count: int) -> bool:
        """Whether `count` CONSUMEs of `queue` are valid without a closer look."""
        queue = self.queue
        return (
            queue is not None
            and not (queue.deleted or self.tells_heads)
            and self.consumer.waiting + count <= self.engine.settings.credits_max
        )

    def _await_credits(self) -> None:
        credits = self.consumer.credits
        self._credit_due = credits[0].deadline if credits else math.inf
        self.deadline(_CREDITS, self._credit_due)

    def expire_credits(self, now: float) -> None:
        """Answer CONSUMEs that have waited long enough."""
        consumer = self.consumer
        while consumer.credits and consumer.credits[0].deadline <= now:
            credit = consumer.credits[0]
            self.engine.counts.timeouts += credit.left
            consumer.end(credit, _not_in_time())

    # -- ACK

    def ack_then_consume(self, acks: Sequence[bytes], wants: Sequence[bytes]) -> None:
        """Apply what was collected. ACKs come first: they cannot be of what a CONSUME beside them brings."""
        if acks and not self._try_ack(acks):
            self._answer_acks(self.engine.ack_each(self.consumer, acks))
        if wants:
            self.consume(wants)

    def _try_ack(self, ids: Sequence[bytes]) -> bool:
        """Apply ACKs of held messages; False, and nothing is done, if one is not held."""
        outcomes = self.engine.ack(self.consumer, ids)
        self._answer_acks(outcomes)
        return bool(outcomes)

    def _answer_acks(self, outcomes: Sequence[tuple[Sequence[bytes], Outcome]]) -> None:
        for ids, outcome in outcomes:
            if outcome is None or isinstance(outcome, Refusal):
                self.answer(outcome, ACK_OK, ids)
            else:
                self._acked_after(outcome, runs.answers(ACK_OK, ids), len(ids))

    def _acked_after(self, ticket: Ticket, reply: bytes, count: int) -> None:
        """Answer `count` ACKs once the disk has them."""
        self.replies.reply_after(ticket, reply, count)
        self._ack_lag.expect(ticket, count)

    # -- login and access

    def _set_queues(self) -> None:
        queues = self.engine.queues
        self.writable = queues if self.guard is None else _Writable(queues, self.guard, self.user)

    @property
    def waits_for(self) -> list[str]:
        consumer = self.consumer
        if not consumer.credits:
            return super().waits_for
        return [*super().waits_for, f"{consumer.waiting} messages of {consumer.credits[0].queue.text}"]

    @property
    def traffic(self) -> Mapping[str, Any]:
        consumer = self.consumer
        return {
            "messages_in": self.produced,
            "messages_out": consumer.delivered,
            "held": len(consumer.unacked),
            "client": self.client or None,
        }

    def access_changed(self) -> None:
        """End what may no longer be read: waiting CONSUMEs are refused. What is held may be acknowledged."""
        super().access_changed()
        if self.ended:
            return
        self._set_queues()
        guard = self.guard
        if guard is None:
            return
        consumer = self.consumer
        if consumer.credits and not guard.may(self.user, READ, consumer.credits[0].queue.name):
            consumer.end_all(Refusal(Status.DENIED, "not allowed"))  # all are of one queue
        if self.queue is not None and not guard.may(self.user, READ, self.queue.name):
            self.queue, self.queue_name = None, NO_NAME
            consumer.consume(None)

    # -- calls of the engine

    def deliver(self, ids: Sequence[bytes], run: Run) -> None:
        bodies = run.bodies
        if self.tells_heads:
            data = requests.deliveries_with(ids, run)
        elif len(ids) == 1:
            data = DELIVER[len(bodies[0])] + ids[0] + bodies[0]
        else:
            data = runs.deliveries(ids, bodies)
        resolving, acking = self.engine.resolving, self._ack_lag.acking
        if resolving is not None and acking and acking[-1] is resolving:
            self.replies.reply_after(resolving, data, 0)  # with the answers to ACKs, in one write
        elif self._out is None:
            self.connection.write(data)
        else:
            self._out.append(data)

    def end_credits(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        self._refusals.note(self.connection, refusal, len(ids))
        self.push(refusal.frames(ids))

    def kick(self, reason: str) -> None:
        if self.state is State.OPEN and not self.connection.outbox.size:  # the peer still reads
            self.connection.write(pack(Type.DISCONNECT, 0))
            self.state = TRANSITIONS[self.state][Event.DRAIN]
            self.end()
            self.connection.finish()
        else:
            super().kick(reason)

    def drain(self) -> None:
        """The server stops: pending input is answered, CONSUMEs end as if timed out, then the connection
        ends.
        """
        if self.kept and self.stopped and not self.ended:
            self.apply_kept()
        self.expire_credits(math.inf)
        if self.state is not State.CLOSING:
            goodbye = self.state is State.OPEN or self.state is State.SKIPPING
            self.state = TRANSITIONS[self.state][Event.DRAIN]
            self.ended = True
            if goodbye:
                self.reply(pack(Type.DISCONNECT, 0))
            self.finish_when_answered()

    def fail(self, error: Exception) -> None:
        self.connection.fail(error)

    # -- answers

    def reply(self, data: bytes) -> None:
        if self.replies.pending:
            self.replies.reply(data)
        elif self._out is None:  # `push`, inlined: every answer from memory comes through here
            self.connection.write(data)
        else:
            self._out.append(data)

    def reply_after(self, ticket: Ticket, data: bytes, count: int = 1) -> None:
        if ticket.done and ticket.error is None:
            self.reply(data)
        else:
            self.replies.reply_after(ticket, data, count)

    def push(self, data: bytes) -> None:
        if self._out is None:
            self.connection.write(data)
        else:
            self._out.append(data)

    def flush(self) -> None:
        """Write what was collected."""
        out, self._out = self._out, None
        if out:
            self.connection.write(out[0] if len(out) == 1 else b"".join(out))

    def answer(self, outcome: Outcome, head: bytes, ids: Sequence[bytes]) -> None:
        """Give several requests the same answer; `head` begins those that succeed."""
        if isinstance(outcome, Refusal):
            self.refuse_all(ids, outcome)
        elif outcome is None:
            self.reply(runs.answers(head, ids))
        else:
            self.reply_after(outcome, runs.answers(head, ids), len(ids))

    def refuse(self, message_id: int, refusal: Refusal) -> None:
        self.refuse_all((message_id.to_bytes(4),), refusal)

    def refuse_all(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        self._refusals.note(self.connection, refusal, len(ids))
        self.reply(refusal.frames(ids))

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        engine = self.engine
        if engine.memory_only:
            engine.count_not_durable(count)
            return reply
        refusal = refusal_for(error)
        self._refusals.note(self.connection, refusal, count)
        return refusal.frames(runs.answered(reply))

    def _is_crowded(self) -> bool:
        """Stop if answers pile up; whether input is held back."""
        durable, outbox = self.engine.durable, self.connection.outbox
        if durable is not None and durable.congested:
            self.stop_if_congested(durable)
        if outbox.size > outbox.bound:
            self.stop_if_crowded()
        return self.stopped != 0

    # -- deadlines and the end

    def due(self, what: int, now: float) -> None:
        self.expire_credits(now)
        if not self.ended:
            self._await_credits()

    def too_late(self) -> None:
        self.engine.counts.too_late += 1
        self.close_with(malformed("a frame took too long to come; closing").wire_error(), Event.TOO_LATE)

    def hang_up(self) -> None:
        super().hang_up()
        self.expire_credits(math.inf)

    def input_ended(self) -> None:
        """The peer can acknowledge nothing more: its CONSUMEs end, and what it holds goes back."""
        self.expire_credits(math.inf)
        outbox = self.connection.outbox
        self.not_sent(outbox.chunks or (), outbox.begun)
        self.end_by(Event.INPUT_ENDS)

    def connection_lost(self) -> None:
        held = len(self.consumer.unacked)
        self.engine.log.debug("client gone", peer=self.connection.peer, held=held)
        super().connection_lost()

    def release(self) -> None:
        self.connection.outbox.on_clear = None
        self.engine.gone(self.consumer, self.untried)

    def not_sent(self, chunks: Collection[Any], begun: Any) -> None:
        """The connection ends, and these bytes were not sent: nobody could try the messages in them.

        `begun`: the first chunk, whole. If it is no longer than what is left of it, the transport does not
        tell how much was sent. Then the whole chunk counts as sent.
        """
        if not (chunks and self.consumer.unacked):
            return
        first, *others = map(bytes, chunks)
        whole = first if begun is None else bytes(begun)
        data = b"".join((whole, *others))
        sent = len(whole) - len(first) or (len(whole) if begun is not None else 0)
        self.untried = set(runs.delivered_behind(data, sent)).__contains__

    def close_with(self, error: RemoteProtocolError, event: Event) -> None:
        """The last answer: nothing behind it can be parsed. It is not the driver that sends it, because
        answers that wait for the disk come first.
        """
        self._refusals.note_last(self.connection, error)
        self.reply(error.reply)
        self.end_by(event)

    def end_by(self, event: Event) -> None:
        """Take no more input; pending answers are sent, then the connection ends."""
        self.state = TRANSITIONS[self.state][event]
        self.end()
        self.flush()
        self.finish_when_answered()


class _Writable:
    """The queues that a user may write to; others appear as missing."""

    __slots__ = ("_guard", "_queues", "_user")

    def __init__(self, queues: dict[bytes, Queue], guard: Guard, user: str) -> None:
        self._queues, self._guard, self._user = queues, guard, user

    def get(self, name: bytes) -> Queue | None:
        queue = self._queues.get(name)
        return queue if queue is not None and self._guard.may(self._user, WRITE, name) else None


def _not_in_time() -> Refusal:
    return Refusal(Status.TIMEOUT, "no message in time")
