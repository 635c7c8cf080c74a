"""The core of a queue: its messages as runs, where each of them is, and what memory they take.

How a protocol uses it. Its queue is a `RunQueue`, and adds four things of its own: the records of its log,
who gets a message (`dispatch`), where a dead letter goes, and what a client is answered.

    class Queue(RunQueue):
        def publish(self, head, bodies):
            first = self.come(len(bodies))                     # numbers; visible once the disk has them
            ticket = self.log.append(record_of(head, bodies, first))
            ticket.when_done(lambda done: self.show(head, bodies, first))

        def dispatch(self):
            while self.ready and not self.stops and (taker := self.next_taker()):
                run = self.take(taker.room)                    # requeued messages first, then the row
                self.hold(run)
                taker.unacked.add(taker.new_ids(len(run)), self, run)

        def settle(self, deliveries):                          # acknowledged
            ticket = self.log.append(record_of_ack(deliveries))
            self.release([run for _, _, run in deliveries], left=True)
            self.leaving.add(self.log.end, lambda: self.undo_settle(deliveries))

Each message is in one place: not *visible* yet, because the disk has not confirmed it (numbers `end` to
`tail`); in the *row*, never delivered (`head` to `end`); *requeued*, and deliverable again; *held* by a
consumer; or *aside*, where the protocol keeps it: for its time to come, or for its place among dead letters.
Only the front of the row need be in memory (`ready.runs`). The rest is in the log alone, and is loaded when
its turn comes. A queue without a log has all of its row in memory.

Why the row has a front in memory, and is not only a cursor over the log. A queue without a disk needs the row
in memory anyway, so a cursor would be a second way beside it and not the only one. And the front is already
what a read-ahead window would be: new messages enter it as they are while it reaches to the row's end, which
saves 0.2 to 1.5 us a message for parsing records that were just made.

When a commit fails, what rests on it is undone (`Undoing`): messages that were to leave are back where they
were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs

from shared.queues.base import HOT_LEAST_BYTES, QueueBase
from shared.queues.runs import Ready, Run, bodies_bytes

if TYPE_CHECKING:
    from shared.budget import Account

MESSAGE_BYTES = 64
"""Memory of a waiting message beside its body: bytes object, place in a list, rounding."""
HELD_BYTES = 160
"""Memory of a held message beside that: its part of a run, of its ids and of an entry."""
SLACK_BYTES = 64 << 10
"""The budget is charged when the memory of messages has changed by this much."""


@attrs.define(eq=False)
class QueueMemory:
    """Memory of the messages of all queues of a protocol: of those that wait, and of those that are held."""

    loaded: Account
    held: Account
    loaded_bytes: int = 0
    held_bytes: int = 0
    full: bool = False
    """No more waiting messages fit: only what is on disk may come."""
    held_full: bool = False
    """No more may be delivered until some are acknowledged."""
    loaded_charged: int = 0
    held_charged: int = 0
    """What the accounts were charged."""

    def sync(self) -> None:
        """Charge the budget with the present memory."""
        self.loaded.charge(self.loaded_bytes - self.loaded_charged)
        self.held.charge(self.held_bytes - self.held_charged)
        self.loaded_charged, self.held_charged = self.loaded_bytes, self.held_bytes
        self.full = not self.loaded.fits(1)
        self.held_full = self.held_bytes >= self.held.limit_bytes


@attrs.define(eq=False)
class Undoing:
    """Changes whose records are appended and not confirmed: how to undo each, should its commit fail."""

    _changes: list[tuple[int, Callable[[], None]]] = attrs.Factory(list)

    def add(self, end: int, undo: Callable[[], None]) -> None:
        """`end`: the log's end behind the record."""
        self._changes.append((end, undo))

    def confirmed(self, visible: int) -> None:
        """The disk has the log up to there."""
        if self._changes:
            del self._changes[: bisect_right(self._changes, visible, key=itemgetter(0))]

    def undo(self) -> None:
        """The disk has refused all that it had not confirmed: undo it, the newest first."""
        changes, self._changes = self._changes, []
        for _, undo in reversed(changes):
            undo()


@attrs.define(eq=False, repr=False)
class RunQueue(QueueBase):
    """One queue's messages; see the top of this file."""

    memory: QueueMemory
    ready: Ready = attrs.field(factory=Ready, init=False)
    depth: int = attrs.field(default=0, init=False)
    """All messages, also those that are held, and those that the disk has not confirmed."""
    held: int = attrs.field(default=0, init=False)
    head: int = attrs.field(default=1, init=False)
    """The first number of the row."""
    end: int = attrs.field(default=1, init=False)
    """The number behind the row."""
    tail: int = attrs.field(default=1, init=False)
    """The number of the next message that comes."""
    aside: list[list[Run]] = attrs.field(factory=list, init=False)
    """Messages that left the row and are not delivered, while a redrive looks at them."""
    loaded_bytes: int = attrs.field(default=0, init=False)
    """Memory of its messages that nobody holds."""
    held_bytes: int = attrs.field(default=0, init=False)

    @property
    def returned(self) -> int:
        """How many messages have left the row, and nobody holds them: requeued ones, and those aside."""
        return self.depth - self.held - (self.tail - self.head)

    @property
    def loaded_end(self) -> int:
        """The number behind the part of the row that is in memory."""
        return self.head + self.ready.loaded

    @property
    def is_cold(self) -> bool:
        """Whether part of the row is not in memory."""
        return self.head + self.ready.loaded < self.end

    @property
    def payload_bytes(self) -> int:
        """Bytes of the bodies in memory."""
        beside = (
            MESSAGE_BYTES * (self.ready.loaded + self.returned) + (MESSAGE_BYTES + HELD_BYTES) * self.held
        )
        return max(self.loaded_bytes + self.held_bytes - beside, 0)

    def may_load(self, memory_bytes: int) -> bool:
        """Whether more of the row may be in memory, where all queues together should not take more."""
        return (
            self.memory.loaded_bytes < memory_bytes and not self.memory.full
        ) or self.loaded_bytes < HOT_LEAST_BYTES

    # -- memory

    def charge(self, size: int) -> None:
        """Memory of waiting messages: so much more, or less."""
        self.loaded_bytes += size
        self.memory.loaded_bytes += size

    def charge_runs(self, runs: Iterable[Run]) -> None:
        self.charge(sum([_run_bytes(run) for run in runs]))

    def uncharge_runs(self, runs: Iterable[Run]) -> None:
        self.charge(-sum([_run_bytes(run) for run in runs]))

    # -- in

    def load(self, bodies: Sequence[bytes], first: int, size: int, head: Any = None) -> None:
        """Have messages in memory that are behind the loaded part of the row; `size`: bytes of the bodies."""
        self.ready.add(Run(head, [*bodies], first))
        size += MESSAGE_BYTES * len(bodies)
        self.loaded_bytes += size
        self.memory.loaded_bytes += size

    # -- out

    def hold(self, run: Run) -> None:
        """Messages that waited in memory are held from now on."""
        bodies = run.bodies
        count = len(bodies)
        size = MESSAGE_BYTES * count + (len(bodies[0]) if count == 1 else bodies_bytes(bodies))
        self.loaded_bytes -= size
        self.held += count
        memory = self.memory
        memory.loaded_bytes -= size
        size += HELD_BYTES * count
        self.held_bytes += size
        memory.held_bytes += size

    def hold_again(self, run: Run) -> None:
        """Messages that were released are held after all: their acknowledgement is undone."""
        self.charge_runs((run,))
        self.hold(run)

    def release(self, runs: Iterable[Run]) -> int:
        """Messages are not held any more; returns how many. They have left, or return."""
        count = size = 0
        for run in runs:
            bodies = run.bodies
            count += len(bodies)
            size += len(bodies[0]) if len(bodies) == 1 else bodies_bytes(bodies)
        size += (MESSAGE_BYTES + HELD_BYTES) * count
        self.held -= count
        self.held_bytes -= size
        memory = self.memory
        memory.held_bytes -= size
        if memory.held_charged - memory.held_bytes > SLACK_BYTES:
            memory.sync()
        return count

    def front(self, count: int) -> list[Run]:
        """Take messages off the row's loaded front. They stay in the queue, aside, and in memory."""
        runs: list[Run] = []
        while count > 0 and self.ready.loaded:
            run = self.ready.take_row(count)
            self.head += len(run.bodies)
            count -= len(run.bodies)
            runs.append(run)
        return runs

    def drop_front(self, count: int) -> None:
        """Messages of the row's front leave, in memory or not."""
        first = self.head
        self.uncharge_runs(self.front(min(count, self.ready.loaded)))
        self.head = first + count
        self.leave(count)

    def drop_row(self) -> None:
        """The visible row leaves."""
        count = self.end - self.head
        self.uncharge_runs(self.ready.clear_row())
        self.head = self.end
        self.leave(count)

    def drop(self, runs: Sequence[Run]) -> None:
        """Messages that nobody holds leave; they are in no place any more."""
        self.uncharge_runs(runs)
        self.leave(sum(map(len, runs)))

    def leave(self, count: int) -> None:
        """So many messages have left the queue."""
        self.depth -= count

    def forget_memory(self) -> None:
        """The queue is deleted: what waits in it does not count as memory any more."""
        self.charge(-self.loaded_bytes)
        self.memory.sync()


def _run_bytes(run: Run) -> int:
    bodies = run.bodies
    return bodies_bytes(bodies) + MESSAGE_BYTES * len(bodies)
