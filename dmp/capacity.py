"""How many messages a queue has room for, and what goes where they are too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from dmp.message import Head
    from dmp.queues import Queue
    from dmp.settings import DmpSettings


@attrs.define(eq=False)
class Capacity:
    """The bounds of one queue: those of its arguments and, where it is `limited`, of the settings. `capped`:
    it may refuse what comes; ask `room_for`."""

    _queue: Queue
    limited: bool
    capped: bool = attrs.field(default=False, init=False)
    _warn_messages: int = attrs.field(default=0, init=False)  # 0: no limit
    _drop_messages: int = attrs.field(default=0, init=False)
    _warned: bool = attrs.field(default=False, init=False)

    def changed(self, settings: DmpSettings) -> None:
        """The limits for all queues are others, or its own."""
        self._warn_messages = settings.queue_warn_messages * self.limited
        self._drop_messages = settings.queue_drop_messages * self.limited
        self.capped = self._drop_messages > 0 or self._queue.kind.arguments.rejects

    @property
    def full_percent(self) -> int | None:
        """How much of the room is taken, in percent; None: the queue always makes room."""
        queue = self._queue
        arguments, depth = queue.kind.arguments, queue.depth
        parts = [100 * depth // self._drop_messages] if self._drop_messages else []
        if arguments.rejects:
            if arguments.messages_max is not None:
                parts.append(100 * depth // max(arguments.messages_max, 1))
            if arguments.bytes_max is not None:
                parts.append(100 * queue.row.all_body_bytes // max(arguments.bytes_max, 1))
        return max(parts, default=None)

    def room_for(self, head: Head, count: int, before: int = 0, before_bytes: int = 0) -> int:
        """How many of so many messages the queue will have, where it is `capped`; `before`: so many come
        before. One whose key it knows adds nothing, and is never too much."""
        queue = self._queue
        if queue.once is not None and not (head.died or queue.once.unseen(head, (b"",))):
            return count
        waiting = queue.depth + queue.later.count + before
        waiting_bytes = queue.row.all_body_bytes + before_bytes
        if queue.paused or not queue.takers.have_room():  # else these do not stay
            waiting += queue.arrivals.count
            waiting_bytes += queue.arrivals.body_bytes
        room = count
        if self._drop_messages:
            room = min(room, self._drop_messages - waiting)
        arguments = queue.kind.arguments
        if arguments.rejects:
            if arguments.messages_max is not None:
                room = min(room, arguments.messages_max - waiting)
            if arguments.bytes_max is not None:
                room = min(room, (arguments.bytes_max - waiting_bytes) // max(head.body_bytes, 1))
        return max(room, 0)

    def rejects_now(self, head: Head) -> bool:
        """Whether the queue rejects such a message, and would take it if it had fewer."""
        arguments = self._queue.kind.arguments
        if not arguments.rejects or self.room_for(head, 1):
            return False
        fits = arguments.bytes_max is None or head.body_bytes <= arguments.bytes_max
        return fits and arguments.messages_max != 0

    def surplus(self) -> int:
        """How many of the next ones are too much, if they are alike; maybe more than there are."""
        arguments, row, surplus = self._queue.kind.arguments, self._queue.row, 0
        if arguments.messages_max is not None:
            surplus = len(row) - arguments.messages_max
        if arguments.bytes_max is not None and row.all_body_bytes > arguments.bytes_max and row.load_front():
            front = row.front()
            size = max(front.head.body_bytes if front is not None else 1, 1)
            surplus = max(surplus, -((arguments.bytes_max - row.all_body_bytes) // size))
        return surplus

    def passes_warning(self) -> bool:
        """Whether more messages are ready than the settings find normal, for the first time since they were
        less than half of that."""
        warn, ready = self._warn_messages, len(self._queue.row)
        if warn and ready > warn and not self._warned:
            self._warned = True
            return True
        if self._warned and ready * 2 < warn:
            self._warned = False
        return False
