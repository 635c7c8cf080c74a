"""A bounded cache of bytes."""

from collections import OrderedDict
from typing import Any


class Cache:
    """Bytes by key, the least recently used go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[Any, tuple[int, bytes]] = OrderedDict()
        self.size = 0

    def get(self, key: Any) -> tuple[int, bytes] | None:
        return self._entries.get(key)

    def put(self, key: Any, offset: int, data: bytes) -> None:
        self.drop(key)
        if len(data) > self._bytes_max:
            return
        self._entries[key] = offset, data
        self.size += len(data)
        while self.size > self._bytes_max:
            _, (_, oldest) = self._entries.popitem(last=False)
            self.size -= len(oldest)

    def drop(self, key: Any) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= len(entry[1])
