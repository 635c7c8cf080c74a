"""One file of the fake disk: what a reader sees, and what the medium may hold instead (see fake_disk.py)."""

from collections.abc import Iterable
from typing import Self

SECTOR = 512  # bytes that a drive writes whole or not at all


class File:
    """`data` is what a reader sees; `old[s]` are contents that the medium may hold for sector s instead.

    A sector in `dirty` may also be there as it is in `data`, and is so after a sync. One in `unsettled` is
    one of `old[s]`, and nobody has looked since the boot. One in neither was lost by a failed sync: `data`
    shows it, syncs pass it by, and the medium holds one of `old[s]`.
    """

    __slots__ = ("data", "dirty", "number", "old", "old_sizes", "path", "sizes", "unsettled")

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.data = bytearray()
        self.old: dict[int, list[bytes]] = {}
        self.dirty: set[int] = set()
        self.unsettled: set[int] = set()
        self.old_sizes: list[int] = []  # those since the last sync, the present one left out
        self.sizes: list[int] = []  # after a boot: what the size may be, while nobody has looked

    def copy(self) -> Self:
        new = type(self)(self.number, self.path)
        new.data = bytearray(self.data)
        new.old = {sector: list(versions) for sector, versions in self.old.items()}
        new.dirty = set(self.dirty)
        new.unsettled = set(self.unsettled)
        new.old_sizes = list(self.old_sizes)
        new.sizes = list(self.sizes)
        return new

    def sector(self, number: int) -> bytes:
        return bytes(self.data[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")

    # -- writing; the size, and each sector written in part, have been looked at

    def grow(self, size: int) -> None:
        if size > len(self.data):
            self.old_sizes.append(len(self.data))
            self.data.extend(bytes(size - len(self.data)))

    def shrink(self, size: int) -> None:
        """What lies above `size` has been overwritten with zeros."""
        self.old_sizes.append(len(self.data))
        del self.data[size:]

    def alike_but_for(self, sector: int, start: int, end: int) -> bool:
        """Whether what an unsettled sector may hold is the same outside of [start, end); settled there."""
        start = max(start - sector * SECTOR, 0)
        end = max(min(end, len(self.data)) - sector * SECTOR, start)
        around = {version[:start] + version[end:] for version in self.old[sector]}
        if len(around) > 1:
            return False
        at = sector * SECTOR
        version = self.old[sector][0][: len(self.data) - at]
        self.data[at : at + len(version)] = version
        return True

    def put(self, data: bytes, offset: int) -> None:
        written = range(offset // SECTOR, -(-(offset + len(data)) // SECTOR))
        for sector in written:
            if sector in self.dirty:
                self.old[sector].append(self.sector(sector))
            elif sector not in self.old:
                self.old[sector] = [self.sector(sector)]
        self.data[offset : offset + len(data)] = data
        self.dirty.update(written)
        self.unsettled.difference_update(written)

    def sync(self) -> None:
        for sector in self.dirty:
            del self.old[sector]
        self.dirty.clear()
        self.old_sizes.clear()

    # -- losing

    def lose(self) -> None:
        """A failed sync, as Linux has it: the pages are marked clean and never written again."""
        for sector in self.dirty:
            self.old[sector].append(self.sector(sector))
        self.dirty.clear()

    def forget(self) -> None:
        """The pages that a failed sync lost are dropped from memory, and read again from the medium."""
        for sector in [s for s in self.old if s not in self.dirty and s not in self.unsettled]:
            self.settle_sector(sector, self.old[sector][0])

    def power_cut(self) -> Self:
        new = type(self)(self.number, self.path)
        new.data = bytearray(self.data)
        for sector, versions in self.old.items():
            seen = [*versions, self.sector(sector)] if sector in self.dirty else versions
            # Those of an earlier boot stand newest first already.
            new.old[sector] = list(dict.fromkeys(seen if sector in self.unsettled else reversed(seen)))
            new.unsettled.add(sector)
        sizes = self.sizes or list(dict.fromkeys([len(self.data), *reversed(self.old_sizes)]))
        if len(sizes) == 1:
            new.settle_size(sizes[0])
        else:
            new.sizes = list(sizes)
        return new

    def settle_size(self, size: int) -> None:
        self.sizes = []
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        for sector in list(self.unsettled):
            keep = size - sector * SECTOR
            if keep < SECTOR:
                self.old[sector] = _cut(self.old[sector], keep)
            if len(self.old[sector]) == 1:
                self.settle_sector(sector, self.old[sector][0])

    def settle_sector(self, sector: int, content: bytes) -> None:
        self.unsettled.discard(sector)
        del self.old[sector]
        start = sector * SECTOR
        end = min(start + SECTOR, len(self.data))
        if start < end:
            self.data[start:end] = content[: end - start]

    def states(self, pick: int | None, looked_at: set[int]) -> int:
        """In how many ways this may be, but for the size if one was picked and the sectors looked at."""
        total = 0
        sizes = self.sizes or [len(self.data)]
        for size in sizes if pick is None else [sizes[pick]]:
            ways = 1
            for sector in self.unsettled - looked_at:
                keep = size - sector * SECTOR
                ways *= len(self.old[sector]) if keep >= SECTOR else len(_cut(self.old[sector], keep))
            total += ways
        return total


def _cut(versions: Iterable[bytes], keep: int) -> list[bytes]:
    """The versions as they look in a file that ends `keep` bytes into this sector."""
    return list(dict.fromkeys(version[: max(keep, 0)].ljust(SECTOR, b"\0") for version in versions))
