"""The bucket: objects by name, of which one is made only where there is none, or replaced only unchanged.

A `Bucket` is asked from the loop; its store works in threads, a few at a time. What the store answers is told
by errors: `Exists`, `Stale`, `Missing`, and `Away` for all that may be better later. An answer may be lost
after the store has done what was asked, and a store may refuse since another request was under way (409). So
where an object is said to be there already, or to have changed, it is read back. Where it has the very bytes
that were to be written, they were written by us; where nothing is as was said, it is `Away`.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import attrs
import trio

from brokers.ship.cipher import HEAD_BYTES, Cipher, Sealed, Undecipherable
from shared.errors import EXIT_UNAVAILABLE, BrokerError
from shared.storage.threads import Threads

T = TypeVar("T")

CONCURRENT = 8
"""Requests at once."""
RETRY_SECONDS = (0.2, 1.0, 3.0)
"""How long `Bucket.retried` waits before it tries again."""


class BucketError(BrokerError):
    """The bucket did not do what was asked."""

    exit_code = EXIT_UNAVAILABLE


class Exists(BucketError):
    """There is such an object already."""


class Stale(BucketError):
    """The object is not the one that was read."""


class Missing(BucketError):
    """There is no such object."""


class Away(BucketError):
    """The store does not answer, or not now; whether it did what was asked is unknown."""


class Unusable(BucketError):
    """The store does not let us: credentials, rights, or a name that it does not take."""


class Listed(NamedTuple):
    """An object as a list has it; `bytes` as it is stored, encrypted or not."""

    key: str
    bytes: int


class ObjectStore(Protocol):
    """A store of objects, below one prefix. All calls block, and raise BucketErrors."""

    def create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Make an object that is not there. Raises Exists."""

    def replace(self, key: str, data: bytes | bytearray | memoryview, etag: str) -> str:
        """Replace an object whose ETag is still this one; its new ETag. Raises Stale, or Missing."""

    def get(self, key: str) -> tuple[bytes, str]:
        """An object, and its ETag. Raises Missing."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object; fewer bytes at its end. Raises Missing."""

    def listed(self, prefix: str) -> list[Listed]:
        """The objects whose keys begin with the prefix, in the order of their keys."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""


@attrs.define
class Requests:
    """What was asked of a bucket: one row of counters an operation."""

    requests: int = 0
    bytes: int = 0
    errors: int = 0


OPERATIONS = ("create", "replace", "get", "list", "delete")


@attrs.define(eq=False)
class Bucket:
    """A store as the loop asks it. `counts`: by operation. `last_error`: what went wrong last, and was not
    an answer.
    """

    store: ObjectStore
    cipher: Cipher | None = None
    timeout: float = 60.0
    """Seconds for one request; a thread that takes longer is left to itself."""
    counts: dict[str, Requests] = attrs.Factory(lambda: {name: Requests() for name in OPERATIONS})
    last_error: str = ""
    left_alone: int = 0
    """Threads so far that were left to themselves: they may still send what they were given."""
    in_thread: Callable[..., Awaitable[Any]] = attrs.Factory(Threads)
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(CONCURRENT))

    async def create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Make an object that is not there. Raises Exists, Away, Unusable.

        Without error too where the object is there with the same bytes: then the answer was lost before.
        """
        try:
            await self._ask("create", len(data), self._create, key, data)
        except Exists:
            try:
                found, _ = await self.get(key)
            except Missing:
                raise self._conflict(f"create: {key} is not there, and was said to be") from None
            if found != bytes(data):
                raise

    async def replace(self, key: str, data: bytes | bytearray | memoryview, etag: str) -> str:
        """Replace an object whose ETag is still this one; its new ETag. Raises Stale, Missing, Away,
        Unusable. Without error where it has the same bytes already.
        """
        try:
            made: str = await self._ask("replace", len(data), self._replace, key, data, etag)
            return made
        except (Stale, Exists):
            found, now = await self.get(key)
            if found == bytes(data):
                return now
            if now == etag:
                raise self._conflict(f"replace: {key} is unchanged, and was said not to be") from None
            raise Stale(key) from None

    async def get(self, key: str) -> tuple[bytes, str]:
        """An object, and its ETag. Raises Missing, Away, Unusable."""
        found: tuple[bytes, str] = await self._ask("get", 0, self._get, key)
        self.counts["get"].bytes += len(found[0])
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object; fewer bytes at its end. Raises Missing, Away, Unusable."""
        found: bytes = await self._ask("get", 0, self._get_range, key, start, length)
        self.counts["get"].bytes += len(found)
        return found

    async def listed(self, prefix: str) -> Sequence[Listed]:
        """The objects whose keys begin with the prefix, in the order of their keys; sizes as stored."""
        found: Sequence[Listed] = await self._ask("list", 0, self.store.listed, prefix)
        return found

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there count as deleted."""
        if names := list(keys):
            await self._ask("delete", 0, self.store.delete, names)

    async def retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of an awaitable's call, which is made anew a few times while the store is away."""
        for seconds in RETRY_SECONDS:
            try:
                return await work()
            except Away:
                await trio.sleep(seconds)
        return await work()

    def _conflict(self, text: str) -> Away:
        self.last_error = text
        return Away(text)

    async def _ask(self, operation: str, size: int, work: Callable[..., Any], *arguments: Any) -> Any:
        count = self.counts[operation]
        count.requests += 1
        count.bytes += size
        try:
            with trio.fail_after(self.timeout):
                return await self.in_thread(
                    partial(work, *arguments), limiter=self._limiter, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            count.errors += 1
            self.left_alone += 1
            self.last_error = f"{operation}: no answer in {self.timeout:g} s"
            raise Away(self.last_error) from None
        except (Away, Unusable) as error:
            count.errors += 1
            self.last_error = f"{operation}: {error}"
            raise

    # -- in a thread

    def _create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self.store.create(key, data if self.cipher is None else self.cipher.encrypt(key, data))

    def _replace(self, key: str, data: bytes | bytearray | memoryview, etag: str) -> str:
        return self.store.replace(key, data if self.cipher is None else self.cipher.encrypt(key, data), etag)

    def _get(self, key: str) -> tuple[bytes, str]:
        data, etag = self.store.get(key)
        if self.cipher is None:
            return data, etag
        with _deciphering(key):
            return self.cipher.decrypt(key, data), etag

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        if self.cipher is None:
            return self.store.get_range(key, start, length)
        with _deciphering(key):
            sealed = Sealed.of(self.store.get_range(key, 0, HEAD_BYTES))
            if start >= sealed.length or length <= 0:
                return b""
            _, at, size = sealed.span(start, min(length, sealed.length - start))
            data = memoryview(self.store.get_range(key, at, size))
            return self.cipher.decrypt_part(key, sealed, data, start, length)


@contextmanager
def _deciphering(key: str) -> Iterator[None]:
    try:
        yield
    except Undecipherable as error:
        advice = "is ship.encrypt the key file that encrypted it?"
        raise Unusable(f"{key} cannot be decrypted, {error}: {advice}") from error
