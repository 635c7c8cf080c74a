"""Messages that have come to a queue and are not ready yet, since they wait for the disk."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from dmp.message import Message, sizes

if TYPE_CHECKING:
    from shared.storage.store import Ticket


@attrs.define(eq=False)
class Arrivals:
    """Runs of messages, each of which waits for its ticket, and for those before it: so a producer's order
    holds. `count` messages wait, `unlogged` of them without a record; `body_bytes`: of their bodies."""

    count: int = 0
    unlogged: int = 0
    body_bytes: int = 0
    runs: "deque[tuple[Ticket | None, list[Message]]]" = attrs.field(factory=deque, init=False)
    _gone: int = attrs.field(default=0, init=False)  # how many runs have left
    _when_synced: deque[tuple[int, Callable[[], None]]] | None = attrs.field(default=None, init=False)

    def add(self, messages: list[Message], ticket: "Ticket | None") -> None:
        """Messages that are alike; without a ticket they wait for those before them alone."""
        self.count += len(messages)
        self.body_bytes += messages[0].head.body_bytes * len(messages)
        if messages[0].offset < 0:
            self.unlogged += len(messages)
        runs = self.runs
        if runs and runs[-1][0] is ticket:
            runs[-1][1].extend(messages)
        else:
            runs.append((ticket, messages))

    def synced(self) -> "Iterator[tuple[Ticket | None, list[Message]]]":
        """Take out what the disk has or refuses, as far as nothing before it waits."""
        runs = self.runs
        while runs:
            ticket, messages = runs[0]
            if ticket is not None and not ticket.done:
                break
            runs.popleft()
            self._gone += 1
            self.count -= len(messages)
            self.body_bytes -= sizes(messages)[0]
            if self.unlogged:
                self.unlogged -= sum([message.offset < 0 for message in messages])
            yield ticket, messages

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call it once, when all that waits now is ready, or could not be written."""
        if not self.runs:
            callback()
            return
        if self._when_synced is None:  # made late: most queues never need it
            self._when_synced = deque()
        self._when_synced.append((self._gone + len(self.runs), callback))

    def tell_synced(self) -> None:
        waiting = self._when_synced
        while waiting and waiting[0][0] <= self._gone:
            waiting.popleft()[1]()
        if not waiting:
            self._when_synced = None

    def clear(self) -> list[Message]:
        """The queue is deleted: take out all that waits."""
        messages = [message for _, run in self.runs for message in run]
        self._gone += len(self.runs)
        self.runs.clear()
        self.count = self.unlogged = self.body_bytes = 0
        self.tell_synced()
        return messages
