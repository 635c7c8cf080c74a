"""Retained messages: the last one of each topic that a pattern of `retain` matches, for who subscribes later.

A table has them, so they are as durable as subscriptions: topic to `[unix ms u64][frame without padding]`. Of
the messages of one turn the last of each topic is written, at the turn's end. While much waits for the disk
they wait, too, and only the last of them is written then.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pubsub.kept import PENDING_BYTES_MAX
from pubsub.metrics import Counts
from pubsub.settings import PubsubSettings
from pubsub.wire import DATA_AT, FRAME_BYTES, TYPE_AT, WILDCARDS, Kind, frame_topic
from shared.budget import Account, OverBudget
from shared.errors import StoreError
from shared.routing.index import RoutingIndex

if TYPE_CHECKING:
    import structlog

    from shared.storage.log import Ticket
    from shared.storage.table import Table

ROW_BYTES = 500
"""Measured memory of a retained message, beside its bytes."""
TIME_BYTES = 8


class Retained:
    """Messages by topic. `wall_ms`: the wall clock. `on_unturned`: called with records that no turn may
    commit."""

    def __init__(
        self,
        table: "Table",
        settings: PubsubSettings,
        counts: Counts,
        memory: Account,
        log: "structlog.stdlib.BoundLogger",
        wall_ms: Callable[[], int],
        on_unturned: Callable[[], None],
    ) -> None:
        self._table = table
        self._counts = counts
        self._memory = memory
        self._log = log
        self._wall_ms = wall_ms
        self._on_unturned = on_unturned
        self._new: dict[bytes, bytes] = {}  # by topic, to be written; of a message that ends it, b""
        self._added: set[bytes] = set()  # topics of `_new` that the table lacks
        self._waits = False  # for the disk
        self._told = False
        for _, value in table.items():
            memory.charge(ROW_BYTES + len(value))
        self.take_settings(settings)

    def take_settings(self, settings: PubsubSettings) -> None:
        """Apply new settings. Messages whose topics no pattern matches any more end."""
        self.settings = settings
        self._told = False
        patterns: RoutingIndex[bytes] = RoutingIndex(WILDCARDS, cache_bytes_max=0)
        for pattern in settings.retain:
            patterns.subscribe(b"", pattern.encode())
        ended = [topic for topic, _ in self.items() if not patterns.match(topic)]
        with suppress(StoreError):  # the next start ends the rest
            for topic in ended:
                self.end(topic)
        if ended:
            self._log.info(
                "retained messages ended: no pattern of pubsub.retain matches them", messages=len(ended)
            )

    def __len__(self) -> int:
        return len(self._table) + len(self._added)

    def items(self) -> Sequence[tuple[bytes, bytes]]:
        """Topics and rows as they are now."""
        rows = dict(self._table.items()) | self._new
        return [(topic, row) for topic, row in rows.items() if row]

    def get(self, topic: bytes) -> bytes | None:
        """A topic's row."""
        row = self._new.get(topic)
        return (self._table.get(topic) if row is None else row) or None

    def end(self, topic: bytes) -> "Ticket | None":
        """End what is retained of a topic. Returns the ticket of that; None: it was not on disk. Raises
        StoreError."""
        self._new.pop(topic, None)
        self._added.discard(topic)
        row = self._table.get(topic)
        if row is None:
            return None
        ticket = self._table.delete(topic)
        self._memory.charge(-_size(row))
        return ticket

    @property
    def taken(self) -> bool:
        """Whether something is to be written."""
        return bool(self._new)

    def take(self, frames: bytes) -> None:
        """Messages of retained topics have come, in whole frames. `flush` must follow in the same turn."""
        now = self._wall_ms().to_bytes(TIME_BYTES, "big")
        for at in range(0, len(frames), FRAME_BYTES):
            frame = frames[at : at + FRAME_BYTES]
            topic = frame_topic(frame)
            row = b"" if is_empty(frame) else now + frame.rstrip(b"\0")
            if topic not in self._new and topic not in self._table:
                if not (row and self._has_room(row)):
                    continue
                self._added.add(topic)
            self._new[topic] = row

    def _has_room(self, row: bytes) -> bool:
        """Whether a message of a new topic is taken."""
        try:
            if len(self) < self.settings.retained_max:
                self._memory.check(ROW_BYTES + len(row))
                return True
        except OverBudget:
            pass
        self._counts.retained_refused += 1
        if not self._told:
            self._told = True
            self._log.warning(
                "a message is not retained: there are too many topics, or no memory; end some with empty "
                "messages, or raise pubsub.retained_max",
                retained=len(self),
            )
        return False

    def flush(self) -> None:
        """Write what has come."""
        table, log = self._table, self._table.log
        try:
            while self._new and not self._waits:
                topic = next(iter(self._new))
                row, before = self._new[topic], table.get(topic)
                if row:
                    record = table.put_record(topic, row)[1]
                elif before is not None:
                    record = table.delete_record(topic)[1]
                else:
                    record = b""
                if record:
                    _, ticket = log.append(record, 1, reserved=not row)
                del self._new[topic]
                self._added.discard(topic)
                self._memory.charge(_size(row) - _size(before))
                if record and log.end - log.visible > PENDING_BYTES_MAX:
                    self._waits = True
                    ticket.when_done(lambda _: self._go_on())
        except StoreError as error:
            self._counts.retained_refused += len(self._new)
            self._new.clear()
            self._added.clear()
            if not self._told:
                self._told = True
                self._log.error(
                    "retained messages cannot be written: who subscribes gets older ones; look at the disk",
                    error=str(error),
                )

    def _go_on(self) -> None:
        self._waits = False
        self.flush()
        self._on_unturned()


def _size(row: bytes | None) -> int:
    return ROW_BYTES + len(row) if row else 0


def is_empty(frame: bytes) -> bool:
    """Whether a message ends what is retained of its topic: a STRING without a text."""
    return frame[TYPE_AT] == Kind.STRING and not frame[DATA_AT]


def row_frame(row: bytes) -> bytes:
    """The frame of a row, without its padding."""
    return row[TIME_BYTES:]


def row_ms(row: bytes) -> int:
    """When the message came, in Unix milliseconds."""
    return int.from_bytes(row[:TIME_BYTES], "big")
