"""Messages that have come to a queue and are not ready yet, since they wait for the disk."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from shared.queues.runs import Run, join

if TYPE_CHECKING:
    from shared.storage.store import Ticket


@attrs.define(eq=False)
class Arrivals:
    """Runs of messages that wait for a ticket, and for those before it: so a producer's order holds. `count`
    messages wait, `unlogged` of them without a record; `body_bytes`: of their bodies."""

    count: int = 0
    unlogged: int = 0
    body_bytes: int = 0
    waiting: "deque[tuple[Ticket | None, list[Run]]]" = attrs.field(factory=deque, init=False)
    _gone: int = attrs.field(default=0, init=False)
    """How many of `waiting` have left."""
    _when_synced: deque[tuple[int, Callable[[], None]]] | None = attrs.field(default=None, init=False)

    def add(self, run: Run, ticket: "Ticket | None") -> bool:
        """Without a ticket the messages wait for those before them alone. Returns whether the ticket is
        another than those have that came last."""
        self._count(run, 1)
        waiting = self.waiting
        if waiting and waiting[-1][0] is ticket:
            join(waiting[-1][1], run)
            return False
        waiting.append((ticket, [run]))
        return True

    def _count(self, run: Run, sign: int) -> None:
        count = sign * len(run.bodies)
        self.count += count
        self.body_bytes += run.head.body_bytes * count
        if run.offset < 0:
            self.unlogged += count

    def first_offset(self) -> float:
        """Where in the log the first record of these stands; inf where there is none."""
        return next((run.offset for _, runs in self.waiting for run in runs if run.offset >= 0), math.inf)

    def synced(self) -> "Iterator[tuple[Ticket | None, list[Run]]]":
        """Take out what the disk has or refuses, as far as nothing before it waits."""
        waiting = self.waiting
        while waiting:
            ticket, runs = waiting[0]
            if ticket is not None and not ticket.done:
                break
            waiting.popleft()
            self._gone += 1
            for run in runs:
                self._count(run, -1)
            yield ticket, runs

    def last_ticket(self) -> "Ticket | None":
        """What all that waits now waits for; None: nothing does."""
        return next((ticket for ticket, _ in reversed(self.waiting) if ticket is not None), None)

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call it once, when all that waits now is ready, or could not be written."""
        if not self.waiting:
            callback()
            return
        if self._when_synced is None:  # made late: most queues never need it
            self._when_synced = deque()
        self._when_synced.append((self._gone + len(self.waiting), callback))

    def tell_synced(self) -> None:
        called = self._when_synced
        while called and called[0][0] <= self._gone:
            called.popleft()[1]()
        if not called:
            self._when_synced = None

    def clear(self) -> list[Run]:
        """The queue is deleted: take out all that waits."""
        runs = [run for _, together in self.waiting for run in together]
        self._gone += len(self.waiting)
        self.waiting.clear()
        self.count = self.unlogged = self.body_bytes = 0
        self.tell_synced()
        return runs
