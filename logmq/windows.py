"""Windows: what a sequential CONSUME reader was read ahead.

A reader that asks for one record after the other would cost a read of the log each; instead the store is
asked for some more, and what the next requests ask for is taken from there. Records never change, so
a window never goes stale; it is given up with its log, its connection, or when many others were opened since.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from logmq.runs import same_length

if TYPE_CHECKING:
    from shared.storage.store import Log

FIRST_READ_BYTES = 8 * 1024
NEXT_READ_BYTES = 64 * 1024
"""A reader that has used its window up is sequential: it gets a larger one."""
WINDOWS_MAX = 128
"""Of all connections: 8 MiB in the ordinary case."""
KEPT_BYTES_MAX = 128 * 1024
"""A record may be larger than a window should be; such a one is not kept."""


class Window:
    """Whole records of `log` from `offset` on, standing at `at` in `records`."""

    __slots__ = ("at", "length", "log", "offset", "records")

    def __init__(self, log: "Log", offset: int, records: bytes) -> None:
        self.log = log
        self.offset = offset
        self.records = records
        self.at = 0
        self.length = same_length(records)
        """Of each record, header included, or 0 where they differ."""

    def advance(self, at: int) -> None:
        """The records before `at` are used up; when all are, only the offset of the next is kept."""
        self.offset += at - self.at
        self.at = at
        if at == len(self.records):
            self.records = b""
            self.at = 0


class Windows:
    """The window of each connection that has one; the one opened longest ago goes for a new one."""

    __slots__ = ("_by_owner",)

    def __init__(self) -> None:
        self._by_owner: dict[Hashable, Window] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def get(self, owner: Hashable) -> Window | None:
        return self._by_owner.get(owner)

    def put(self, owner: Hashable, window: Window) -> None:
        self._by_owner.pop(owner, None)
        if len(window.records) <= KEPT_BYTES_MAX:
            if len(self._by_owner) >= WINDOWS_MAX:
                del self._by_owner[next(iter(self._by_owner))]
            self._by_owner[owner] = window

    def drop(self, owner: Hashable) -> None:
        self._by_owner.pop(owner, None)
