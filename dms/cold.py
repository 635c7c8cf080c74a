"""The cold part of a queue's row: messages in the log and not in memory, read back in order.

The front of the row is *hot*, in memory. The rest is *cold*: it is read back in batches when its turn comes,
skipping messages that have left. So a deep queue costs no memory per message. `positions` tell where in the
log the row is: one entry every few dozen KiB. Jobs are cold by themselves (`dms.cold_jobs`), and are read
back in any order.

If the log is damaged, what cannot be read is skipped, and a consumer that asks is told once.
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from dms import records
from dms.records import NotOurs, RecordKind
from dms.wire import refusal_for
from shared.errors import CorruptRecord, LogDeleted, StoreError
from shared.queues.cold import ColdReader
from shared.queues.runs import bodies_bytes
from shared.storage.lost import Lost, describe_lost

if TYPE_CHECKING:
    from dms.engine import Queue
    from shared.storage.store import Log

logger = structlog.stdlib.get_logger("brokers.dms")

FETCH_BYTES = 256 << 10
"""Bytes read back at once."""
POSITION_BYTES = 64 << 10
"""Bytes from one entry of `positions` to the next."""


class ColdRow(ColdReader):
    """Reads one queue's row back from its log."""

    def __init__(self, queue: "Queue", log: "Log") -> None:
        super().__init__(log)
        self._queue = queue
        self.positions: deque[tuple[int, int]] = deque()
        """(sequence, offset of its record) of messages of the row, from its head on."""
        self.waiting: list[tuple[Sequence[bytes], int]] = []
        """Messages that came after the disk failed: they wait until the cold ones before them are read back.
        """
        self.damage: StoreError | None = None
        """What the next consumer that asks is told."""
        self.ended = False
        """Nothing more can be read."""
        self._lost: list[Lost] = []

    # -- where the row is

    def found_at(self, first: int, offset: int) -> None:
        """Messages of the row, from `first` on, begin at this offset."""
        if not self.positions or offset - self.positions[-1][1] >= POSITION_BYTES:
            self.positions.append((first, offset))

    def row_start(self) -> int:
        """No message of the row, which is not empty, is below this offset."""
        positions, head = self.positions, self._queue.head
        while len(positions) > 1 and positions[1][0] <= head:
            positions.popleft()
        return positions[0][1] if positions else self.log.first

    def begin_at(self, first: int, offset: int) -> None:
        """All of the row is cold, from that message on, whose record is there. What is being read is not
        wanted."""
        self.positions = deque([(first, offset)])
        self.offset, self._fetching = offset, None

    # -- reading back

    def fetch(self) -> None:
        """Read more of the row into memory, maybe at once; the queue dispatches when it is there."""
        if not (self._fetching or self.ended or self._queue.deleted):
            self._queue.engine.counts.fetches += 1
            self._read_on(FETCH_BYTES)

    def _on_read(self) -> None:
        if self._queue.line and not self._queue.deleted:
            self._queue.dispatch()

    def _takes_more(self, data: bytes | StoreError) -> bool:
        """Process what was read; whether more must be read."""
        queue = self._queue
        if queue.deleted:
            return False
        if isinstance(data, CorruptRecord):
            lost = self.log.lost_at(self.offset)
            self.offset = lost.end
            self.lose(lost)
            return queue.is_cold and not queue.ready.loaded
        if isinstance(data, StoreError):
            self.cannot_read(data)
            return False
        if not data and queue.is_cold and not queue.ready.loaded:  # the newest of the row are lost
            self._skip_lost(queue.end - queue.head)
        try:
            self._take_in(data)
        except (NotOurs, ValueError, KeyError) as error:
            self.cannot_read(StoreError(f"a record that cannot be read: {error}"))
            return False
        while self.waiting and not queue.is_cold:
            waiting, self.waiting = self.waiting, []
            for bodies, size in waiting:
                queue.make_visible(bodies, size)
        if queue.expiry is not None and data:
            queue.expiry.row_grew()
            if queue.expiry.head_expired:  # it reads on in its next slice
                return False
        return queue.is_cold and not queue.ready.loaded and bool(data)

    def _skip_lost(self, count: int) -> None:
        """The first messages of the row, none of them in memory, are lost."""
        queue = self._queue
        queue.head += count
        queue.depth -= count
        if queue.expiry is not None:
            queue.expiry.row_moved()

    def _take_in(self, data: bytes) -> None:
        queue, start = self._queue, self.offset
        at = 0
        for record in records.unpack(data):
            loaded_end = queue.loaded_end
            if (
                record.kind in (RecordKind.ENQUEUED, RecordKind.LETTERS)
                and record.seq + record.entries > loaded_end
            ):
                if record.seq > loaded_end:  # what is between is lost
                    if queue.ready.loaded:  # those before it go first
                        self.offset = start + at
                        return
                    self._skip_lost(record.seq - loaded_end)
                bodies = records.messages_in(data, record)[max(loaded_end - record.seq, 0) :]
                if not queue.ready.loaded:
                    self.positions.clear()
                self.found_at(record.seq, start + at)
                queue.load(bodies, max(record.seq, loaded_end), bodies_bytes(bodies))
            at = record.end
        self.offset = start + len(data)

    # -- damage

    def lose(self, *lost: Lost) -> None:
        """Note damage of the log. Consumers in line are told, or else the next that asks."""
        queue, known = self._queue, self._lost
        new = [each for each in lost if not any(one.offset <= each.offset < one.end for one in known)]
        if not new:
            return
        known += new
        logger.error(
            "a queue's log is damaged: messages there are lost, or come again that had gone; the others are "
            "served; look at the disk",
            queue=queue.text,
            path=self.log.file.path,
            **describe_lost(new),
        )
        queue.engine.counts.damaged_ranges += len(new)
        self.damage = StoreError(
            f"messages of {queue.text} are lost to damage of its log; ask again for the others"
        )
        if queue.line:
            queue.end_credits(refusal_for(self.tell_damage()))

    def tell_damage(self) -> StoreError:
        """What a consumer that asks is told: once, or always if nothing more can be read."""
        error = self.damage
        assert error is not None
        if not self.ended:
            self.damage = None
        return error

    def cannot_read(self, error: StoreError) -> None:
        """Nothing more is read: whoever asks is told."""
        if isinstance(error, LogDeleted):
            return
        self.damage = error
        self.ended = True
        logger.error(
            "a queue's messages cannot be read: they stay, and asking is refused; look at the disk",
            queue=self._queue.text,
            reason=str(error),
        )
        self._queue.end_credits(refusal_for(error))
