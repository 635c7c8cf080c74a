"""Windows: records that are read ahead for CONSUME.

A client that asks for one record after the other would cost a read of the log for each. So the first read
brings some more, and the next requests are answered from there. Records never change, so a window never goes
stale. It ends with its log or its connection, or when many others are opened. Where the budget has no
room none is kept.
"""

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

from logmq.runs import same_length
from shared.budget import CacheBytes, Caches

if TYPE_CHECKING:
    from shared.storage.store import Log

FIRST_READ_BYTES = 8 * 1024
NEXT_READ_BYTES = 64 * 1024
"""A reader that has used up its window is sequential, and gets a larger one."""
WINDOWS_MAX = 128
"""Windows of all connections: 8 MiB in the ordinary case."""
KEPT_BYTES_MAX = 128 * 1024
"""A window of one very large record is not kept."""


class Window:
    """Whole records of `log` from `offset` on, standing at `at` in `records`."""

    __slots__ = ("at", "charged_bytes", "length", "log", "offset", "records")

    def __init__(self, log: "Log", offset: int, records: bytes) -> None:
        self.log = log
        self.offset = offset
        self.records = records
        self.at = 0
        self.charged_bytes = len(records)
        """For `records`, as long as it is kept."""
        self.length = same_length(records)
        """The length of each record, header included, or 0 where they differ."""

    def advance(self, at: int) -> None:
        """The records before `at` are used up. Where all are, only the offset of the next is kept."""
        self.offset += at - self.at
        self.at = at
        if at == len(self.records):
            self.records = b""
            self.at = 0


class Windows:
    """The windows, one for a connection at most. A new one replaces the one that was opened longest ago."""

    __slots__ = ("_by_owner", "_memory")

    def __init__(self, caches: Caches) -> None:
        self._by_owner: dict[Hashable, Window] = {}
        self._memory = CacheBytes(caches, math.inf)  # `WINDOWS_MAX` and `KEPT_BYTES_MAX` are its bound

    def __len__(self) -> int:
        return len(self._by_owner)

    def get(self, owner: Hashable) -> Window | None:
        return self._by_owner.get(owner)

    def put(self, owner: Hashable, window: Window) -> None:
        self.drop(owner)
        if window.charged_bytes <= KEPT_BYTES_MAX and self._memory.fits(window.charged_bytes):
            if len(self._by_owner) >= WINDOWS_MAX:
                self.drop(next(iter(self._by_owner)))
            self._by_owner[owner] = window
            self._memory.add(window.charged_bytes)

    def drop(self, owner: Hashable) -> None:
        window = self._by_owner.pop(owner, None)
        if window is not None:
            self._memory.add(-window.charged_bytes)
