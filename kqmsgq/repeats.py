"""Finds many messages with repeating headers in one sweep, without a step for each.

Producers mostly send one size to one queue, or go round a few queues. A sequence of headers that repeats is a
*pattern*: a `struct` format (header, skip, header, skip, ...). Unpacking it repeatedly and comparing the
headers takes 25 ns a message, where reading a header takes 400. Every message found so has, byte for byte, a
header that was checked before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

from kqmsgq.wire import HEADER_BYTES, LENGTH_BYTES, NAME_AT
from shared.budget import CacheBytes, Caches, unbounded

R = TypeVar("R")

MESSAGES_MAX = 64
"""Messages in a pattern. A search that finds none looks at as many."""
TRIES_MAX = 4
"""A pattern may hold its first header several times; so many repetitions are tried as the pattern's end."""
HEADERS_BYTES_MAX = 32 * 1024
"""The bytes of a pattern's headers. Clients choose them, so they have a bound."""
SWEPT_MESSAGES = 16
"""Patterns of fewer messages are compared several times in one step."""
ONE_BY_ONE = 64
"""Messages that are read one by one where no pattern was found, before the next search for one."""
WORTH_MESSAGES = 8
"""A pattern that covers fewer messages costs more than it saves."""
PATTERNS_MAX = 64
"""Patterns that are remembered."""
PATTERN_BYTES, PATTERN_MESSAGE_BYTES = 1024, 280
"""Memory of a pattern and of each of its messages, beside the headers: 15 to 20 KB for 60 messages."""
VAIN_MAX = 8
"""After so many failed searches in a row, the next is 2 ** VAIN_MAX calls away."""


class Repeat(NamedTuple, Generic[R]):
    """A message in the input with a checked header: where it begins, where its header ends, where it ends."""

    begins: int
    body: int
    ends: int
    route: R


class Pattern(Generic[R]):
    """A repeating sequence of headers, and the routes of its messages.

    `spans`: the route of each message, and where it begins and ends in the pattern. `size`: bytes of the
    input. `plan`: what its user computes from it, once. `memory_bytes`: its memory without the plan.
    """

    __slots__ = (
        "_headers",
        "_layout",
        "_sweep",
        "_swept_headers",
        "_times",
        "memory_bytes",
        "messages",
        "plan",
        "size",
        "spans",
    )

    def __init__(self, data: bytes, those: Sequence[Repeat[R]]) -> None:
        first = those[0].begins
        self.size = those[-1].ends - first
        self.messages = len(those)
        self.spans = [(each.route, each.begins - first, each.ends - first) for each in those]
        self.plan: Any = None
        self._headers = tuple(data[each.begins : each.body] for each in those)
        self.memory_bytes = PATTERN_BYTES + PATTERN_MESSAGE_BYTES * len(those) + sum(map(len, self._headers))
        layout = "".join(f"{each.body - each.begins}s{each.ends - each.body}x" for each in those)
        self._layout = Struct(">" + layout)
        self._times = max(SWEPT_MESSAGES // len(those), 1)
        self._sweep = Struct(">" + layout * self._times)
        self._swept_headers = self._headers * self._times

    def count(self, data: bytes, at: int) -> int:
        """How many whole repetitions of the pattern stand at `at`."""
        left = (len(data) - at) // self.size
        times = self._times
        done = left // times
        if done:
            done = times * _count(self._sweep, self._swept_headers, data, at, done)
        if times > 1 and done < left:
            done += _count(self._layout, self._headers, data, at + done * self.size, min(left - done, times))
        return done


class Repeats(Generic[R]):
    """The patterns of one stream, by their first header: a read may begin at any message of a pattern.

    At each message of a pattern another one begins.

    `look_on(data, at)`: the messages from `at` on, with checked headers, while they are whole and
    well-formed. `cached`: the account of remembered patterns. Without room a pattern is used once and not
    kept.
    """

    __slots__ = ("_cached", "_look_on", "_patterns", "_vain", "_wait")

    def __init__(
        self, look_on: Callable[[bytes, int], Iterator[Repeat[R]]], cached: CacheBytes | None = None
    ) -> None:
        self._look_on = look_on
        self._cached = cached or CacheBytes(Caches(unbounded()))
        self._patterns: dict[bytes, Pattern[R]] = {}
        self._vain = 0  # failed searches in a row
        self._wait = 0  # calls until the next search

    def forget(self) -> None:
        """Forget all patterns: routes have changed, or the stream has ended."""
        self._clear()
        self._vain = self._wait = 0

    def keep_plan(self, pattern: Pattern[R], plan: object, size: int) -> None:
        """Keep a pattern's plan of `size` bytes, if there is room."""
        if self._cached.fits(size) and pattern in self._patterns.values():
            self._cached.add(size)
            pattern.memory_bytes += size
            pattern.plan = plan

    def at(self, data: bytes, at: int) -> tuple[Pattern[R], int] | None:
        """A pattern that saves work at `at`, and how often it repeats there; None without one.

        Each failed search doubles the pause before the next.
        """
        if self._wait and not self._patterns:
            self._wait -= 1
            return None
        # Of a name below 256 bytes; for others the search finds nothing.
        body = at + data[at + LENGTH_BYTES] + HEADER_BYTES
        header = data[at:body]
        known = self._patterns.get(header)
        if known is not None:
            count = known.count(data, at)
            if count * known.messages >= WORTH_MESSAGES:
                return known, count
            if at and (count + 1) * known.size > len(data) - at:
                return None  # the end of a read does not end a pattern
            if self._is_short(data, at, body):
                return None  # nor does a short read: to search anew after each costs more than it saves
            del self._patterns[header]
            self._cached.add(-known.memory_bytes)
        if self._wait:
            self._wait -= 1
            return None
        if self._is_short(data, at, body):
            return None
        searched = find(data, self._look_on(data, at))
        if searched is not None:
            count = searched.count(data, at)
            if count * searched.messages >= WORTH_MESSAGES:
                self._vain = 0
                if len(self._patterns) >= PATTERNS_MAX or not self._cached.fits(searched.memory_bytes):
                    self._clear()
                if self._cached.fits(searched.memory_bytes):
                    self._cached.add(searched.memory_bytes)
                    self._patterns[header] = searched
                return searched, count
        self._vain = min(self._vain + 1, VAIN_MAX)
        self._wait = 1 << self._vain
        return None

    def _is_short(self, data: bytes, at: int, body: int) -> bool:
        """Whether too few messages stand at `at` for a pattern, if all are as large as the first."""
        size = body - at + int.from_bytes(data[body - LENGTH_BYTES : body], "big")
        return size * WORTH_MESSAGES > len(data) - at

    def _clear(self) -> None:
        if self._patterns:
            self._patterns.clear()
            self._cached.cleared()


def find(data: bytes, messages: Iterable[Repeat[R]]) -> Pattern[R] | None:
    """The pattern that begins at the first of the consecutive `messages` and covers the most of them."""
    seen: list[Repeat[R]] = []
    best: Pattern[R] | None = None
    header = before = b""
    covered = tries = headers_bytes = 0
    for message in islice(messages, MESSAGES_MAX + 1):
        this = data[message.begins : message.body]
        if not seen:
            header = this
        elif this == header and (len(seen) == 1 or before != header):
            candidate = Pattern(data, seen)
            count = candidate.count(data, seen[0].begins)
            if count > 1 and count * candidate.size > covered:
                best, covered = candidate, count * candidate.size
            tries += 1
            if tries == TRIES_MAX or covered + candidate.size > len(data) - seen[0].begins:
                break
        headers_bytes += len(this)
        if headers_bytes > HEADERS_BYTES_MAX:
            break
        before = this
        seen.append(message)
    return best


def count_messages(data: bytes, repeats: Repeats[None]) -> int:
    """The number of messages in `data`, which holds only whole messages."""
    count = at = one_by_one = 0
    while at < len(data):
        if not one_by_one:
            found = repeats.at(data, at)
            if found is not None:
                pattern, times = found
                count += pattern.messages * times
                at += pattern.size * times
                continue
            one_by_one = ONE_BY_ONE
        one_by_one -= 1
        count += 1
        at = _ends(data, at)[1]
    return count


def repeats_for_counting() -> Repeats[None]:
    return Repeats(_look_on)


def _look_on(data: bytes, at: int) -> Iterator[Repeat[None]]:
    while at < len(data):
        body, ends = _ends(data, at)
        yield Repeat(at, body, ends, None)
        at = ends


def _ends(data: bytes, at: int) -> tuple[int, int]:
    """Where the header and the message at `at` end. The message must be whole."""
    body = at + HEADER_BYTES + int.from_bytes(data[at + 1 : at + NAME_AT], "big")
    return body, body + int.from_bytes(data[body - LENGTH_BYTES : body], "big")


def _count(layout: Struct, headers: tuple[bytes, ...], data: bytes, at: int, most: int) -> int:
    view = memoryview(data)[at : at + most * layout.size]
    for count, found in enumerate(layout.iter_unpack(view)):
        if found != headers:
            return count
    return most
