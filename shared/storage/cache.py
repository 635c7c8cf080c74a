"""A bounded cache of bytes: of blocks read from logs, and of what was appended just now."""

from collections import OrderedDict
from collections.abc import Hashable


class Cache:
    """Pieces of logs by key, each with the offset at which it begins; the oldest go first, used or not."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[Hashable, tuple[int, bytes]] = OrderedDict()
        self.size = 0

    def get(self, key: Hashable) -> tuple[int, bytes] | None:
        return self._entries.get(key)

    def put(self, key: Hashable, offset: int, data: bytes) -> None:
        self.drop(key)
        if len(data) > self._bytes_max:
            return
        self._entries[key] = offset, data
        self.size += len(data)
        while self.size > self._bytes_max:
            _, (_, oldest) = self._entries.popitem(last=False)
            self.size -= len(oldest)

    def drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= len(entry[1])
