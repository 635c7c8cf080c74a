"""Names without levels or wildcards: any bytes; each matches itself."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from shared.routing.compact import CompactSet, insert, remove

S = TypeVar("S", bound=Hashable)


class Exact(Generic[S]):
    """The interface of `Trie` on one dict. `visits` stays 0."""

    __slots__ = ("_names", "visits")

    def __init__(self) -> None:
        self._names: dict[bytes, CompactSet[S]] = {}
        self.visits = 0

    def may_be_wild(self, pattern: bytes) -> bool:
        return False

    def walk(self, name: bytes) -> list[CompactSet[S]]:
        subscribers = self._names.get(name)
        return [] if subscribers is None else [subscribers]

    def add(self, pattern: bytes, subscriber: S) -> None:
        self._names[pattern] = insert(self._names.get(pattern), subscriber)

    def remove(self, pattern: bytes, subscriber: S) -> None:
        """Remove `pattern` of `subscriber`, which the index knows to be there."""
        left = remove(self._names[pattern], subscriber)
        if left is None:
            del self._names[pattern]
        else:
            self._names[pattern] = left
