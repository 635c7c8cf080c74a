"""What all connections share: queues by name, delivery ids, times, counts."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any

import structlog

from dms.keeper import Keeper
from dms.metrics import Counts
from dms.mortality import Mortality
from dms.options import Options
from dms.queue import Queue
from dms.refusals import Refusals
from dms.settings import DmsSettings
from dms.times import Times
from dms.wire import DELIVERY_ID_BIT, Refusal, Status, refusal_for
from shared.errors import StoreError
from shared.storage.store import Log, Namespace, Store, Ticket
from shared.storage.table import Table

if TYPE_CHECKING:
    from dms.session import Session

_IDS_END = 1 << 32
MINE_KEY = b"\0"
"""Of the broker's own row in the table, and what its others begin with: no queue's name holds it."""


class Broker:
    """One DMS, without its sockets. Without a `namespace` it keeps everything in memory."""

    def __init__(
        self,
        settings: DmsSettings,
        log: structlog.stdlib.BoundLogger,
        *,
        store: Store | None = None,
        namespace: Namespace | None = None,
        table: Table | None = None,
        times: Times | None = None,
    ) -> None:
        self.settings = settings
        self.log = log
        self._store = store
        self.durable = store if namespace is not None else None
        """What a session has to keep pace with."""
        self._namespace = namespace
        self._table = table
        self.times = times or Times()
        self.counts = Counts()
        self.refusals = Refusals(self.counts, log)
        self.queues: dict[bytes, Queue] = {}
        self.parked: dict[bytes, dict[Queue, None]] = {}
        """Queues whose dead have no place, in turns, by the name of the queue that is missing or full."""
        self.sessions: dict[Session, None] = {}
        self.draining = False
        self.hot_bytes = 0
        """Of all queues, as far as bodies are in memory and nobody holds them."""
        self.best_effort = settings.disk_failed == "best-effort"
        self._told_of_disk = False
        self._asked: dict[Queue, Mapping[str, Any]] = {}
        self._names: list[bytes] | None = None
        self._next_id = DELIVERY_ID_BIT
        self._ids_until = _IDS_END

    @property
    def persistent(self) -> bool:
        return self._namespace is not None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    @property
    def disk_failed(self) -> StoreError | None:
        return self.store.read_only if self.persistent else None

    @property
    def _past_saving(self) -> bool:
        """Nothing is written any more, and that is no reason to refuse anything."""
        return self.best_effort and self.disk_failed is not None

    def settle(self) -> None:
        """Have what was changed outside of a round made durable."""
        if self._store is not None:
            self._store.commit_pending()

    # -- queues

    def find(self, name: str) -> Queue | None:
        return self.queues.get(name.encode())

    def create(self, name: str, asked: Mapping[str, Any]) -> "tuple[Queue, Ticket | None]":
        """Make a queue. Raises Refusal."""
        settings = self.settings
        if name.encode() in self.queues:
            raise Refusal(Status.QUEUE_EXISTS, f"{name} exists already")
        if len(self.queues) >= settings.queues_max:
            text = f"there are queues_max = {settings.queues_max} queues already"
            raise Refusal(Status.INTERNAL, text, limit="queues_max")
        if asked.get("depth", 0) > settings.depth_max:
            text = f"option depth is at most depth_max = {settings.depth_max}"
            raise Refusal(Status.PROTOCOL_ERROR, text, limit="depth_max")
        queue = self._make(name, asked)
        ticket = None

        def options_row(log: Log) -> tuple[Log, bytes, int]:
            return self.table.put_record(queue.name, _row(log, asked, snapshot=0))

        if self._past_saving:
            self.unkept()
        elif self._namespace is not None:
            try:
                mode = settings.for_queue(name).durability
                has_row = bool(asked) or queue.name in self.table
                log, ticket = self._namespace.create(name, mode, beside=options_row if has_row else None)
                queue.keeper = Keeper(queue, log)
            except StoreError as error:
                self._discard(queue)
                raise refusal_for(error) from None
            ticket.when_done(lambda ticket: self._undone(queue) if ticket.error is not None else None)
        return queue, ticket

    def adopt(self, name: str, asked: Mapping[str, Any]) -> Queue:
        """A queue that the data folder has."""
        return self._make(name, asked)

    def leave_alone(self, queue: Queue) -> None:
        """Its log cannot be read: it is not served, and its name stays taken."""
        self._discard(queue)

    def delete(self, queue: Queue) -> "Ticket | None":
        """End a queue: who waits is told, what is held is worth nothing any more. Raises Refusal."""
        ticket = None
        if self._past_saving:
            self.unkept()
        elif queue.keeper is not None and not queue.keeper.detached:
            assert self._namespace is not None
            try:
                row = [self.table.delete_record(queue.name)] if queue.name in self.table else []
                ticket = self._namespace.delete(queue.text, row)
            except StoreError as error:
                raise refusal_for(error) from None
        asked, hot, back = self._asked[queue], queue.hot_bytes, queue.back_bytes
        self._discard(queue)
        queue.end_waits(Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted"))

        def revive(ticket: Ticket) -> None:
            """It could not be deleted after all."""
            if ticket.error is not None and queue.name not in self.queues:
                self.queues[queue.name], self._asked[queue] = queue, asked
                self._names, queue.deleted = None, False
                queue.heat(hot)
                queue.back_bytes = back
                self.hot_bytes += back
                if queue.mortality is not None:
                    queue.mortality.arm()
                self.has_room(queue)

        if ticket is not None:
            ticket.when_done(revive)
        return ticket

    def park(self, queue: Queue) -> None:
        """Its dead have no place: it is called when there is one."""
        name = queue.options.dead_letter
        if name:
            self.parked.setdefault(name.encode(), {})[queue] = None

    def unpark(self, queue: Queue) -> None:
        """It waits no longer."""
        name = queue.options.dead_letter.encode()
        waiting = self.parked.get(name, {})
        waiting.pop(queue, None)
        if name in self.parked and not waiting:
            del self.parked[name]

    def has_room(self, queue: Queue) -> None:
        """A queue was made, or has room again: of those whose dead wait for it, the first has its turn."""
        waiting = self.parked.get(queue.name)
        if waiting and queue.room > 0:
            first = next(iter(waiting)).mortality
            assert first is not None
            first.called()

    def page(self, after: bytes | None) -> Sequence[tuple[bytes, int]]:
        """Names and depths in order, from behind `after` on; more than a frame holds, but not all."""
        names = self._names
        if names is None:
            names = self._names = sorted(self.queues)
        start = 0 if after is None else bisect_right(names, after)
        return [(name, self.queues[name].depth) for name in names[start : start + 600]]

    def row(self, queue: Queue, *, snapshot: int) -> bytes:
        """What the table has about a queue."""
        assert queue.keeper is not None
        return _row(queue.keeper.log, self._asked[queue], snapshot)

    def move(
        self, source: Queue, target: Queue, seqs: Sequence[int], letters: Sequence[bytes], reason: str
    ) -> None:
        """Messages in `back` of one queue become the newest of another, or nothing happens. Raises Refusal.

        The source's state is the caller's to change, once this has returned.
        """
        size = sum(map(len, letters))
        one, other = source.keeper, target.keeper
        if one is None or other is None or one.detached or other.detached:
            target.produce(letters, size)
            return
        first = target.tail
        moving, moved = one.moving(seqs, reason, target.text)
        record = other.coming(letters, first)
        try:
            (_, offset), _ = self.store.append_all(
                [(one.log, moving, moved), (other.log, record, 1)], reserved=True
            )
        except StoreError as error:
            raise refusal_for(error) from None
        bodies = {seq: source.back[seq] for seq in seqs}

        def undo() -> None:
            source.depth += len(bodies)
            for seq, (body, deliveries) in bodies.items():
                source.keep_back(seq, body, deliveries)
                if source.mortality is not None:
                    source.mortality.returned(seq, deliveries, nacked=False)
                else:
                    heappush(source.returned, seq)
            if source.mortality is not None:
                source.mortality.arm()

        one.moved(undo)
        other.came(letters, size, offset, first)
        target.added(len(letters))

    # -- deliveries

    def take_ids(self, count: int) -> int:
        """The first of so many delivery ids in a row, none of which is in use."""
        first = self._next_id
        if first + count > self._ids_until:
            first = self._free_ids(count)
        self._next_id = first + count
        return first

    def comes_soon(self, delivery_id: int, count: int) -> bool:
        """Whether one of the next so many deliveries may get this id."""
        first = self._next_id
        return first <= delivery_id < first + count or first + count > self._ids_until

    def unkept(self, count: int = 1) -> None:
        """Best effort: so many changes are answered that the disk does not have."""
        self.counts.unkept += count
        if self.disk_failed is not None:
            self.goes_on_in_memory(self.disk_failed)

    def goes_on_in_memory(self, error: StoreError) -> None:
        """Have the log say so, once."""
        if not self._told_of_disk:
            self._told_of_disk = True
            self.log.warning("the disk has failed; dms goes on in memory (best-effort)", reason=str(error))

    def drain(self) -> None:
        """End every wait, say goodbye."""
        self.draining = True
        for session in tuple(self.sessions):
            session.drain()
        self.note_age()

    def note_age(self) -> None:
        """Keep how old the broker is, for times that outlive a restart."""
        if self.persistent and self.disk_failed is None and self.times.used:
            try:
                self.table.put(MINE_KEY, json.dumps({"age_ms": self.times.now_ms()}).encode())
            except StoreError:
                pass  # records say it too, if less exactly

    def _make(self, name: str, asked: Mapping[str, Any]) -> Queue:
        options = Options.of(asked, self.settings.for_queue(name), name)
        queue = Queue(self, name, options)
        if options.timed or options.max_deliveries or options.retry_ms:
            queue.mortality = Mortality(queue)
        self.queues[queue.name] = queue
        self._asked[queue] = asked
        self._names = None
        self.has_room(queue)
        return queue

    def _discard(self, queue: Queue) -> None:
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
        self._asked.pop(queue, None)
        self._names = None
        queue.deleted = True
        queue.cool()
        if queue.mortality is not None:
            queue.mortality.unpark()
        self.times.forget(queue)

    def _undone(self, queue: Queue) -> None:
        """Its creation was taken back."""
        if self.best_effort and queue.keeper is not None and self.disk_failed is not None:
            queue.keeper.detach(self.disk_failed)
        elif not queue.deleted:
            self._discard(queue)
            queue.end_waits(Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted"))

    def _free_ids(self, count: int) -> int:
        """All ids have been used once: go round, past those that are still held."""
        used = sorted(int.from_bytes(held) for session in self.sessions for held in session.held)
        first = self._next_id if self._next_id + count <= _IDS_END else DELIVERY_ID_BIT
        for _ in range(2):
            for held in (*used, _IDS_END):
                if held >= first:
                    if held - first >= count:
                        self._ids_until = held
                        return first
                    first = held + 1
            first = DELIVERY_ID_BIT
        raise AssertionError("as many messages are held as there are ids")


def _row(log: Log, asked: Mapping[str, Any], snapshot: int) -> bytes:
    return json.dumps({"log": log.id, "options": asked, "snapshot": snapshot}).encode()
