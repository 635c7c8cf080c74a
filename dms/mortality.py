"""Time and death in one queue: delays, lifetimes, deliveries that were one too many, and where the dead go.

Only queues whose options ask for any of it have one. Lifetimes and delays are the same for all messages of a
queue, so they are *marks*: up to this sequence, at that time; many messages share one, at the price of being
at most a thousandth of the time late. What comes back late (a retry, a dead message whose place is taken) has
an entry of its own. The queue's next time is one entry in the broker's deadlines.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from dms.messages import Letter
from dms.wire import Refusal

if TYPE_CHECKING:
    from dms.queue import Queue

TRY_AGAIN_MS = 1000
"""A dead message whose queue is full or missing is held back for so long, then tried again."""
BACK_MAX = 10_000
"""Dead messages of the row are taken out of it while fewer than this are back: those are in memory."""
DEAD_AT_ONCE = 500
"""So many are taken out of the row before others have their turn, and so many move in one entry."""

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
        self.later: list[tuple[int, int]] = []
        """A heap of (due, sequence): what is in `back` and may not go out yet."""
        self._dead: list[tuple[int, str]] = []
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
            self._dead.append((seq, EXHAUSTED))
        elif seq < self.expired:
            self._dead.append((seq, EXPIRED))
        elif nacked and options.retry_ms:
            now = self.queue.broker.times.now_ms()
            self.put_off(seq, due_at(now, options.retry_delay_ms(deliveries)))
        else:
            heappush(self.queue.returned, seq)

    def put_off(self, seq: int, due: int) -> None:
        heappush(self.later, (due, seq))
        self.arm()

    def shown(self) -> None:
        """More of the row may be seen, or has been read back."""
        if self.expired > self.queue.head:
            self._expire()
            self.bury()
            self.arm()

    def forget(self) -> None:
        """All that nobody held is gone."""
        self.later.clear()
        self._dead.clear()
        self._gate()

    # -- time

    @property
    def due(self) -> int | None:
        """When something is to be done, in age milliseconds."""
        queue = self.queue
        if self.expired > queue.head and queue.bodies and len(queue.back) < BACK_MAX:
            return queue.broker.times.now_ms()  # more of the row is dead
        firsts = [marks[0][0] for marks in (self.lives, self.delays, self.later) if marks]
        return min(firsts, default=None)

    def arm(self) -> None:
        due = self.due
        if due is not None:
            self.queue.broker.times.set(self.queue, due)

    def on_time(self, now: int) -> None:
        queue = self.queue
        while self.delays and self.delays[0][0] <= now:
            self.released = self.delays.popleft()[1]
        while self.lives and self.lives[0][0] <= now:
            self.expired = self.lives.popleft()[1]
        if self.expired:
            self._expire()
        self._gate()
        while self.later and self.later[0][0] <= now:
            _, seq = heappop(self.later)
            if seq in queue.back:
                self.returned(seq, queue.back[seq][1], nacked=False)
        self.bury()
        self.arm()
        if queue.waiting:
            queue.give()

    def _gate(self) -> None:
        """Let out of the row what may go out."""
        queue = self.queue
        queue.released = 0 if self.expired > queue.head else self.released

    # -- death

    def _expire(self) -> None:
        """Take what is past its time out of what could go out next, and of the row's front."""
        self._take_expired()
        self._gate()

    def _take_expired(self) -> None:
        queue = self.queue
        while queue.returned and queue.returned[0] < self.expired:
            self._dead.append((heappop(queue.returned), EXPIRED))
        count = min(self.expired, queue.end) - queue.head
        if count <= 0:
            return
        if not queue.options.dead_letter:
            self._drop_row(count)
            return
        room = min(count, len(queue.bodies), BACK_MAX - len(queue.back), DEAD_AT_ONCE)
        for _ in range(room):
            size = len(queue.bodies)
            queue.heat(-(queue.hot_bytes // size))
            queue.back[queue.head] = queue.bodies.popleft(), 0
            self._dead.append((queue.head, EXPIRED))
            queue.head += 1
        if count > room and not queue.bodies and queue.keeper is not None:
            queue.keeper.reading.fetch()

    def _drop_row(self, count: int) -> None:
        queue = self.queue
        first = queue.head
        if queue.keeper is not None:
            try:
                queue.keeper.gone([(first, count)], EXPIRED)
            except Refusal:
                self.later_again()
                return
        hot = min(count, len(queue.bodies))
        if hot:
            queue.heat(-(queue.hot_bytes * hot // len(queue.bodies)))
        for _ in range(hot):
            queue.bodies.popleft()
        queue.head = first + count
        queue.depth -= count
        queue.broker.counts.dropped += count

    def later_again(self) -> None:
        """What could not be done now is tried again."""
        self.put_off(0, self.queue.broker.times.now_ms() + TRY_AGAIN_MS)

    def bury(self) -> None:
        """Move the dead to their queue; drop them where none is named."""
        if not self._dead:
            return
        dead, self._dead = self._dead, []
        for reason in (EXPIRED, EXHAUSTED):
            seqs = sorted(seq for seq, why in dead if why == reason and seq in self.queue.back)
            for start in range(0, len(seqs), DEAD_AT_ONCE):
                self._bury(seqs[start : start + DEAD_AT_ONCE], reason)

    def _bury(self, seqs: list[int], reason: str) -> None:
        queue, broker = self.queue, self.queue.broker
        name = queue.options.dead_letter
        target = broker.find(name) if name else None
        moved = seqs if not name else seqs[: max(target.room, 0)] if target is not None else []
        try:
            if moved:
                if target is None:
                    if queue.keeper is not None:
                        queue.keeper.gone_seqs(moved, reason)
                    broker.counts.dropped += len(moved)
                else:
                    those = [queue.back[seq] for seq in moved]
                    letters = [Letter.of(body, queue.text, reason, times) for body, times in those]
                    broker.move(queue, target, moved, letters, reason)
                    broker.counts.dead_lettered += len(moved)
                for seq in moved:
                    del queue.back[seq]
                queue.depth -= len(moved)
        except Refusal:
            moved = []
        if len(moved) < len(seqs):
            due = broker.times.now_ms() + TRY_AGAIN_MS
            broker.counts.held_back += len(seqs) - len(moved)
            for seq in seqs[len(moved) :]:
                self.put_off(seq, due)


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


def heap_of(entries: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    heap = list(entries)
    heapify(heap)
    return heap
