"""How many messages a queue has room for, and what goes where they are too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from dmp.message import Head
    from dmp.queues import Queue


@attrs.frozen
class Capacity:
    """The bounds of one queue, which are those of its arguments."""

    _queue: Queue

    @property
    def capped(self) -> bool:
        """Whether it may refuse what comes: ask `room_for`."""
        return self._queue.kind.arguments.rejects

    @property
    def full_percent(self) -> int | None:
        """How much of the room is taken, in percent; None: the queue always makes room."""
        queue = self._queue
        arguments, parts = queue.kind.arguments, list[int]()
        if arguments.rejects:
            if arguments.messages_max is not None:
                parts.append(100 * queue.depth // max(arguments.messages_max, 1))
            if arguments.bytes_max is not None:
                parts.append(100 * queue.row.all_body_bytes // max(arguments.bytes_max, 1))
        return max(parts, default=None)

    def room_for(self, head: Head, count: int, before: int = 0, before_bytes: int = 0) -> int:
        """How many of so many messages the queue will have, where it is `capped`; `before`: so many come
        before."""
        queue = self._queue
        waiting = queue.depth + queue.later.count + before
        waiting_bytes = queue.row.all_body_bytes + before_bytes
        if queue.paused or not queue.takers.have_room():  # else these do not stay
            waiting += queue.arrivals.count
            waiting_bytes += queue.arrivals.body_bytes
        arguments, room = queue.kind.arguments, count
        if arguments.messages_max is not None:
            room = min(room, arguments.messages_max - waiting)
        if arguments.bytes_max is not None:
            room = min(room, (arguments.bytes_max - waiting_bytes) // max(head.body_bytes, 1))
        return max(room, 0)

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
