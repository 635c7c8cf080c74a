"""Messages that come to queues and leave others, in one step: after a crash all of it is there, or nothing.

What is durable of it, whatever the queues, is one entry of the journal (`Store.append_all`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from dmp.message import Head, Message
from dmp.queues import Queue
from shared.storage.store import Log, Ticket

if TYPE_CHECKING:
    from dmp.broker import Broker


@attrs.define(eq=False)
class _Part:
    """One queue's. `records`: of the messages, `logged` in number, that come with one."""

    coming: int = 0
    body_bytes: int = 0
    logged: int = 0
    records: list[bytes] = attrs.Factory(list)
    leaving: list[Message] = attrs.Factory(list)


class Change:
    """Say what comes and what leaves, then `apply` it, all in one stretch."""

    __slots__ = ("_broker", "_large", "_parts", "_puts")

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._puts: list[tuple[Queue, Head, list[Message], bool]] = []  # with a record, or without
        self._parts: dict[Queue, _Part] = {}
        self._large: dict[bytes, None] = {}  # references that come to logs

    def put(self, head: Head, queues: Sequence[Queue], bodies: Sequence[bytes]) -> None:
        """A run for its queues; one that is full (`Queue.room_for`) gets as much of it as it has room for."""
        for queue in queues:
            part = self._part(queue)
            taken = bodies
            if queue.capped:
                taken = bodies[: queue.room_for(head, len(bodies), part.coming, part.body_bytes)]
                self._broker.counts.dropped_full += len(bodies) - len(taken)
                if not taken:
                    continue
            messages = queue.number(head, taken)
            part.coming += len(messages)
            part.body_bytes += len(messages) * head.body_bytes
            logged = queue.log is not None and (head.persistent or queue.paged)
            if queue.log is not None and logged:
                part.records.append(queue.log.records(head, messages))
                part.logged += len(messages)
                if head.large:
                    self._large.update(dict.fromkeys(taken))
            self._puts.append((queue, head, messages, logged))

    def leave(self, queue: Queue, message: Message) -> None:
        """It was unacknowledged, and is acknowledged or not wanted back."""
        self._part(queue).leaving.append(message)

    def apply(self) -> Ticket | None:
        """What all of it waits for, None: nothing. Raises StoreError; then nothing has changed."""
        appends: list[tuple[Log, bytes, int]] = []
        written: list[Queue] = []
        reserved = True  # what only leaves has room kept for it
        for queue, part in self._parts.items():
            if queue.log is None or queue.deleted:
                continue
            taken = queue.log.leaving(part.leaving)
            if part.records or taken:
                appends.append((queue.log.log, b"".join((*part.records, taken)), part.logged + bool(taken)))
                written.append(queue)
                reserved = reserved and not part.records
        ends: dict[Queue, int] = {}
        ticket = None
        if appends:
            bodies = self._broker.bodies
            wholes = bodies.whole_records(self._large)
            offsets, ticket = self._broker.store.append_all([*appends, *wholes], reserved=reserved)
            bodies.whole_appended(self._large, ticket)
            ends = dict(zip(written, offsets, strict=False))
        for queue, head, messages, logged in self._puts:
            if logged and queue.log is not None and ticket is not None:
                ends[queue] = queue.log.appended(head, messages, ends[queue])
                queue.publish_logged(messages, ticket)
            else:
                self._broker.publish_numbered(queue, messages)
        for queue, part in self._parts.items():
            if queue.log is not None:
                queue.log.left(part.leaving)
            if part.leaving:
                queue.settle(part.leaving)
        return ticket

    def _part(self, queue: Queue) -> _Part:
        found = self._parts.get(queue)
        if found is None:
            found = self._parts[queue] = _Part()
        return found
