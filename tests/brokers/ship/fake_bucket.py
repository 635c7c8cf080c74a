"""A store of objects in memory that fails as real ones do, at the requests that a test names.

Requests are counted from 0. A fault stands for one request:

    "refused"    503: nothing was done, and the caller is told `Away`
    "lost"       done, but the answer is lost: `Away`
    "conflict"   409: nothing was done, and the caller is told that it is there, or has changed
    "doubled"    done twice, as by a proxy that sends again: the second answer is told
    "crash"      the process ends before the request; "crash after": behind it
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs

from brokers.ship.bucket import Away, Bucket, Exists, Listed, Missing, Stale
from brokers.ship.cipher import Cipher

Fault = Literal["refused", "lost", "conflict", "doubled", "crash", "crash after"]
FAULTS: tuple[Fault, ...] = ("refused", "lost", "conflict", "doubled", "crash", "crash after")


class Crash(BaseException):
    """The process that asks is gone."""


@attrs.define(eq=False)
class FakeStore:
    """`overwrites`: as a store that knows no conditions. `away`: no request is done. `stale`: lists are as
    they were so many changes ago. `asked`: each request. `before`: called with each.
    """

    objects: dict[str, bytes] = attrs.Factory(dict)
    faults: dict[int, Fault] = attrs.Factory(dict)
    overwrites: bool = False
    away: bool = False
    stale: int = 0
    asked: list[tuple[str, str]] = attrs.Factory(list)
    before: Callable[[str, str], None] = lambda operation, key: None
    _tags: dict[str, int] = attrs.Factory(dict)
    _changes: int = 0
    _lists: list[list[Listed]] = attrs.Factory(list)

    def create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._do("create", key, lambda: self._create(key, bytes(data)))

    def replace(self, key: str, data: bytes | bytearray | memoryview, etag: str) -> str:
        return self._do("replace", key, lambda: self._replace(key, bytes(data), etag))

    def get(self, key: str) -> tuple[bytes, str]:
        return self._do("get", key, lambda: self._get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get", key, lambda: self._get(key)[0][start : start + length])

    def listed(self, prefix: str) -> list[Listed]:
        listed = self._do("list", prefix, self._list)
        return [each for each in listed if each.key.startswith(prefix)]

    def delete(self, keys: Sequence[str]) -> None:
        self._do("delete", keys[0], lambda: [self._delete(key) for key in keys])

    def _do(self, operation: str, key: str, work: Callable[[], Any]) -> Any:
        number = len(self.asked)
        self.asked.append((operation, key))
        self.before(operation, key)
        fault = self.faults.get(number)
        if self.away or fault == "refused":
            raise Away("503")
        if fault == "conflict":
            if operation in ("create", "replace"):
                raise Exists(key)
            raise Away("409")
        if fault == "crash":
            raise Crash
        if fault == "doubled":
            work()
        found = work()
        if fault == "crash after":
            raise Crash
        if fault == "lost":
            raise Away("the answer was lost")
        return found

    def _create(self, key: str, data: bytes) -> None:
        if key in self.objects and not self.overwrites:
            raise Exists(key)
        self._put(key, data)

    def _replace(self, key: str, data: bytes, etag: str) -> str:
        if not self.overwrites and self._get(key)[1] != etag:
            raise Stale(key)
        return self._put(key, data)

    def _get(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            raise Missing(key)
        return self.objects[key], f"tag-{self._tags.get(key, 0)}"

    def _put(self, key: str, data: bytes) -> str:
        self._remember()
        self.objects[key] = data
        self._tags[key] = self._changes
        return f"tag-{self._changes}"

    def _delete(self, key: str) -> None:
        self._remember()
        self.objects.pop(key, None)

    def _remember(self) -> None:
        self._changes += 1
        self._lists.append(self._now())

    def _now(self) -> list[Listed]:
        return sorted(Listed(key, len(data)) for key, data in self.objects.items())

    def _list(self) -> list[Listed]:
        return self._lists[-self.stale] if 0 < self.stale <= len(self._lists) else self._now()


async def on_loop(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """In place of a thread: at once, so that a test sees the same order each time."""
    return work(*arguments)


def bucket_of(store: Any, cipher: Cipher | None = None) -> Bucket:
    """A bucket that asks its store on the loop."""
    return Bucket(store, cipher, in_thread=on_loop)
