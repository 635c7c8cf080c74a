"""Expiry in one queue: delays, lifetimes, delivery limits, and where dead letters go.

Only queues whose options ask for it have one. A lifetime or delay is the same for all messages of a queue. So
times are kept as pairs (due, sequence): all messages before the sequence are due then. Messages of nearly the
same time share a pair, and are late by at most a thousandth of the time. A message delayed by a NACK has an
entry of its own. The queue has one entry in the engine's timers: its next time.

Dead letters move to their dead-letter queue, or are dropped if none is named. They go in slices, so many of
them hold up nobody. If the dead-letter queue is missing or full, or the disk refuses, their queue is
*parked*: it tries one message each second, and all once the engine says that there is room
(`Engine.has_room`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from dms.records import TTL, DeadLetter, Reason, to_runs
from dms.wire import Refusal

if TYPE_CHECKING:
    from dms.engine import Queue

TRY_AGAIN_MS = 1000
"""A parked queue tries one dead letter at this interval."""
BACK_MAX = 10_000
"""Dead letters of the row move to `back`, in memory, while it holds fewer than this."""
EVER = 1 << 62
DEAD_AT_ONCE = 500
"""Dead letters that leave the row and move, per slice."""
EXPIRED_AT_ONCE = 1000
"""Returned messages found dead per slice: a millisecond."""
DROPPED_AT_ONCE = 10_000
"""Messages of the row dropped per slice: one record, however many."""

REASON_TEXTS = {Reason.TTL: TTL, Reason.MAX_DELIVERIES: "max_deliveries"}
"""The reason in a dead letter."""

DueBefore = tuple[int, int]
"""An age in milliseconds, and a sequence: all messages before it are due then."""


class Expiry:
    """The deadlines of one queue's messages, in milliseconds of the engine's age (`dms.times`)."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        options = queue.options
        self.lifetimes: deque[DueBefore] = deque()
        self.delays: deque[DueBefore] = deque()
        self.expired = 0
        """All messages before this sequence are dead: while the row begins before it, none of it is
        delivered."""
        self.released = queue.head if options.delay_ms else queue.released
        """No message before this sequence is delayed any more."""
        self.put_off_until: dict[int, int] = {}
        """Messages in `back` that may not be delivered yet: when they may, by sequence."""
        self._put_off: list[tuple[int, int]] = []
        """What `put_off_until` holds, as a heap of (due, sequence)."""
        self._dead: dict[Reason, deque[int]] = {Reason.TTL: deque(), Reason.MAX_DELIVERIES: deque()}
        """Messages in `back` that will leave the queue, by sequence."""
        self._parked_until = 0
        """When a parked queue next tries one dead letter; 0: not parked."""
        self._ttl_ms = options.ttl_ms
        self._delay_ms = options.delay_ms
        self._gate()

    def options_changed(self) -> None:
        """The queue's options have changed. New messages get the new times. Present ones keep their lifetime
        or delay; a new lifetime begins now for them, a new delay does not apply.
        """
        queue, options = self.queue, self.queue.options
        if not options.ttl_ms:
            self.lifetimes.clear()
            self.expired = 0
        elif not self._ttl_ms:
            _add_due(self.lifetimes, queue.engine.times.now_ms(), options.ttl_ms, queue.tail, queue.depth)
        if not options.delay_ms:
            self.delays.clear()
            self.released = EVER
        elif not self._delay_ms:
            self.released = queue.tail
        self._ttl_ms, self._delay_ms = options.ttl_ms, options.delay_ms
        self._gate()
        self.arm()

    # -- calls of the queue

    def on_produced(self, tail: int) -> None:
        """Messages before `tail` are in the queue."""
        now = self.queue.engine.times.now_ms()
        if self._ttl_ms:
            _add_due(self.lifetimes, now, self._ttl_ms, tail, self.queue.depth)
        if self._delay_ms:
            _add_due(self.delays, now, self._delay_ms, tail, self.queue.depth)
        self.arm()

    def undo_produced(self, tail: int) -> None:
        """The disk refused messages from `tail` on."""
        for times in (self.lifetimes, self.delays):
            for number, (due, upto) in enumerate(times):
                if upto > tail:
                    times[number] = due, tail
        self.expired = min(self.expired, tail)
        if self._delay_ms:
            self.released = min(self.released, tail)
        self._gate()

    def on_returned(self, seq: int, deliveries: int, *, nacked: bool) -> None:
        """A message is in `back` again: deliverable, delayed, or dead."""
        options = self.queue.options
        if options.max_deliveries and deliveries >= options.max_deliveries:
            self._dead[Reason.MAX_DELIVERIES].append(seq)
        elif seq < self.expired:
            self._dead[Reason.TTL].append(seq)
        elif nacked and options.retry_ms:
            now = self.queue.engine.times.now_ms()
            self.put_off(seq, due_at(now, options.retry_delay_ms(deliveries)))
        elif seq >= self.released:  # a redrive has looked at it, and its delay is not over
            self.put_off(seq, next(due for due, upto in self.delays if seq < upto))
        else:
            heappush(self.queue.returned, seq)

    def put_off(self, seq: int, due: int) -> None:
        """A message in `back` may not be delivered before `due`."""
        self.put_off_until[seq] = due
        heappush(self._put_off, (due, seq))
        self.queue.wake_by(due)

    def row_grew(self) -> None:
        """More of the row is visible, or was read back."""
        if self.head_expired:
            self._expire()
            self.bury()
            self.arm()
            if not self.queue.bodies:  # there may be more to read back: in a slice of its own
                self._soon()

    def row_moved(self) -> None:
        """The row begins later: messages before that are lost."""
        self._gate()

    def forget(self) -> None:
        """A purge removed all messages that no consumer holds."""
        self.put_off_until.clear()
        self._put_off.clear()
        for dead in self._dead.values():
            dead.clear()
        self.unpark()
        self._gate()

    @property
    def head_expired(self) -> bool:
        """Whether the row's front is dead. Until that has left, nothing of the row is delivered."""
        return self.expired > self.queue.head

    @property
    def returned_expired(self) -> bool:
        """Whether the oldest that was returned is dead. Until those have left, nothing is delivered."""
        returned = self.queue.returned
        return bool(returned) and returned[0] < self.expired

    @property
    def delayed(self) -> int:
        """Messages in `back` that may not be delivered yet."""
        return len(self.put_off_until)

    @property
    def dead(self) -> int:
        """Dead messages that have not left: their target is missing or full, or their slice has not come."""
        row = max(min(self.expired, self.queue.end) - self.queue.head, 0)
        return row + sum(map(len, self._dead.values()))

    # -- time

    def arm(self) -> None:
        """Have the engine call `on_time` when something is due."""
        parked = self._parked_until
        if (not parked and any(self._dead.values())) or self.returned_expired or self._may_leave():
            self._soon()
            return
        firsts = [times[0][0] for times in (self.lifetimes, self.delays, self._put_off) if times]
        if parked:
            firsts.append(parked)
        if firsts:
            self.queue.wake_by(min(firsts))

    def _soon(self) -> None:
        """Have `on_time` called again in another slice."""
        self.queue.wake_by(self.queue.engine.times.now_ms())

    def on_time(self, now: int) -> None:
        queue = self.queue
        while self.delays and self.delays[0][0] <= now:
            self.released = self.delays.popleft()[1]
        while self.lifetimes and self.lifetimes[0][0] <= now:
            self.expired = self.lifetimes.popleft()[1]
        tries = 0 < self._parked_until <= now
        if tries:
            self.unpark()
        if self.expired:
            self._expire()
        self._gate()
        self._take_due(now)
        if tries:
            self._bury_some(1)
        else:
            self.bury()
        self.arm()
        if queue.line:
            queue.dispatch()

    def _gate(self) -> None:
        """Tell the queue up to where its row may be delivered."""
        self.queue.released = 0 if self.head_expired else self.released

    def _take_due(self, now: int) -> None:
        """Delayed messages that are due become deliverable, or are dead by now."""
        queue, heap = self.queue, self._put_off
        for _ in range(DEAD_AT_ONCE):
            if not heap or heap[0][0] > now:
                break
            _, seq = heappop(heap)
            del self.put_off_until[seq]
            self.on_returned(seq, queue.back[seq][1], nacked=False)

    # -- death

    def _expire(self) -> None:
        """Remove messages past their lifetime from `returned`, and from the row's front."""
        queue = self.queue
        for _ in range(EXPIRED_AT_ONCE):
            if not self.returned_expired:
                break
            self._dead[Reason.TTL].append(heappop(queue.returned))
        count = self._may_leave()
        if queue.options.dead_letter:
            self._dead[Reason.TTL].extend(queue.front_to_back(count))
            self._fetch()
        elif count:
            self._drop_front(count)
        self._gate()

    def _fetch(self) -> None:
        """Read back more of the row's dead messages, if there is room in memory."""
        queue = self.queue
        if queue.cold is None or queue.bodies or not self.head_expired:
            return
        if not self._parked_until or (queue.may_heat and len(queue.back) < BACK_MAX):
            queue.cold.fetch()

    def _may_leave(self) -> int:
        """How many of the row's dead messages may leave it now."""
        queue = self.queue
        count = min(self.expired, queue.end) - queue.head
        if count <= 0:
            return 0
        parked, name = self._parked_until, queue.options.dead_letter
        if not name:
            return 0 if parked else min(count, DROPPED_AT_ONCE)
        count = min(count, len(queue.bodies), DEAD_AT_ONCE, BACK_MAX - len(queue.back))
        if count > 0 and not queue.may_heat:
            if parked:
                return 0
            target = queue.engine.find(name)
            room = target.room if target is not None else 0
            count = min(count, max(room, 0 if any(self._dead.values()) else 1))
        return max(count, 0)

    def _drop_front(self, count: int) -> None:
        queue = self.queue
        try:
            queue.log_gone([(queue.head, count)], Reason.TTL)
        except Refusal:
            self._park()
            return
        queue.drop_front(count)
        queue.engine.counts.dropped += count

    def bury(self) -> None:
        """Move some dead letters to their queue, or drop them if none is named; the rest follows soon."""
        if not self._parked_until:
            self._bury_some(DEAD_AT_ONCE)

    def _bury_some(self, most: int) -> None:
        for reason, dead in self._dead.items():
            if dead:
                seqs = sorted([dead.popleft() for _ in range(min(most, len(dead)))])
                left = self._bury(seqs, reason)
                dead.extendleft(reversed(left))
                if left:
                    self._park()
                elif any(self._dead.values()):
                    self._soon()
                return

    def _bury(self, seqs: list[int], reason: Reason) -> list[int]:
        """Move as many as there is room for, the oldest first. Returns those that stay.

        A message that time alone has brought through a circle of queues does not go round again: it is
        dropped.
        """
        queue, engine = self.queue, self.queue.engine
        name = queue.options.dead_letter
        target = engine.find(name) if name else None
        dropped, moving, letters = seqs, list[int](), list[DeadLetter]()
        if name:
            dropped = []
            room = max(target.room, 0) if target is not None else 0
            for seq in seqs:
                body, deliveries = queue.back[seq]
                letter = DeadLetter.of(body, queue.text, REASON_TEXTS[reason], deliveries)
                if name in letter.passed:
                    dropped.append(seq)
                elif len(moving) < room:
                    moving.append(seq)
                    letters.append(letter)
        gone: list[int] = []
        try:
            if dropped:
                queue.log_gone(to_runs(dropped), reason)
                engine.counts.dropped += len(dropped)
                gone += dropped
            if target is not None and moving:
                engine.move(queue, target, moving, letters, reason)
                engine.counts.dead_lettered += len(moving)
                gone += moving
        except Refusal:
            pass  # those stay
        for seq in gone:
            queue.take_out(seq)
        queue.on_left(len(gone))
        if target is not None and gone:
            engine.has_room(target)  # dead letters of another queue may wait for it too
        left = set(gone)
        return [seq for seq in seqs if seq not in left]

    # -- parking

    def _park(self) -> None:
        engine = self.queue.engine
        engine.counts.held_back += 1
        self._parked_until = engine.times.now_ms() + TRY_AGAIN_MS
        self.queue.wake_by(self._parked_until)
        engine.park(self.queue)
        engine.tell_held_back(self.queue)

    def unpark(self) -> None:
        self._parked_until = 0
        self.queue.engine.unpark(self.queue)

    def on_room(self) -> None:
        """The dead-letter queue was created, or has room again."""
        self.unpark()
        self._soon()

    # -- a restart

    @property
    def state(self) -> dict[str, Any]:
        """The fields of a SNAPSHOT record."""
        return {
            "expired": self.expired,
            "released": self.released if self._delay_ms else 0,
            "lives": list(self.lifetimes),
            "delays": list(self.delays),
        }

    def restore(self, state: Mapping[str, Any], state_age_ms: int, produced: Sequence[DueBefore]) -> None:
        """Restore the last snapshot's state. `produced`: (age, sequence behind) of messages since then."""
        tail = state.get("tail", 1)
        if self._ttl_ms:
            self.expired = state.get("expired", 0)
            self.lifetimes.extend((due, upto) for due, upto in state.get("lives", ()))
            if not self.lifetimes and self.expired < tail:  # no lifetime was set at the snapshot
                self.lifetimes.append((due_at(state_age_ms, self._ttl_ms), tail))
        if self._delay_ms:
            self.released = state.get("released", 1) or tail  # 0: no delay was set at the snapshot
            self.delays.extend((due, upto) for due, upto in state.get("delays", ()))
        for age_ms, upto in produced:
            if self._ttl_ms:
                self.lifetimes.append((due_at(age_ms, self._ttl_ms), upto))
            if self._delay_ms:
                self.delays.append((due_at(age_ms, self._delay_ms), upto))


def due_at(now: int, after_ms: int) -> int:
    """When `after_ms` have surely passed: plus one, because ages are rounded down."""
    return now + after_ms + 1


def _add_due(times: deque[DueBefore], now: int, after_ms: int, tail: int, depth: int) -> None:
    """Messages before `tail` are due `after_ms` from now. Those of nearly the same time share an entry.

    `after_ms` may be less than it was. Then they are due with those before them, unless these have left: all
    `depth` messages of the queue came since the last entry.
    """
    grain = after_ms // 1000
    due = due_at(now, after_ms) + grain
    if times and due < times[-1][0] and depth <= tail - times[-1][1]:
        times.clear()
    if times and due - times[-1][0] <= grain:
        times[-1] = times[-1][0], tail
    else:
        times.append((due, tail))
