"""Finds a holder with at least half of the largest holding, without a look at all holders."""

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class BySize(Generic[Holder]):
    """The sizes of holders, and their sum `total`. Holders of nothing have no entry.

    Holders are in classes by the bit length of their size, so all of the highest class have at least half of
    the largest.
    """

    __slots__ = ("_classes", "_sizes", "total")

    def __init__(self) -> None:
        self.total = 0
        self._sizes: dict[Holder, int] = {}
        self._classes: dict[int, dict[Holder, None]] = {}

    def __getitem__(self, holder: Holder) -> int:
        return self._sizes.get(holder, 0)

    def __setitem__(self, holder: Holder, size: int) -> None:
        before = self._sizes.get(holder, 0)
        self.total += size - before
        if size:
            self._sizes[holder] = size
        elif before:
            del self._sizes[holder]
        if before.bit_length() != size.bit_length():
            if before:
                those = self._classes[before.bit_length()]
                del those[holder]
                if not those:
                    del self._classes[before.bit_length()]
            if size:
                self._classes.setdefault(size.bit_length(), {})[holder] = None

    def large(self) -> Holder:
        """A holder with at least half of the largest size. There must be one."""
        those = self._classes[max(self._classes)]
        holder, _ = those.popitem()  # finding a dict's first key would pass over all deleted ones
        those[holder] = None
        return holder
