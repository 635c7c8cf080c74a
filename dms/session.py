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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dms import runs
from dms.engine import Consumer, Credit, Engine, Outcome, Queue, not_held
from dms.options import options_untrusted
from dms.refusals import Refusals
from dms.runs import ACK, ACK_OK, CONSUME, DELIVER, PRODUCE_OK, WORDS, word
from dms.states import TRANSITIONS, Event, State
from dms.wire import (
    HEADER,
    HEADER_BYTES,
    ID_AT,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    REPLIES,
    TYPE_AT,
    VERSION,
    Refusal,
    Status,
    Type,
    login_of,
    malformed,
    name_untrusted,
    pack,
    pack_list,
    refusal_for,
    split_name,
    unpack_header,
)
from shared.access import MANAGE, READ, WRITE, Guard
from shared.errors import RemoteProtocolError, StoreError
from shared.net.connection import Connection
from shared.net.session import STOP_WORDS, SessionBase, Stop
from shared.queues.core import SLACK_BYTES
from shared.replies import ReplySlot
from shared.turns import Turn, batched

if TYPE_CHECKING:
    from shared.storage.store import Ticket

SERVER_NAME = b"brokers dms"
LISTED_MAX = 600
"""As many queues as fit the answer to LIST_QUEUES, and more."""
ACKS_BEYOND_CREDITS = 2
"""One for the commit under way and one for the next, so that a consumer with one credit never waits for the
disk."""

# A reason to hold input back, besides those of `Stop`.
_LISTING = Stop.FIRST_OWN  # a listing is under way
_STOP_WORDS = STOP_WORDS | {_LISTING: "a listing"}

# Deadlines.
_CREDITS = 0  # of the oldest credit
_NOBODY = b"\xff\xff\xff"  # begins no valid payload
_TOO_MUCH_HELD = "the server has no memory for more deliveries until some are acknowledged"
_TOO_MANY_WAIT = "the server has no memory for more CONSUMEs that wait"
_SAID_NOTHING = malformed("no handshake came in time; closing").frame(0)

_ACK = word(Type.ACK)
_CONSUME = word(Type.CONSUME)
_PRODUCE = word(Type.PRODUCE)
# Looking up an enum member takes 60 ns, ten times as long as a name.
_OPEN = State.OPEN
_ACK_TYPE, _PRODUCE_TYPE = int(Type.ACK), int(Type.PRODUCE)
_VERSION = VERSION << 16
_VERSION_BITS = 0x00FF0000
_TYPE_BITS = 0xFF000000
_TYPE_AND_VERSION_BITS = _TYPE_BITS | _VERSION_BITS
_NO_FRAME = (0, 0, 0, 0)
_unpack = WORDS.unpack_from
assert HEADER.size == WORDS.size == HEADER_BYTES


class Session(SessionBase):
    """The server's side of one connection. Message and delivery ids are bytes, as in frames.

    `queue`: whose CONSUMEs may wait; `queue_name`: the payload that named it.
    """

    __slots__ = (
        "_acking",
        "_credit_due",
        "_deferred",
        "_engine",
        "_most_credits",
        "_out",
        "_queues",
        "_refusals",
        "_skip",
        "_skip_id",
        "_untried",
        "consumer",
        "produced",
        "queue",
        "queue_name",
        "state",
    )
    stop_words = _STOP_WORDS

    def __init__(
        self, connection: Connection, engine: Engine, refusals: Refusals, gate: Guard | None = None
    ) -> None:
        super().__init__(connection, engine.settings.frame_seconds)
        self._engine = engine
        self._queues: dict[bytes, Queue] | _Writable = engine.queues  # those that the user may write to
        self._refusals = refusals
        self.consumer: Consumer = engine.consumer(self)
        self.produced = 0
        self.queue: Queue | None = None
        self.queue_name = _NOBODY
        self.state = State.NEW
        self._out: list[bytes] | None = None  # output collected while input is applied
        self._skip = self._skip_id = 0  # bytes left of a too large payload
        self._credit_due = math.inf
        self._acking: deque[Ticket] = deque()
        """For each ACK that is not answered, and maybe for answered ones before it, what it waits for."""
        self._most_credits = 0
        self._untried: Callable[[bytes], bool] | None = None
        """Whether a delivery, by its id, cannot have been tried when the connection ended. None: all were."""
        self._deferred: deque[Credit] | tuple[()] = ()  # made when first needed
        engine.log.debug("client connected", peer=connection.peer)
        self.admit(gate)
        self._set_queues()
        self.await_first_request(_SAID_NOTHING)

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
                self._consume((data[ID_AT:HEADER_BYTES],))
                done = size
            else:
                done = 0
            if done == size:
                durable, outbox = self._engine.durable, self.connection.outbox
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
        queue = self._queues.get(data[payload + 2 : body])
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
            last < HEADER_BYTES or not data.startswith(CONSUME[len(name)], last) or not data.endswith(name)
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
            or consumer.waiting >= self._engine.settings.credits_max
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
        self._consume((data[last + ID_AT : last + HEADER_BYTES],))
        return len(data)

    # -- input

    def apply(self, data: bytes, at: int) -> int:
        self._out = []
        try:
            at = self._frames(data, at)
        except RemoteProtocolError as error:
            self._close_with(error, Event.BROKEN)
        finally:
            self._flush()
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
        start, turn = at, Turn()
        while end - at >= HEADER_BYTES or (self._skip and at < end):
            if at > start and turn.over():
                self.yield_turn()
                break
            magic, length, what, message_id = _unpack(data, at) if self.state is _OPEN else _NO_FRAME
            stop = at + HEADER_BYTES + length
            whole = magic == MAGIC and length <= PAYLOAD_BYTES_MAX and stop <= end
            step = self._run_step(data, at, what, length) if whole and at >= no_run else 0
            if step:
                if acks or wants:
                    self._ack_then_consume(acks, wants)
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
                if wants and self._engine.comes_soon(message_id, len(wants)):
                    self._ack_then_consume(acks, wants)  # the CONSUMEs may bring what is acknowledged
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
                self._ack_then_consume(acks, wants)
                acks, wants = [], []
            if not whole or what & _VERSION_BITS != _VERSION:
                after = self._rare_frame(data, at)
                if after < 0 or self.ended:
                    break
                at = after
                if self.stopped:  # a login is being checked
                    break
            elif what & _TYPE_BITS == _PRODUCE & _TYPE_BITS:
                at = self._produce(data, at, length)
                if self._must_pause(turn, at < end):
                    break
            else:
                self._request(what >> 24, message_id, data[at + HEADER_BYTES : stop])
                at = stop
                if self.ended or self._must_pause(turn, at < end):
                    break  # nothing behind a DISCONNECT counts
        if acks or wants:
            self._ack_then_consume(acks, wants)
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

    def _run_step(self, data: bytes, at: int, what: int, length: int) -> int:
        """Bytes of a step of the run that may begin at `at`: of a frame, or of an ACK with a CONSUME. 0: none
        begins, because the frame some steps further on begins otherwise.

        To examine the rest costs as much as to apply some frames. So ask this first; and where it is no run
        after all, do not ask again within `RUN_MOST` steps.
        """
        step = HEADER_BYTES + length
        if what == _ACK and not data.startswith(ACK, at + step):
            step += HEADER_BYTES + len(self.queue_name)
        return step if data.startswith(data[at : at + ID_AT], at + (runs.RUN_LEAST - 1) * step) else 0

    def _apply_run(self, data: bytes, at: int, what: int, length: int, step: int) -> int:
        """Apply the run that may begin at `at`: PRODUCEs, ACKs, CONSUMEs of `queue`, or ACKs with a CONSUME
        of `queue` behind each. Returns how many steps were done; 0: it is no run, or takes a closer look.
        """
        if what & _TYPE_AND_VERSION_BITS == _PRODUCE:
            return self._produce_run(data, at, length)
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
            self._consume(wants)
        return len(acks or wants or ())

    def _rare_frame(self, data: bytes, at: int) -> int:
        """Handle a rare kind of frame; returns the position behind it, -1 if it is incomplete."""
        if self._skip:
            skipped = min(self._skip, len(data) - at)
            self._skip -= skipped
            if self._skip:
                return len(data)
            text = f"a payload is at most {PAYLOAD_BYTES_MAX} bytes"
            self._refuse(self._skip_id, Refusal(Status.PAYLOAD_TOO_LARGE, text))
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
            self._close_with(error, Event.BROKEN)
            return at
        if self.state is State.NEW and type_ != Type.HANDSHAKE:
            self._close_with(malformed("the handshake comes first").wire_error(message_id), Event.TOO_EARLY)
            return at
        stop = at + HEADER_BYTES + length
        if stop > len(data):
            return -1
        self._request(type_, message_id, data[at + HEADER_BYTES : stop])
        return stop

    # -- PRODUCE

    def _produce_run(self, data: bytes, at: int, length: int) -> int:
        """Apply the run of PRODUCEs at `at`, all with a payload of `length`; returns how many they are."""
        payload = at + HEADER_BYTES
        width = 2 + (data[payload] << 8 | data[payload + 1]) if length > 2 else 0
        name = data[payload + 2 : payload + width]
        queue = self._queues.get(name)
        if queue is None or width > length:
            return 0
        run = runs.produced(data, at, length, width)
        if run is None:
            return 0
        ids, names, bodies = run
        count = len(ids)
        if names.count(name) == count:
            self._produce_parts((_Share(queue, bodies, count * (length - width)),), ids, ())
            return count
        return count if self._add_by_turns(ids, names, bodies) else 0

    def _produce(self, data: bytes, at: int, length: int) -> int:
        """Handle the complete PRODUCE at `at` and those behind it; returns where they end."""
        end = self._produce_each(data, at)
        if end > at:
            return end
        payload, message_id = at + HEADER_BYTES, int.from_bytes(data[at + ID_AT : at + HEADER_BYTES])
        try:
            missing, _ = split_name(data[payload : payload + length])
            text = name_untrusted(missing)
            self._require(WRITE, missing)
            self._refuse(message_id, Refusal(Status.QUEUE_NOT_FOUND, f"{text} does not exist"))
        except Refusal as refusal:
            self._refuse(message_id, refusal)
        return payload + length

    def _produce_each(self, data: bytes, at: int) -> int:
        """Handle PRODUCEs to any queues, up to a rare kind of frame; each queue gets all of its own at once.
        Returns where they end.
        """
        first, end = at, len(data)
        queues = self._queues
        parts: dict[bytes, _Share] = {}
        name, width = _NOBODY, len(_NOBODY)
        ids: list[bytes] = []
        add = ids.append  # of the bodies of `name`, once there is one
        while end - at >= HEADER_BYTES and len(ids) < runs.RUN_MOST:
            magic, length, what, _ = _unpack(data, at)
            payload = at + HEADER_BYTES
            stop = payload + length
            if (
                what & _TYPE_AND_VERSION_BITS != _PRODUCE
                or magic != MAGIC
                or stop > end
                or not 2 <= length <= PAYLOAD_BYTES_MAX
            ):
                break
            if width > length or not data.startswith(name, payload):
                body = payload + 2 + (data[payload] << 8 | data[payload + 1])
                if body > stop:
                    break
                other = data[payload:body]
                part = parts.get(other)
                if part is None:
                    queue = queues.get(other[2:])
                    if queue is None:
                        break
                    part = parts[other] = _Share(queue, [])
                name, width, add = other, body - payload, part.bodies.append
            add(data[payload + width : stop])
            ids.append(data[at + ID_AT : payload])
            at = stop
        for part in parts.values():
            part.size = sum(map(len, part.bodies))
        self._produce_parts(parts.values(), ids, _owners(data, first, len(ids), parts))
        return at

    def _add_by_turns(self, ids: Sequence[bytes], names: Sequence[bytes], bodies: Sequence[bytes]) -> bool:
        """Add a run of PRODUCEs to several queues; False, and nothing is done, if a queue is missing.

        With 16 queues by turns a message on disk takes 0.9 us, and 1.5 by `_produce_each`.
        """
        found = dict(zip(names, map(self._queues.get, names), strict=True))
        queues = [queue for queue in found.values() if queue is not None]
        if len(queues) < len(found):
            return False
        size = len(bodies[0])
        if len(queues) == len(names):
            one_each = [_Share(queue, (body,), size) for queue, body in zip(queues, bodies, strict=True)]
            self._produce_parts(one_each, ids, one_each)
            return True
        parts = {name: _Share(queue, []) for name, queue in found.items() if queue is not None}
        for name, body in zip(names, bodies, strict=True):
            parts[name].bodies.append(body)
        for part in parts.values():
            part.size = len(part.bodies) * size
        self._produce_parts(parts.values(), ids, map(parts.__getitem__, names))
        return True

    def _produce_parts(
        self, parts: Collection[_Share], ids: Sequence[bytes], owners: Iterable[_Share]
    ) -> None:
        """Give each queue its part, as much as there is room for. Answers are in the order of requests;
        `owners`: the part of each.
        """
        fit = 0
        outcomes = set()
        for part in parts:
            queue, bodies = part.queue, part.bodies
            count, room = len(bodies), queue.options.depth - queue.depth
            if count > room:
                text = f"{queue.text} holds its {queue.options.depth} messages"
                part.full = Refusal(Status.QUEUE_FULL, text)
                count = max(room, 0)
                bodies = bodies[:count]
                part.size = sum(map(len, bodies))
            part.fit = count
            fit += count
            outcome: Outcome = None
            if count:
                try:
                    outcome = queue.produce(bodies, part.size)
                except Refusal as refusal:
                    outcome = refusal
            part.outcome = outcome
            outcomes.add(outcome)
        self.produced += fit
        if fit == len(ids) and len(outcomes) == 1:  # the usual case
            self._answer(outcomes.pop(), PRODUCE_OK, ids)
            return
        # Combine one queue's answers: whoever fills a queue is refused many times over.
        turns = ((part, len(ids)) for part in parts) if len(parts) == 1 else ((each, 1) for each in owners)
        place = 0
        for owner, count in turns:
            fit = min(owner.fit, count)
            owner.fit -= fit
            if fit:
                self._answer(owner.outcome, PRODUCE_OK, ids[place : place + fit])
            if fit < count:
                self._answer(owner.full, PRODUCE_OK, ids[place + fit : place + count])
            place += count

    # -- CONSUME

    def _consume(self, ids: Sequence[bytes]) -> None:
        """CONSUMEs of `queue`.

        The ACKs that wait for the disk may be more than the credits that the connection has ever used (and
        two). Then these line up only when some of those ACKs are answered. Otherwise the answers would fall
        ever further behind.
        """
        queue, consumer, engine = self.queue, self.consumer, self._engine
        assert queue is not None
        count = len(ids)
        if self.hung_up:
            engine.counts.timeouts += count
            self._refuse_all(ids, _not_in_time())
            return
        memory = engine.memory
        if memory.held_full or memory.held_bytes - memory.held_charged > SLACK_BYTES:
            memory.sync()
            if memory.held_full:
                self._refuse_all(ids, Refusal(Status.INTERNAL, _TOO_MUCH_HELD, limit="memory"))
                return
        if consumer.user and not consumer.has_room:
            text = f"{consumer.user} holds his share of memory for deliveries: acknowledge some"
            self._refuse_all(ids, Refusal(Status.INTERNAL, text, limit="memory"))
            return
        if queue.cold is not None and queue.cold.damage is not None:
            self._refuse_all(ids, refusal_for(queue.cold.tell_damage()))
            return
        waiting = consumer.waiting + count
        if waiting > consumer.credits_room and not consumer.may_wait(count):
            self._refuse_all(ids, Refusal(Status.INTERNAL, _TOO_MANY_WAIT, limit="memory"))
            return
        asked = waiting + consumer.unacked.count
        if asked > self._most_credits:
            self._most_credits = asked
        behind = len(self._acking) > self._most_credits + ACKS_BEYOND_CREDITS and self._is_behind()
        if (
            count == 1
            and not (behind or consumer.credits or queue.line or queue.stops)
            and (queue.ready.loaded or queue.ready.requeued)
            and queue.deliver_next(1, consumer)
        ):
            return
        credit = Credit(consumer, queue, ids, self.connection.now + engine.settings.consume_seconds)
        if behind or self._deferred:
            if not self._deferred:
                self._acking[0].when_done(self.connection.guarded(self._line_up_deferred))
            if isinstance(self._deferred, tuple):
                self._deferred = deque()
            self._deferred.append(credit)
        else:
            queue.line_up(credit)
        if consumer.credits:
            if engine.draining:
                self._expire_credits(math.inf)
            elif self._credit_due == math.inf:
                self._await_credits()

    def _line_up_deferred(self, ticket: Ticket) -> None:
        """ACKs are answered: CONSUMEs behind them line up."""
        deferred = self._deferred
        while deferred and not self._is_behind():
            credit = deferred.popleft()
            if credit.left and credit.queue.deleted:
                self.consumer.end(credit, _deleted(credit.queue))
            elif credit.left:
                credit.queue.line_up(credit)
        if deferred:
            self._acking[0].when_done(self.connection.guarded(self._line_up_deferred))

    def _may_want(self, count: int) -> bool:
        """Whether `count` CONSUMEs of `queue` are valid without a closer look."""
        queue = self.queue
        return (
            queue is not None
            and not queue.deleted
            and self.consumer.waiting + count <= self._engine.settings.credits_max
        )

    def _is_behind(self) -> bool:
        """Whether so many ACKs wait for the disk that further CONSUMEs must not line up yet."""
        acking = self._acking
        while acking and acking[0].done:
            acking.popleft()
        return len(acking) > self._most_credits + ACKS_BEYOND_CREDITS

    def _await_credits(self) -> None:
        credits = self.consumer.credits
        self._credit_due = credits[0].deadline if credits else math.inf
        self.deadline(_CREDITS, self._credit_due)

    def _expire_credits(self, now: float) -> None:
        """Answer CONSUMEs that have waited long enough."""
        consumer = self.consumer
        while consumer.credits and consumer.credits[0].deadline <= now:
            credit = consumer.credits[0]
            self._engine.counts.timeouts += credit.left
            consumer.end(credit, _not_in_time())

    # -- ACK

    def _ack_then_consume(self, acks: Sequence[bytes], wants: Sequence[bytes]) -> None:
        """Apply what was collected. ACKs come first: they cannot be of what a CONSUME beside them brings."""
        if acks and not self._try_ack(acks):
            self._answer_acks(self._engine.ack_each(self.consumer, acks))
        if wants:
            self._consume(wants)

    def _try_ack(self, ids: Sequence[bytes]) -> bool:
        """Apply ACKs of held messages; False, and nothing is done, if one is not held."""
        outcomes = self._engine.ack(self.consumer, ids)
        self._answer_acks(outcomes)
        return bool(outcomes)

    def _answer_acks(self, outcomes: Sequence[tuple[Sequence[bytes], Outcome]]) -> None:
        for ids, outcome in outcomes:
            if outcome is None or isinstance(outcome, Refusal):
                self._answer(outcome, ACK_OK, ids)
            else:
                self._acked_after(outcome, runs.answers(ACK_OK, ids), len(ids))

    def _acked_after(self, ticket: Ticket, reply: bytes, count: int) -> None:
        """Answer `count` ACKs once the disk has them."""
        self.replies.reply_after(ticket, reply, count)
        self.connection.expect()
        acking = self._acking
        if acking and acking[-1].done:  # then all are
            acking.clear()
        acking.extend((ticket,) * count)

    # -- other requests

    def _request(self, type_: int, message_id: int, payload: bytes) -> None:
        """Handle one complete request that is legal in this state."""
        handler = _HANDLERS.get(type_)
        try:
            if handler is not None:
                handler(self, message_id, payload)
            elif type_ != Type.DISCONNECT_OK:  # the answer to our DISCONNECT
                raise Refusal(Status.INVALID_TYPE, f"no request is of type {type_:#04x}")
        except Refusal as refusal:
            self._refuse(message_id, refusal)

    def _handshake(self, message_id: int, payload: bytes) -> None:
        if self.state is not State.NEW:
            raise malformed("the handshake was made")
        self.connection.first_request_done()
        login = login_of(payload)
        if login is not None:
            self.log_in(*login, lambda fits: self._logged_in(message_id, fits))
        else:
            self._welcome(message_id)

    def _logged_in(self, message_id: int, fits: bool) -> None:
        if fits:
            self._welcome(message_id)
        else:
            self._refuse_login(message_id, "wrong name or password")

    def _welcome(self, message_id: int) -> None:
        if not self.user:
            text = 'log in first: a HANDSHAKE of {"user": "...", "password": "..."}'
            self._refuse_login(message_id, text)
            return
        if not self._engine.admit(self.consumer, self.user):
            limit = self._engine.settings.clients_max
            self._engine.counts.clients_refused += 1
            text = f"there are clients_max = {limit} clients already, or {self.user}'s share of them"
            self._refuse(message_id, Refusal(Status.INTERNAL, text, limit="clients_max"))
            self._end(Event.TOO_MANY)
            return
        self.state = TRANSITIONS[self.state][Event.HANDSHAKE]
        self.connection.outbox.on_clear = self._not_sent
        self.reply(pack(Type.HANDSHAKE_ACK, message_id, SERVER_NAME))

    def _refuse_login(self, message_id: int, text: str) -> None:
        error = Refusal(Status.DENIED, text).wire_error(message_id, Type.HANDSHAKE_NACK)
        self._close_with(error, Event.LOGIN_REFUSED)

    def _create_queue(self, message_id: int, payload: bytes) -> None:
        name_bytes, end = split_name(payload)
        name = name_untrusted(name_bytes)
        asked = options_untrusted(payload[end:], name)
        self._require(MANAGE, name_bytes)
        if asked.get("dead_letter"):
            self._require(WRITE, str(asked["dead_letter"]))
        _, ticket = self._engine.create(name, asked, self.user)
        self._engine.log.debug("queue created", peer=self.connection.peer, queue=name, options=asked)
        self._confirm(ticket, Type.CREATE_QUEUE, message_id)

    def _delete_queue(self, message_id: int, payload: bytes) -> None:
        queue = self._existing(MANAGE, payload)
        depth, ticket = queue.depth, self._engine.delete(queue)
        self._engine.log.debug("queue deleted", peer=self.connection.peer, queue=queue.text, messages=depth)
        self.audit("delete", queue.name)
        self._confirm(ticket, Type.DELETE_QUEUE, message_id)

    def _list_queues(self, message_id: int, payload: bytes) -> None:
        after = _only_name(payload) if payload else None
        if self.guard is None:
            queues = self._engine.queues
            found = [(name, queues[name].depth) for name in self._engine.names(after, LISTED_MAX)]
            self.reply(pack(Type.LIST_QUEUES_OK, message_id, pack_list(len(queues), found)))
            return
        self.pause_input(_LISTING)
        self._flush()  # the list may be written at once, and comes behind the answers before it
        self._engine.long_work.add(self._list_visible(self.guard, self.replies.slot(), message_id, after))

    def _list_visible(
        self, guard: Guard, slot: ReplySlot, message_id: int, after: bytes | None
    ) -> Iterator[None]:
        """LIST_QUEUES for a user with rules. Each name is looked up in them, also for the total."""
        engine, user = self._engine, self.user
        total, shown = 0, list[bytes]()
        try:
            for names in batched(engine.names(None, len(engine.queues))):
                visible = [name for name in names if guard.may_see(user, name)]
                total += len(visible)
                shown += [name for name in visible if after is None or name > after]
                yield
        finally:
            if not self.lost:
                found = [(name, engine.queues[name].depth) for name in shown if name in engine.queues]
                slot.resolve(pack(Type.LIST_QUEUES_OK, message_id, pack_list(total, found[:LISTED_MAX])))
                self.resume_next_turn(_LISTING)

    def _consume_named(self, message_id: int, payload: bytes) -> None:
        """A CONSUME that needs a closer look: of another queue than the last, or one too many."""
        name = _only_name(payload)
        consumer = self.consumer
        if consumer.credits and self.queue is not None and self.queue.name != name:
            raise malformed(f"CONSUMEs of {self.queue.text} wait on this connection")
        queue = self._existing(READ, payload)
        limit = self._engine.settings.credits_max
        if consumer.waiting >= limit:
            text = f"credits_max = {limit} CONSUMEs wait on this connection already"
            raise Refusal(Status.INTERNAL, text, limit="credits_max")
        self.queue, self.queue_name = queue, payload
        if consumer.queue is not queue:
            consumer.consume(queue)
        self._consume((message_id.to_bytes(4),))

    def _ack(self, message_id: int, payload: bytes) -> None:
        self._check_named(message_id, payload)
        self._ack_then_consume((message_id.to_bytes(4),), ())

    def _nack(self, message_id: int, payload: bytes) -> None:
        self._check_named(message_id, payload)
        deliveries = self.consumer.unacked.take((message_id.to_bytes(4),))
        if deliveries is None:
            raise not_held()
        ((_, queue, run),) = deliveries
        if self.consumer.user:
            self.consumer.gave((run,))
        if queue.deleted:
            queue.release((run,))
            raise _deleted(queue)
        self.reply(pack(Type.NACK_OK, message_id))
        queue.requeue((run,), nacked=True)

    def _disconnect(self, message_id: int, payload: bytes) -> None:
        if payload:
            raise malformed("DISCONNECT has no payload")
        self._expire_credits(math.inf)
        if self.consumer.unacked:
            self._untried = min(self.consumer.unacked.runs).__ne__
        self.reply(pack(Type.DISCONNECT_OK, message_id))
        self._end(Event.DISCONNECT)

    def _existing(self, action: str, payload: bytes) -> Queue:
        """The queue named by the whole payload, for a user who may do `action` to it. Raises Refusal."""
        name = _only_name(payload)
        self._require(action, name)
        queue = self._engine.queues.get(name)
        if queue is None:
            raise Refusal(Status.QUEUE_NOT_FOUND, f"{name.decode()} does not exist")
        return queue

    # -- login and access

    def _require(self, action: str, name: bytes | str) -> None:
        """Raise Refusal if the user may not do that."""
        if self.guard is not None and not self.may(action, name):
            raise Refusal(Status.DENIED, "not allowed")

    def _set_queues(self) -> None:
        queues = self._engine.queues
        self._queues = queues if self.guard is None else _Writable(queues, self.guard, self.user)

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
            self.queue, self.queue_name = None, _NOBODY
            consumer.consume(None)

    def _check_named(self, message_id: int, payload: bytes) -> None:
        """An ACK or NACK may name the queue, which then must be the delivery's. Raises Refusal."""
        if payload:
            name = _only_name(payload)
            delivery = self.consumer.unacked.get(message_id.to_bytes(4))
            if delivery is not None and delivery[1].name != name:
                raise malformed(f"that delivery is of {delivery[1].text}")

    def _confirm(self, ticket: Ticket | None, type_: Type, message_id: int) -> None:
        self._answer(ticket, pack(REPLIES[type_], 0)[:ID_AT], (message_id.to_bytes(4),))

    # -- calls of the engine

    def deliver(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> None:
        data = DELIVER[len(bodies[0])] + ids[0] + bodies[0] if len(ids) == 1 else runs.deliveries(ids, bodies)
        resolving = self._engine.resolving
        if resolving is not None and self._acking and self._acking[-1] is resolving:
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
        self._expire_credits(math.inf)
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

    def _flush(self) -> None:
        """Write what was collected."""
        out, self._out = self._out, None
        if out:
            self.connection.write(out[0] if len(out) == 1 else b"".join(out))

    def _answer(self, outcome: Outcome, head: bytes, ids: Sequence[bytes]) -> None:
        """Give several requests the same answer; `head` begins those that succeed."""
        if isinstance(outcome, Refusal):
            self._refuse_all(ids, outcome)
        elif outcome is None:
            self.reply(runs.answers(head, ids))
        else:
            self.reply_after(outcome, runs.answers(head, ids), len(ids))

    def _refuse(self, message_id: int, refusal: Refusal) -> None:
        self._refuse_all((message_id.to_bytes(4),), refusal)

    def _refuse_all(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        self._refusals.note(self.connection, refusal, len(ids))
        self.reply(refusal.frames(ids))

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        engine = self._engine
        if engine.memory_only:
            engine.count_not_durable(count)
            return reply
        refusal = refusal_for(error)
        self._refusals.note(self.connection, refusal, count)
        return refusal.frames(runs.answered(reply))

    def _is_crowded(self) -> bool:
        """Stop if answers pile up; whether input is held back."""
        durable, outbox = self._engine.durable, self.connection.outbox
        if durable is not None and durable.congested:
            self.stop_if_congested(durable)
        if outbox.size > outbox.bound:
            self.stop_if_crowded()
        return self.stopped != 0

    # -- deadlines and the end

    def due(self, what: int, now: float) -> None:
        self._expire_credits(now)
        if not self.ended:
            self._await_credits()

    def too_late(self) -> None:
        self._engine.counts.too_late += 1
        self._close_with(malformed("a frame took too long to come; closing").wire_error(), Event.TOO_LATE)

    def hang_up(self) -> None:
        super().hang_up()
        self._expire_credits(math.inf)

    def input_ended(self) -> None:
        """The peer can acknowledge nothing more: its CONSUMEs end, and what it holds goes back."""
        self._expire_credits(math.inf)
        outbox = self.connection.outbox
        self._not_sent(outbox.chunks or (), outbox.begun)
        self._end(Event.INPUT_ENDS)

    def connection_lost(self) -> None:
        held = len(self.consumer.unacked)
        self._engine.log.debug("client gone", peer=self.connection.peer, held=held)
        super().connection_lost()

    def release(self) -> None:
        self.connection.outbox.on_clear = None
        self._engine.gone(self.consumer, self._untried)

    def _not_sent(self, chunks: Collection[Any], begun: Any) -> None:
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
        self._untried = set(runs.delivered_behind(data, sent)).__contains__

    def _close_with(self, error: RemoteProtocolError, event: Event) -> None:
        """The last answer: nothing behind it can be parsed. It is not the driver that sends it, because
        answers that wait for the disk come first.
        """
        self._refusals.note_last(self.connection, error)
        self.reply(error.reply)
        self._end(event)

    def _end(self, event: Event) -> None:
        """Take no more input; pending answers are sent, then the connection ends."""
        self.state = TRANSITIONS[self.state][event]
        self.end()
        self._flush()
        self.finish_when_answered()


_HANDLERS: Mapping[int, Callable[[Session, int, bytes], None]] = {
    Type.HANDSHAKE: Session._handshake,
    Type.CREATE_QUEUE: Session._create_queue,
    Type.DELETE_QUEUE: Session._delete_queue,
    Type.LIST_QUEUES: Session._list_queues,
    Type.CONSUME: Session._consume_named,
    Type.ACK: Session._ack,
    Type.NACK: Session._nack,
    Type.DISCONNECT: Session._disconnect,
}
"""Handlers of requests; PRODUCEs are combined with their neighbours."""
assert _HANDLERS.keys() == REPLIES.keys() - {Type.PRODUCE}


class _Writable:
    """The queues that a user may write to; others appear as missing."""

    __slots__ = ("_guard", "_queues", "_user")

    def __init__(self, queues: dict[bytes, Queue], guard: Guard, user: str) -> None:
        self._queues, self._guard, self._user = queues, guard, user

    def get(self, name: bytes) -> Queue | None:
        queue = self._queues.get(name)
        return queue if queue is not None and self._guard.may(self._user, WRITE, name) else None


class _Share:
    """One queue's share of several PRODUCEs. `fit`: how many got `outcome`, the others `full`."""

    __slots__ = ("bodies", "fit", "full", "outcome", "queue", "size")

    fit: int
    outcome: Outcome
    full: Refusal

    def __init__(self, queue: Queue, bodies: Any, size: int = 0) -> None:
        self.queue = queue
        self.bodies = bodies
        self.size = size


def _owners(data: bytes, at: int, count: int, parts: Mapping[bytes, _Share]) -> Iterator[_Share]:
    """The part of each of `count` PRODUCEs from `at` on."""
    for _ in range(count):
        payload = at + HEADER_BYTES
        yield parts[data[payload : payload + 2 + (data[payload] << 8 | data[payload + 1])]]
        at = payload + _unpack(data, at)[1]


def _only_name(payload: bytes) -> bytes:
    """The name that is the whole payload, checked. Raises Refusal."""
    name, end = split_name(payload)
    name_untrusted(name)
    if end != len(payload):
        raise malformed(f"{len(payload) - end} bytes too many behind the name")
    return name


def _not_in_time() -> Refusal:
    return Refusal(Status.TIMEOUT, "no message in time")


def _deleted(queue: Queue) -> Refusal:
    return Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted")
