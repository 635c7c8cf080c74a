"""The keys that durable queues know for a window (`x-cache-ttl`), as rows of a table: what a restart finds.

`q` and a queue's name has eight random bytes, which stand for the queue until it is deleted; `k`, these and a
key has the end of the key's window, in Unix milliseconds. A key's row is written in one entry with its
message, and goes when its window has ended. Rows of a queue that was deleted are nobody's, and go, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from shared.errors import StoreError

if TYPE_CHECKING:
    from shared.storage.store import Log
    from shared.storage.table import Table

    Row = tuple[Log, bytes, int]
    """What `Store.append_all` takes."""

NAME = "known"
_TIME = struct.Struct(">Q")
_MARK_BYTES = 8


@attrs.define(eq=False)
class KnownKeys:
    """The table. `_make` makes it for the first queue that has a window."""

    _make: Callable[[], Table]
    table: Table | None = None
    _marks: dict[bytes, bytes] = attrs.Factory(dict)
    """The bytes that stand for each queue."""

    def begin(self, queue: bytes, random: bytes) -> Row:
        """A queue has a window from now on; what another of its name knew is not known any more. Returns what
        goes in one entry with the queue; where that is refused, call `ended`. `random`: 8 bytes or more.
        Raises StoreError."""
        if self.table is None:
            self.table = self._make()
        mark = self._marks[queue] = random[:_MARK_BYTES]
        return self.table.put_record(b"q" + queue, mark)

    def end(self, queue: bytes) -> list[Row]:
        """What goes in one entry with a queue that is deleted."""
        if self.table is None or queue not in self._marks:
            return []
        return [self.table.delete_record(b"q" + queue)]

    def ended(self, queue: bytes) -> None:
        """It is deleted."""
        self._marks.pop(queue, None)

    def row(self, queue: bytes, key: str, until_ms: int) -> Row | None:
        """For `Store.append_all`: a key and the end of its window."""
        mark = self._marks.get(queue)
        if self.table is None or mark is None:
            return None
        return self.table.put_record(_key(mark, key), _TIME.pack(until_ms))

    def drop(self, queue: bytes, keys: Iterable[str]) -> None:
        """These keys' windows have ended. What a crash leaves of them the next start drops."""
        mark = self._marks.get(queue)
        if mark is not None:
            self._discard([_key(mark, key) for key in keys])

    def load(self, now_ms: int) -> Mapping[bytes, Mapping[str, int]]:
        """The keys of each queue whose windows are open, and when they end."""
        table = self.table
        if table is None:
            return {}
        self._marks = {key[1:]: mark for key, mark in table.items() if key[:1] == b"q"}
        of_marks: dict[bytes, dict[str, int]] = {mark: {} for mark in self._marks.values()}
        left: list[bytes] = []
        for key, value in table.items():
            if key[:1] != b"k" or len(value) != _TIME.size:
                continue
            keys = of_marks.get(key[1 : 1 + _MARK_BYTES])
            (until_ms,) = _TIME.unpack(value)
            if keys is not None and until_ms > now_ms:
                keys[key[1 + _MARK_BYTES :].decode(errors="replace")] = until_ms
            elif keys is not None or not table.hides_keys:
                left.append(key)
        self._discard(left)
        return {queue: of_marks[mark] for queue, mark in self._marks.items()}

    def __contains__(self, queue: object) -> bool:
        """Whether a queue has a window here."""
        return queue in self._marks

    def _discard(self, keys: list[bytes]) -> None:
        if keys and self.table is not None:
            with suppress(StoreError):  # a start tries again
                self.table.discard(keys)


def _key(mark: bytes, key: str) -> bytes:
    return b"k" + mark + key.encode()
