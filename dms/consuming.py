"""The consuming side of a connection: CONSUMEs that wait, deliveries that it holds, ACKs."""

import math
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from dms import runs
from dms.messages import Out
from dms.pacing import Pacing
from dms.queue import Queue, Wait
from dms.wire import HEADER_BYTES, Refusal, Status, Type, malformed, refusal_for
from shared.net.connection import Connection
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from dms.broker import Broker

ACKS_BEYOND_CREDITS = 2
"""One for the commit under way, one for the next, and a consumer of one credit need not wait for the disk."""
_NOBODY = b"\xff\xff\xff"  # begins no payload that may be one


class Consuming(Pacing):
    """`held`: its deliveries by id. `waits`: its CONSUMEs that wait, all of `queue`; `waiting`: how many.

    `queue_name`: the queue as it stands in a payload.
    """

    __slots__ = (
        "_acking",
        "_credits",
        "_later",
        "_unanswered",
        "held",
        "queue",
        "queue_name",
        "waiting",
        "waits",
    )

    def __init__(self, connection: Connection, broker: "Broker") -> None:
        super().__init__(connection, broker)
        self.held: dict[int, Out] = {}
        self.waits: deque[Wait] = deque()
        self.waiting = 0
        self.queue: Queue | None = None
        self.queue_name = _NOBODY
        self._acking: deque[list[Any]] = deque()
        """Tickets that ACKs wait for, each with how many."""
        self._unanswered = 0
        self._credits = 0
        self._later: deque[tuple[Queue, Wait]] = deque()

    # -- what requests ask

    def consume(self, ids: Sequence[int]) -> None:
        """CONSUMEs of `queue`.

        Where more ACKs wait for the disk than the connection has ever used credits (and two), they line up
        only when some of those are answered: else the answers would fall ever further behind.
        """
        queue = self.queue
        assert queue is not None
        if queue.keeper is not None and queue.keeper.damaged is not None:
            refusal = refusal_for(queue.keeper.damaged)
            self.refuse_all(ids, refusal)
            return
        wait = Wait(self, ids, self.connection.now + self.broker.settings.consume_seconds)
        self.waiting += len(ids)
        self.waits.append(wait)
        credits = self.waiting + len(self.held)
        if credits > self._credits:
            self._credits = credits
        if self._later or self._is_behind():
            if not self._later:
                self._acking[0][0].when_done(self.connection.guarded(self._answered))
            self._later.append((queue, wait))
        else:
            queue.line_up(wait)
        if self.waits:
            if self.broker.draining:
                self.expire_waits(math.inf)
            elif self.waits[0].deadline < self._wake:
                self._wake_by(self.waits[0].deadline)

    def is_next(self) -> bool:
        """Whether a CONSUME of this connection may be served before it waits."""
        if self.waits:
            return False
        if len(self.held) >= self._credits:
            self._credits = len(self.held) + 1
        return self._unanswered <= self._credits + ACKS_BEYOND_CREDITS or not self._is_behind()

    def _is_behind(self) -> bool:
        """Whether so many ACKs wait for the disk that no CONSUME behind them lines up."""
        if self._unanswered <= self._credits + ACKS_BEYOND_CREDITS:
            return False
        acking = self._acking
        while acking and acking[0][0].done:
            self._unanswered -= acking.popleft()[1]
        return self._unanswered > self._credits + ACKS_BEYOND_CREDITS

    def ack(self, ids: Sequence[int], packed: bytes | bytearray | None = None) -> None:
        """ACKs without a name."""
        pop = self.held.pop
        outs = [pop(message_id, None) for message_id in ids]
        queue = outs[0][0] if outs[0] is not None else None
        if len(outs) > 1 and (None in outs or len({out[0] for out in outs if out is not None}) > 1):
            for message_id, out in zip(ids, outs, strict=True):
                self._ack(out[0] if out is not None else None, (message_id,), (out,), None)
        else:
            self._ack(queue, ids, outs, packed)

    def _answered(self, ticket: Ticket) -> None:
        """ACKs are answered; CONSUMEs behind them line up."""
        later = self._later
        while later and not self._is_behind():
            queue, wait = later.popleft()
            if wait.left and queue.deleted:
                self.end_wait(wait, Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted"))
            elif wait.left:
                queue.line_up(wait)
        if later:
            self._acking[0][0].when_done(self.connection.guarded(self._answered))

    # -- what queues tell

    def deliver(self, wait: Wait, queue: Queue, seq: int, bodies: Sequence[bytes]) -> None:
        """Messages that nobody had before, in a row from `seq` on, for the first CONSUMEs that wait."""
        count = len(bodies)
        if count == 1:
            self.push(self.hand((queue, seq, bodies[0], 1)))
        else:
            first = self.broker.take_ids(count)
            outs = zip(repeat(queue), range(seq, seq + count), bodies, repeat(1), strict=False)
            self.held.update(zip(range(first, first + count), outs, strict=True))
            self.push(runs.deliveries(first, bodies))
            self.broker.counts.delivered += count
        self._served(wait, count)

    def hand(self, out: Out) -> bytes:
        """Hold one more delivery; returns what tells the peer so."""
        broker = self.broker
        message_id = broker.take_ids(1)
        self.held[message_id] = out
        broker.counts.delivered += 1
        return runs.delivery(message_id, out[2])

    def deliver_again(self, wait: Wait, out: Out) -> None:
        """One that has come back."""
        self.push(self.hand(out))
        self._served(wait, 1)

    def hold_again(self, ids: Sequence[int], outs: Sequence[Out]) -> None:
        """ACKs were not made after all."""
        if self.lost:
            outs[0][0].put_back(outs, nacked=False)
        else:
            self.held.update(zip(ids, outs, strict=True))

    def end_wait(self, wait: Wait, refusal: Refusal) -> None:
        """Answer all that is left of a wait."""
        left = wait.ids[wait.at :]
        wait.at = len(wait.ids)
        self.waiting -= len(left)
        self.waits.remove(wait)
        self.broker.refusals.tell(self.connection, refusal, len(left))
        self.push(b"".join(map(refusal.frame, left)))
        self._waits_over()

    def expire_waits(self, now: float) -> None:
        """Answer those CONSUMEs that have waited long enough."""
        while self.waits and self.waits[0].deadline <= now:
            wait = self.waits[0]
            self.broker.counts.timeouts += wait.left
            self.end_wait(wait, Refusal(Status.TIMEOUT, "no message in time"))

    def expire_all(self) -> None:
        """Nothing waits any more."""
        self.expire_waits(math.inf)

    def forget_waits(self) -> None:
        """Nobody is to be told."""
        for wait in self.waits:
            wait.at = len(wait.ids)
        self.waits.clear()
        self.waiting = 0

    def give_back(self) -> None:
        """The connection is gone: what it held goes back."""
        held, self.held = self.held, {}
        by_queue: dict[Queue, list[Out]] = {}
        for out in held.values():
            by_queue.setdefault(out[0], []).append(out)
        for queue, outs in by_queue.items():
            queue.put_back(outs, nacked=False)

    # -- what the session uses

    def may_want(self, count: int) -> bool:
        """Whether so many CONSUMEs of `queue` are in order, and need no closer look."""
        queue = self.queue
        return (
            queue is not None
            and not queue.deleted
            and self.waiting + count <= self.broker.settings.credits_max
        )

    def _by_turns(self, data: bytes, at: int, count: int, size: int) -> int:
        """As many ACKs, each followed by a CONSUME."""
        step = 2 * HEADER_BYTES + size
        packed = runs.packed_ids(data, at, step, count)
        self.ack(runs.ids(data, at, step, count), packed)
        self.consume(runs.ids(data, at + HEADER_BYTES, step, count))
        return at + count * step

    def _both(self, acks: list[int], wants: list[int]) -> None:
        """What was gathered. An ACK cannot be of what a CONSUME beside it will bring, so ACKs come first."""
        if acks:
            self.ack(acks)
        if wants:
            self.consume(wants)

    def _ack(
        self,
        queue: Queue | None,
        ids: Sequence[int],
        outs: Sequence[Out | None],
        packed: bytes | bytearray | None,
    ) -> None:
        """ACKs of one queue's messages, in order; or, without one, of what is not held."""
        if queue is None or queue.deleted:
            refusal = (
                malformed("this connection holds no delivery of that id")
                if queue is None
                else Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted")
            )
            self.refuse_all(ids, refusal)
            return
        known: Sequence[Out] = outs  # type: ignore[assignment]
        try:
            ticket = queue.acked(self, ids, known)
        except Refusal as refusal:
            self.held.update(zip(ids, known, strict=True))
            self.refuse_all(ids, refusal)
            return
        reply = runs.answers(Type.ACK_OK, packed) if packed else runs.answers_to(Type.ACK_OK, ids)
        if ticket is None:
            self.say(reply)
        else:
            self.owe_acked(ticket, reply, len(ids))

    def owe_acked(self, ticket: Ticket, reply: bytes, count: int) -> None:
        """The answers to so many ACKs, once the disk has them."""
        self.replies.owe(ticket, reply, count)
        self.connection.expect()
        acking = self._acking
        if acking:
            if acking[-1][0] is ticket:
                acking[-1][1] += count
                self._unanswered += count
                return
            if acking[0][0].done:
                self._unanswered -= acking.popleft()[1]
        acking.append([ticket, count])
        self._unanswered += count

    def _served(self, wait: Wait, count: int) -> None:
        wait.at += count
        self.waiting -= count
        if wait.at == len(wait.ids):
            self.waits.popleft()
            if not self.waits:
                self._waits_over()

    def refuse(self, message_id: int, refusal: Refusal) -> None:
        """An answer that says no."""
        self.broker.refusals.tell(self.connection, refusal)
        self.say(refusal.frame(message_id))

    def refuse_all(self, ids: Sequence[int], refusal: Refusal) -> None:
        """The same answer to several."""
        self.broker.refusals.tell(self.connection, refusal, len(ids))
        self.say(b"".join(map(refusal.frame, ids)))

    def _waits_over(self) -> None:
        """Nothing waits any more."""
        raise NotImplementedError
