"""Who holds the most, or at least half as much as whoever does: found without looking at everybody."""

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class BySize(Generic[Holder]):
    """What each holds, and what all do: `total`. Who holds nothing is not in here.

    Holders stand in classes by the bit length of what they hold, so those of the highest class have at least
    half of the most.
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
        """One of those that hold the most. Not to be asked where nobody holds anything."""
        those = self._classes[max(self._classes)]
        holder, _ = those.popitem()  # the first would be looked for behind all that have left
        those[holder] = None
        return holder
