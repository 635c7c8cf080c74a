"""The core of a queue: its messages as runs, where each of them is, and what memory they take.

How a protocol uses it. Its queue is a `RunQueue`, and adds four things of its own: the records of its log,
who gets a message (`dispatch`), where a dead letter goes, and what a client is answered.

    class Queue(RunQueue):
        def admit(self, run):                                  # the disk has its record
            self.charge_runs((run,))
            self.ready.add(run)
            self.dispatch()

        def dispatch(self):
            while self.ready and not self.stops and (taker := self.next_taker()):
                run = self.ready.take(taker.room)              # requeued messages first, then the row
                self.hold(run)
                taker.unacked.add(taker.new_ids(len(run)), self, run)

        def settle(self, runs):                                # acknowledged
            self.log.append(record_of_ack(runs))
            self.release(runs)

Each message is in one place: not *visible* yet, because the disk has not confirmed it; in the *row*, never
delivered; *requeued*, and deliverable again; *held* by a consumer; or *aside*: an action of the
administration looks at it (`shared.queues.sifting`), or the protocol keeps it for its time to come, or for
its place among dead letters. Only the front of the row need be in memory (`ready`). The rest is in the log
alone, and is loaded when its turn comes (`shared.queues.cold`). A queue without a log has all of its row in
memory.

Why the row has a front in memory, and is not only a cursor over the log. A queue without a disk needs the row
in memory anyway, so a cursor would be a second way beside it and not the only one. And the front is already
what a read-ahead window would be: new messages enter it as they are while it reaches to the row's end, which
saves 0.2 to 1.5 us a message for parsing records that were just made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import attrs

from shared.queues.keys import Keys
from shared.queues.priorities import Priorities
from shared.queues.runs import Ready, Run, bodies_bytes
from shared.queues.waits import NONE

HOT_LEAST_BYTES = 16 << 10
"""Every queue may keep this much in memory, whatever the others do."""
MESSAGE_BYTES = 64
"""Memory of a waiting message beside its body, where it has no head: bytes object, place in a list,
rounding."""
HELD_BYTES = 160
"""Memory of a held message beside that: its part of a run, of its ids and of an entry."""
MANY_DELIVERIES = 10
"""From here on a message's deliveries are counted as so many."""
SLACK_BYTES = 64 << 10
"""The budget is charged when the memory of messages has changed by this much."""


@attrs.define(eq=False)
class QueueMemory:
    """Memory of the messages of all queues of a protocol: of those that wait, and of those that are held."""

    loaded_bytes: int = attrs.field(default=0, init=False)
    held_bytes: int = attrs.field(default=0, init=False)
    loaded_charged: int = attrs.field(default=0, init=False)
    held_charged: int = attrs.field(default=0, init=False)
    """What the budget was charged."""
    full: bool = attrs.field(default=False, init=False)
    """No more waiting messages fit: only what is on disk may come."""

    @property
    def unsynced(self) -> bool:
        """Whether the budget does not know well enough what waits, or it was full."""
        return self.full or not -SLACK_BYTES < self.loaded_bytes - self.loaded_charged < SLACK_BYTES

    def sync(self) -> None:
        """Charge the budget with the present memory, and find out whether it is `full`."""
        raise NotImplementedError


@attrs.define(eq=False, repr=False)
class RunQueue:
    """One queue's messages; see the top of this file. `deadline` and `scheduled` belong to `Timers`; `mark`,
    `marked_at` and `tick` to `Waits`."""

    memory: QueueMemory
    ready: Ready | Priorities | Keys = attrs.field(factory=Ready, init=False)
    """What may be delivered, as far as it is in memory."""
    held: int = attrs.field(default=0, init=False)
    """How many messages consumers hold."""
    aside: list[list[Run]] = attrs.field(factory=list, init=False)
    """Messages that left the row and are not delivered, while an action looks at them."""
    loaded_bytes: int = attrs.field(default=0, init=False)
    """Memory of its messages that nobody holds."""
    held_bytes: int = attrs.field(default=0, init=False)
    deleted: bool = attrs.field(default=False, init=False)
    paused: bool = attrs.field(default=False, init=False)
    """The queue takes messages and delivers none, until it is resumed. What waits expires."""
    stops: int = attrs.field(default=0, init=False)
    """Reasons to deliver nothing: a pause; messages that are on their way back, since some of them stand
    before all there are; and another server that is followed, and gives them out."""
    deadline: float = attrs.field(default=math.inf, init=False)
    scheduled: float = attrs.field(default=math.inf, init=False)
    mark: int = attrs.field(default=NONE, init=False)
    marked_at: float = attrs.field(default=0.0, init=False)
    tick: int = attrs.field(default=0, init=False)
    redelivered: Counter[str] | None = attrs.field(default=None, init=False)
    """Deliveries by which one it was of the message's, from the second on; None: there was none."""

    def dispatch(self) -> None:
        """Deliver what can be delivered; nothing while there are `stops`."""
        raise NotImplementedError

    # -- memory

    def charge(self, size: int) -> None:
        """Memory of waiting messages: so much more, or less."""
        self.loaded_bytes += size
        self.memory.loaded_bytes += size

    def charge_runs(self, runs: Iterable[Run]) -> None:
        self.charge(sum([memory_of(run) for run in runs]))

    def uncharge_runs(self, runs: Iterable[Run]) -> None:
        self.charge(-sum([memory_of(run) for run in runs]))

    # -- out, and back

    def hold(self, run: Run) -> None:
        """Messages that waited in memory are held from now on."""
        bodies = run.bodies
        count = len(bodies)
        self.held += count
        memory, head = self.memory, run.head
        if head is None:
            size = MESSAGE_BYTES * count + (len(bodies[0]) if count == 1 else bodies_bytes(bodies))
            held_size = size + HELD_BYTES * count
        else:
            size = held_size = head.cost_bytes * count
        self.loaded_bytes -= size
        memory.loaded_bytes -= size
        self.held_bytes += held_size
        memory.held_bytes += held_size

    def count_again(self, run: Run, counts: Counter[str]) -> None:
        """Messages are delivered that were delivered before. First deliveries are counted nowhere: they are
        all others. `counts`: of all queues."""
        number = run.tries + 1
        name = str(number) if number < MANY_DELIVERIES else f"{MANY_DELIVERIES}+"
        if self.redelivered is None:
            self.redelivered = Counter()
        self.redelivered[name] += len(run.bodies)
        counts[name] += len(run.bodies)

    def hold_again(self, run: Run) -> None:
        """Messages that were released are held after all: their acknowledgement is undone."""
        self.charge_runs((run,))
        self.hold(run)

    def release(self, runs: Iterable[Run]) -> int:
        """Messages are not held any more; returns how many. They have left, or return."""
        count = size = 0
        for run in runs:
            bodies, head = run.bodies, run.head
            of_run = len(bodies)
            count += of_run
            if head is None:
                size += len(bodies[0]) if of_run == 1 else bodies_bytes(bodies)
                size += (MESSAGE_BYTES + HELD_BYTES) * of_run
            else:
                size += head.cost_bytes * of_run
        self.held -= count
        self.held_bytes -= size
        memory = self.memory
        memory.held_bytes -= size
        if memory.held_charged - memory.held_bytes > SLACK_BYTES:
            memory.sync()
        return count

    # -- stops

    @property
    def returning(self) -> bool:
        """Whether messages are on their way back."""
        return self.stops > self.paused

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.paused = True
        self.stops += 1

    def resume(self) -> None:
        """Deliver again."""
        self.paused = False
        self.stops -= 1
        if not (self.stops or self.deleted):
            self.dispatch()

    def await_returns(self, count: int = 1) -> None:
        """Deliver nothing until `all_returned` is called for as many: some of what comes back stands before
        all there is."""
        self.stops += count

    def all_returned(self, count: int = 1) -> None:
        """So many of those that `await_returns` was called for are back."""
        self.stops -= count
        if not (self.returning or self.deleted):
            self.dispatch()


def memory_of(run: Run) -> int:
    """Memory of messages that wait. Where they have a head it knows that of each (`cost_bytes`)."""
    if run.head is not None:
        cost: int = run.head.cost_bytes * len(run.bodies)
        return cost
    return bodies_bytes(run.bodies) + MESSAGE_BYTES * len(run.bodies)
