"""Reading back what a queue does not keep in memory: its row from where it is cold, in order, bit by bit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from dms import records
from dms.queue import BODY_OVERHEAD_BYTES
from dms.records import Kind, NotOurs
from dms.wire import refusal_for
from shared.errors import CorruptRecord, LogDeleted, StoreError
from shared.storage.log import Lost, describe_lost

if TYPE_CHECKING:
    from dms.keeper import Keeper

logger = structlog.stdlib.get_logger("brokers.dms")

FETCH_BYTES = 256 << 10
"""Read back at once."""


class Reading:
    """Of one keeper's queue; one read is under way at most."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        self._queue = keeper.queue
        self._fetching = False
        self._lost: list[Lost] = []
        self.ended = False
        """Nothing more can be read."""

    def fetch(self) -> None:
        """Read more of the row into memory; the queue gives on when it is there. It may be there at once."""
        if self._fetching or self.ended or self._queue.deleted:
            return
        self._fetching = True
        self._queue.broker.counts.fetches += 1
        self._read_on()

    def lose(self, lost: Sequence[Lost]) -> None:
        """So much of the log cannot be read. Those who wait for a message are told, or else the next who
        asks; then the queue goes on with what it has."""
        queue, log = self._queue, self._keeper.log
        known = self._lost
        new = [each for each in lost if not any(one.offset <= each.offset < one.end for one in known)]
        if not new:
            return
        known += new
        logger.error(
            "a queue's log is damaged: messages there are lost, or come again that had gone; the others are "
            "served",
            queue=queue.text,
            path=log.file.path,
            **describe_lost(new),
        )
        queue.broker.counts.damaged_ranges += len(new)
        self._keeper.damaged = StoreError(
            f"messages of {queue.text} are lost to damage of its log; ask again for the others"
        )
        if queue.waiting:
            queue.end_waits(refusal_for(self.tell()))

    def tell(self) -> StoreError:
        """What those hear who ask: always where nothing more can be read, once where something is lost."""
        error = self._keeper.damaged
        assert error is not None
        if not self.ended:
            self._keeper.damaged = None
        return error

    def _read_on(self) -> None:
        """Read after read, one at a time, until some of what came may go out, or there is no more."""
        keeper, queue = self._keeper, self._queue
        inside = True
        more: bool | None = True

        def done(data: bytes | StoreError) -> None:
            nonlocal more
            more = self._takes_more(data)
            if inside:
                return
            if more:
                self._read_on()
            else:
                self._fetching = False
            if not self._fetching and queue.waiting and not queue.deleted:
                queue.give()

        while more:  # what was read may all have gone already
            more = None
            keeper.log.read(keeper.cold_offset, FETCH_BYTES, done)
        inside = False
        if more is not None:
            self._fetching = False

    def _takes_more(self, data: bytes | StoreError) -> bool:
        """Take in what was read; whether there is more, and has to be."""
        keeper, queue = self._keeper, self._queue
        if queue.deleted:
            return False
        if isinstance(data, CorruptRecord):
            lost = keeper.log.lost_at(keeper.cold_offset)
            keeper.cold_offset = lost.end
            self.lose([lost])
            return queue.cold and not queue.bodies
        if isinstance(data, StoreError):
            self._cannot_read(data)
            return False
        if not data and queue.cold and not queue.bodies:  # the newest of the row are lost
            queue.pass_over(queue.end - queue.head)
        try:
            self._fetched(data)
        except (NotOurs, ValueError, KeyError) as error:
            self._cannot_read(StoreError(f"a record that cannot be read: {error}"))
            return False
        while keeper.overflow and not queue.cold:
            overflow, keeper.overflow = keeper.overflow, []
            for bodies, size in overflow:
                queue.show(bodies, size)
        if queue.mortality is not None and data:
            queue.mortality.shown()
            if queue.mortality.at_work:  # it reads on when others have had their turn
                return False
        return queue.cold and not queue.bodies and bool(data)

    def _fetched(self, data: bytes) -> None:
        keeper, queue = self._keeper, self._queue
        start = keeper.cold_offset
        at = 0
        for record in records.unpack(data):
            hot_end = queue.head + len(queue.bodies)
            if record.kind in (Kind.ENQUEUED, Kind.LETTERS) and record.seq + record.entries > hot_end:
                if record.seq > hot_end:  # what is between is lost
                    if queue.bodies:  # those before it go first
                        keeper.cold_offset = start + at
                        return
                    queue.pass_over(record.seq - hot_end)
                bodies = records.messages_in(data, record)[max(hot_end - record.seq, 0) :]
                if not queue.bodies:
                    keeper.homes.clear()
                keeper.found_at(record.seq, start + at)
                queue.bodies.extend(bodies)
                queue.heat(sum(map(len, bodies)) + BODY_OVERHEAD_BYTES * len(bodies))
            at = record.end
        keeper.cold_offset = start + len(data)

    def _cannot_read(self, error: StoreError) -> None:
        if isinstance(error, LogDeleted):
            return
        self._keeper.damaged = error
        self.ended = True
        logger.error("a queue's messages cannot be read", queue=self._queue.text, reason=str(error))
        self._queue.end_waits(refusal_for(error))
