"""The consuming side of a connection: CONSUMEs that wait, deliveries that it holds, ACKs."""

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dms import runs
from dms.held import Handed, Held
from dms.messages import Out
from dms.pacing import Pacing
from dms.queue import Queue, Wait
from dms.wire import HEADER_BYTES, ID_AT, Refusal, Status, malformed, refusal_for
from shared.net.connection import Connection
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from dms.broker import Broker

ACKS_BEYOND_CREDITS = 2
"""One for the commit under way, one for the next, and a consumer of one credit need not wait for the disk."""
_NOT_HELD = malformed("this connection holds no delivery of that id")
_NOBODY = b"\xff\xff\xff"  # begins no payload that may be one


class Consuming(Pacing):
    """`held`: its deliveries by id. `waits`: its CONSUMEs that wait, all of `queue`; `waiting`: how many.

    `queue_name`: the queue as it stands in a payload. Ids are as they stand in frames.
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
        self.held = Held()
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

    def consume(self, ids: Sequence[bytes]) -> None:
        """CONSUMEs of `queue`.

        Where more ACKs wait for the disk than the connection has ever used credits (and two), they line up
        only when some of those are answered: else the answers would fall ever further behind.
        """
        queue = self.queue
        assert queue is not None
        if queue.keeper is not None and queue.keeper.damaged is not None:
            self.refuse_all(ids, refusal_for(queue.keeper.reading.tell()))
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
                self.wake_by(self.waits[0].deadline)

    def is_next(self) -> bool:
        """Whether a CONSUME of this connection may be served before it waits."""
        if self.waits:
            return False
        held = len(self.held.alone) + self.held.in_runs
        if held >= self._credits:
            self._credits = held + 1
        return self._unanswered <= self._credits + ACKS_BEYOND_CREDITS or not self._is_behind()

    def _is_behind(self) -> bool:
        """Whether so many ACKs wait for the disk that no CONSUME behind them lines up."""
        if self._unanswered <= self._credits + ACKS_BEYOND_CREDITS:
            return False
        acking = self._acking
        while acking and acking[0][0].done:
            self._unanswered -= acking.popleft()[1]
        return self._unanswered > self._credits + ACKS_BEYOND_CREDITS

    def ack(self, ids: Sequence[bytes]) -> None:
        """ACKs without a name."""
        if self.ack_held(ids):
            return
        unknown: list[bytes] = []
        for message_id in ids:
            out = self.held.pop(message_id)
            if out is None:
                unknown.append(message_id)
                continue
            if unknown:
                self.refuse_all(unknown, _NOT_HELD)
                unknown = []
            self._ack(out[0], (message_id,), (out,))
        if unknown:
            self.refuse_all(unknown, _NOT_HELD)

    def ack_held(self, ids: Sequence[bytes]) -> bool:
        """ACKs of what is held; False, and nothing done, where some is not."""
        runs = self.held.pop_runs(tuple(ids))
        if runs:
            for run in runs:
                self._ack(run.queue, run.ids, run)
            return True
        outs = self.held.pop_all(ids)
        if outs is None:
            return False
        if len(outs) == 1 or len({out[0] for out in outs}) == 1:
            self._ack(outs[0][0], ids, outs)
        else:
            for message_id, out in zip(ids, outs, strict=True):
                self._ack(out[0], (message_id,), (out,))
        return True

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
            ids = runs.counted(self.broker.take_ids(count), count)
            self.held.add(Handed(ids, queue, seq, bodies))
            self.push(runs.deliveries(ids, bodies))
            self.broker.counts.delivered += count
        self._served(wait, count)

    def hand(self, out: Out) -> bytes:
        """Hold one more delivery; returns what tells the peer so."""
        broker = self.broker
        frame = runs.delivery(broker.take_ids(1), out[2])
        self.held.alone[frame[ID_AT:HEADER_BYTES]] = out
        broker.counts.delivered += 1
        return frame

    def deliver_again(self, wait: Wait, out: Out) -> None:
        """One that has come back."""
        self.push(self.hand(out))
        self._served(wait, 1)

    def hold_again(self, ids: Sequence[bytes], outs: Sequence[Out]) -> None:
        """ACKs were not made after all."""
        if self.lost:
            outs[0][0].put_back(outs, nacked=False)
        else:
            self.held.add_all(ids, outs)

    def end_wait(self, wait: Wait, refusal: Refusal) -> None:
        """Answer all that is left of a wait."""
        left = wait.ids[wait.at :]
        wait.at = len(wait.ids)
        self.waiting -= len(left)
        self.waits.remove(wait)
        self.broker.refusals.tell(self.connection, refusal, len(left))
        self.push(refusal.frames(left))
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
        """The connection is gone: what it held goes back.

        In one stretch, some microseconds a message. In turns it would have to stay where snapshots, exports
        and new ids look for what is held, while its connection is no client any more; and the snapshot that
        so much brings about takes as long again, and cannot be divided: it is one append.
        """
        held, self.held = self.held, Held()
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

    def _both(self, acks: Sequence[bytes], wants: Sequence[bytes]) -> None:
        """What was gathered. An ACK cannot be of what a CONSUME beside it will bring, so ACKs come first."""
        if acks:
            self.ack(acks)
        if wants:
            self.consume(wants)

    def _ack(
        self,
        queue: Queue,
        ids: Sequence[bytes],
        outs: Sequence[Out],
    ) -> None:
        """ACKs of one queue's messages, in order, which are not held any more."""
        if queue.deleted:
            self.refuse_all(ids, Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted"))
            return
        try:
            ticket = queue.acked(self, ids, outs)
        except Refusal as refusal:
            self.held.add_all(ids, outs)
            self.refuse_all(ids, refusal)
            return
        reply = runs.answers(runs.ACK_OK, ids)
        if ticket is None:
            self.say(reply)
        else:
            self.owe_acked(ticket, reply, len(ids))

    def owe_acked(self, ticket: Ticket, reply: bytes, count: int) -> None:
        """The answers to so many ACKs, once the disk has them."""
        self.replies.reply_after(ticket, reply, count)
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

    def refuse_all(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        """The same answer to several."""
        self.broker.refusals.tell(self.connection, refusal, len(ids))
        self.say(refusal.frames(ids))

    def _waits_over(self) -> None:
        """Nothing waits any more."""
        raise NotImplementedError
