"""Time and death in one queue: delays, lifetimes, deliveries that were one too many, and where the dead go.

Only queues whose options ask for any of it have one. Lifetimes and delays are the same for all messages of a
queue, so they are *marks*: up to this sequence, at that time; many messages share one, at the price of being
at most a thousandth of the time late. What comes back late (a retry) has an entry of its own. The queue's
next time is one entry in the broker's deadlines.

The dead move to their queue, or are dropped, some at a time, so that many of them hold nobody up. Where their
queue is missing or full, or the disk takes nothing, the queue that they are in is *parked*: nothing is tried
until the broker says that there is room (`Broker.has_room`), but for one message each second.
"""

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from dms.messages import Letter
from dms.wire import Refusal

if TYPE_CHECKING:
    from dms.queue import Queue

TRY_AGAIN_MS = 1000
"""A parked queue tries one of its dead so often, whatever it waits for."""
BACK_MAX = 10_000
"""Dead messages of the row are taken out of it while fewer than this are back: those are in memory."""
DEAD_AT_ONCE = 500
"""So many of the dead are taken out of the row, and so many move, before others have their turn."""
DROPPED_AT_ONCE = 10_000
"""So many of the row are dropped before others have their turn: that is one record, however many they are."""

EXPIRED, EXHAUSTED = "ttl", "max_deliveries"

Mark = tuple[int, int]
"""A time in age milliseconds, and the sequence up to which it holds."""


class Mortality:
    """Of one queue. Times are the broker's age in milliseconds (`dms.times`)."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        options = queue.options
        self.lives: deque[Mark] = deque()
        self.delays: deque[Mark] = deque()
        self.expired = 0
        """Below this sequence all are past their time. Until the row begins there, nothing of it goes out."""
        self.released = queue.head if options.delay_ms else queue.released
        """Below this sequence no delay holds any more."""
        self.later: dict[int, int] = {}
        """What is in `back` and may not go out yet, by sequence: when it may."""
        self._later_heap: list[tuple[int, int]] = []
        """The same, as (due, sequence)."""
        self._dead: dict[str, deque[int]] = {EXPIRED: deque(), EXHAUSTED: deque()}
        """What is in `back` and will leave the queue, by reason."""
        self._parked_until = 0
        """The dead have no place, and one of them is tried then. 0: not parked."""
        self._ttl_ms = options.ttl_ms
        self._delay_ms = options.delay_ms
        self._gate()

    # -- what the queue tells

    def came(self, tail: int) -> None:
        """Messages up to `tail` have come."""
        now = self.queue.broker.times.now_ms()
        if self._ttl_ms:
            _mark(self.lives, now, self._ttl_ms, tail)
        if self._delay_ms:
            _mark(self.delays, now, self._delay_ms, tail)
        self.arm()

    def took_back(self, tail: int) -> None:
        """Messages from `tail` on have not come after all."""
        for marks in (self.lives, self.delays):
            for number, (due, upto) in enumerate(marks):
                if upto > tail:
                    marks[number] = due, tail
        self.expired = min(self.expired, tail)
        if self._delay_ms:
            self.released = min(self.released, tail)
        self._gate()

    def returned(self, seq: int, deliveries: int, *, nacked: bool) -> None:
        """A message is in `back`: it may go out, or later, or it is dead."""
        options = self.queue.options
        if options.max_deliveries and deliveries >= options.max_deliveries:
            self._dead[EXHAUSTED].append(seq)
        elif seq < self.expired:
            self._dead[EXPIRED].append(seq)
        elif nacked and options.retry_ms:
            now = self.queue.broker.times.now_ms()
            self.put_off(seq, due_at(now, options.retry_delay_ms(deliveries)))
        else:
            heappush(self.queue.returned, seq)

    def put_off(self, seq: int, due: int) -> None:
        """A message that is in `back` may not go out before that."""
        self.later[seq] = due
        heappush(self._later_heap, (due, seq))
        self.queue.broker.times.set(self.queue, due)

    def shown(self) -> None:
        """More of the row may be seen, or has been read back."""
        if self.at_work:
            self._expire()
            self.bury()
            self.arm()
            if not self.queue.bodies:  # there may be more to read back: in its turn
                self._soon()

    def passed_over(self) -> None:
        """The row begins later: what was before is lost."""
        self._gate()

    def forget(self) -> None:
        """All that nobody held is gone."""
        self.later.clear()
        self._later_heap.clear()
        for dead in self._dead.values():
            dead.clear()
        self.unpark()
        self._gate()

    @property
    def at_work(self) -> bool:
        """The row's front is dead: until that has left it, nothing of the row goes out."""
        return self.expired > self.queue.head

    @property
    def delayed(self) -> int:
        """How many of those that came back do not go out now."""
        return len(self.later) + sum(map(len, self._dead.values()))

    # -- time

    @property
    def due(self) -> int | None:
        """When something is to be done, in age milliseconds."""
        parked = self._parked_until
        if (not parked and any(self._dead.values())) or self._may_leave():
            return self.queue.broker.times.now_ms()
        firsts = [marks[0][0] for marks in (self.lives, self.delays, self._later_heap) if marks]
        if parked:
            firsts.append(parked)
        return min(firsts, default=None)

    def arm(self) -> None:
        due = self.due
        if due is not None:
            self.queue.broker.times.set(self.queue, due)

    def _soon(self) -> None:
        """Have the queue looked at again, when others have had their turn."""
        times = self.queue.broker.times
        times.set(self.queue, times.now_ms())

    def on_time(self, now: int) -> None:
        queue = self.queue
        while self.delays and self.delays[0][0] <= now:
            self.released = self.delays.popleft()[1]
        while self.lives and self.lives[0][0] <= now:
            self.expired = self.lives.popleft()[1]
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
        if queue.waiting:
            queue.give()

    def _gate(self) -> None:
        """Let out of the row what may go out."""
        self.queue.released = 0 if self.at_work else self.released

    def _take_due(self, now: int) -> None:
        """What was put off may go out, or is dead by now."""
        queue, heap = self.queue, self._later_heap
        for _ in range(DEAD_AT_ONCE):
            if not heap or heap[0][0] > now:
                break
            _, seq = heappop(heap)
            del self.later[seq]
            self.returned(seq, queue.back[seq][1], nacked=False)

    # -- death

    def _expire(self) -> None:
        """Take what is past its time out of what could go out next, and of the row's front."""
        self._take_expired()
        self._gate()

    def _take_expired(self) -> None:
        queue = self.queue
        returned = queue.returned
        if returned and returned[0] < self.expired:
            returned.sort()  # which leaves it a heap
            count = bisect_left(returned, self.expired)
            self._dead[EXPIRED].extend(returned[:count])
            del returned[:count]
        count = self._may_leave()
        if not queue.options.dead_letter:
            if count:
                self._drop_row(count)
            return
        for _ in range(count):
            size = len(queue.bodies)
            queue.heat(-(queue.hot_bytes // size))
            queue.keep_back(queue.head, queue.bodies.popleft(), 0)
            self._dead[EXPIRED].append(queue.head)
            queue.head += 1
        self._fetch()

    def _fetch(self) -> None:
        """Have more of the row's dead in memory, where they may be there."""
        queue, keeper = self.queue, self.queue.keeper
        if keeper is None or queue.bodies or not self.at_work:
            return
        if not self._parked_until or (keeper.may_heat and len(queue.back) < BACK_MAX):
            keeper.reading.fetch()

    def _may_leave(self) -> int:
        """So many of the row's dead may leave it now."""
        queue = self.queue
        count = min(self.expired, queue.end) - queue.head
        if count <= 0:
            return 0
        parked, name = self._parked_until, queue.options.dead_letter
        if not name:
            return 0 if parked else min(count, DROPPED_AT_ONCE)
        count = min(count, len(queue.bodies), DEAD_AT_ONCE, BACK_MAX - len(queue.back))
        if count > 0 and queue.keeper is not None and not queue.keeper.may_heat:
            if parked:
                return 0
            target = queue.broker.find(name)
            room = target.room if target is not None else 0
            count = min(count, max(room, 0 if any(self._dead.values()) else 1))
        return max(count, 0)

    def _drop_row(self, count: int) -> None:
        queue = self.queue
        first = queue.head
        if queue.keeper is not None:
            try:
                queue.keeper.gone([(first, count)], EXPIRED)
            except Refusal:
                self._park()
                return
        hot = min(count, len(queue.bodies))
        if hot:
            queue.heat(-(queue.hot_bytes * hot // len(queue.bodies)))
        for _ in range(hot):
            queue.bodies.popleft()
        queue.head = first + count
        queue.broker.counts.dropped += count
        queue.left(count)

    def bury(self) -> None:
        """Move some of the dead to their queue, or drop them where none is named; the rest follow soon."""
        if not self._parked_until:
            self._bury_some(DEAD_AT_ONCE)

    def _bury_some(self, most: int) -> None:
        for reason, dead in self._dead.items():
            if dead:
                seqs = sorted([dead.popleft() for _ in range(min(most, len(dead)))])
                gone = self._bury(seqs, reason)
                dead.extendleft(reversed(seqs[gone:]))
                if gone < len(seqs):
                    self._park()
                elif any(self._dead.values()):
                    self._soon()
                return

    def _bury(self, seqs: list[int], reason: str) -> int:
        """Have the first of them leave, as many as there is room for; how many."""
        queue, broker = self.queue, self.queue.broker
        name = queue.options.dead_letter
        target = broker.find(name) if name else None
        gone = seqs if not name else seqs[: max(target.room, 0)] if target is not None else []
        if not gone:
            return 0
        try:
            if target is not None:
                those = [queue.back[seq] for seq in gone]
                letters = [Letter.of(body, queue.text, reason, times) for body, times in those]
                broker.move(queue, target, gone, letters, reason)
                broker.counts.dead_lettered += len(gone)
            else:
                if queue.keeper is not None:
                    queue.keeper.gone_seqs(gone, reason)
                broker.counts.dropped += len(gone)
        except Refusal:
            return 0
        for seq in gone:
            queue.take_out(seq)
        queue.left(len(gone))
        if target is not None:
            broker.has_room(target)  # another's dead may wait for it, too
        return len(gone)

    # -- parking

    def _park(self) -> None:
        broker = self.queue.broker
        broker.counts.held_back += 1
        self._parked_until = broker.times.now_ms() + TRY_AGAIN_MS
        broker.times.set(self.queue, self._parked_until)
        broker.park(self.queue)

    def unpark(self) -> None:
        self._parked_until = 0
        self.queue.broker.unpark(self.queue)

    def called(self) -> None:
        """There is room where the dead are to go."""
        self.unpark()
        self._soon()


def due_at(now: int, after_ms: int) -> int:
    """When it is due: not before its time, though the age that is `now` may be nearly a millisecond more."""
    return now + after_ms + 1


def _mark(marks: deque[Mark], now: int, after_ms: int, tail: int) -> None:
    """Messages up to `tail` are due `after_ms` from now; those of nearly the same time share a mark."""
    grain = after_ms // 1000
    due = due_at(now, after_ms) + grain
    if marks and due - marks[-1][0] <= grain:
        marks[-1] = marks[-1][0], tail
    else:
        marks.append((due, tail))
