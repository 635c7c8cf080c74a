"""The index of subscriptions: which subscribers match a name.

A *subscriber* is any object with a hash, compared by `==`; it is never None or a dict. A *pattern* is bytes,
with wildcards if the index has them, or `EVERY_NAME`. A *subscription* is a pair of the two, and exists at
most once. Two patterns that match the same names (`*` and `*/*`) are different patterns. A subscription
carries no value. Two other ways are cheaper than a value in every match:

- subscribe several objects for one client (one gets messages now, one keeps them for later), or use two
  indexes: then the match says which;
- count outside what does not change the match, such as two AMQP bindings of a queue that differ only in
  arguments. Subscribe with the first, unsubscribe with the last.

Everything is synchronous and in one thread. A match is a tuple that later changes do not touch.
"""

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from shared.budget import CacheBytes, Caches, unbounded
from shared.routing.compact import CompactSet, contains, insert, iterate, remove
from shared.routing.exact import Exact
from shared.routing.syntax import EveryName, Pattern, Wildcards
from shared.routing.trie import Trie

S = TypeVar("S", bound=Hashable)

CACHE_BYTES_MAX = 8 * 2**20
"""Some 25,000 names of 50 bytes with ten subscribers each."""
_ENTRY_BYTES = 200
"""A name's and a tuple's own fields, and a place in a dict that is between half and wholly full."""


class RoutingIndex(Generic[S]):
    """Subscriptions by pattern. With `wildcards` None names have no levels: any bytes, or `EVERY_NAME`.

    Costs: subscribe and unsubscribe follow the pattern's levels; drop, the subscriptions of the one dropped;
    match, the name's levels, the prefixes of patterns that fit it, and the number of matches, never the
    number of subscriptions.

    Traffic repeats its names, so matches are kept by name: one among 1,000 plain patterns and 100 with a
    wildcard takes 0.07 us then, and 2.5 without. They are at most `cache_bytes_max`, or all go; 0 keeps none.
    `cache_books` count what is kept.
    """

    __slots__ = ("_books", "_cache", "_cache_bytes_max", "_every", "_held", "_patterns", "_subscriptions")

    def __init__(
        self,
        wildcards: Wildcards | None,
        *,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        cache_books: CacheBytes | None = None,
    ) -> None:
        self._patterns: Trie[S] | Exact[S] = Exact() if wildcards is None else Trie(wildcards)
        self._every: CompactSet[S] | None = None
        self._held: dict[S, CompactSet[Pattern]] = {}
        self._cache: dict[bytes, tuple[S, ...]] = {}
        self._cache_bytes_max = cache_bytes_max
        # What is forgotten alone still counts, so that the cache only goes sooner.
        self._books = cache_books or CacheBytes(Caches(unbounded()), math.inf)
        self._subscriptions = 0

    def __len__(self) -> int:
        """The number of subscriptions."""
        return self._subscriptions

    def subscribe(self, subscriber: S, pattern: Pattern) -> bool:
        """Add a subscription. False: it existed, and nothing changes."""
        if subscriber is None:
            raise TypeError("None cannot subscribe")
        held = self._held.get(subscriber)
        if contains(held, pattern):
            return False
        self._held[subscriber] = insert(held, pattern)
        self._subscriptions += 1
        if isinstance(pattern, EveryName):
            self._every = insert(self._every, subscriber)
        else:
            self._patterns.add(pattern, subscriber)
        self._forget_matches(pattern)
        return True

    def unsubscribe(self, subscriber: S, pattern: Pattern) -> bool:
        """Remove a subscription. False: it did not exist. Subscriptions to other patterns stay."""
        held = self._held.get(subscriber)
        if held is None or not contains(held, pattern):
            return False
        left = remove(held, pattern)
        if left is None:
            del self._held[subscriber]
        else:
            self._held[subscriber] = left
        self._remove(subscriber, pattern)
        return True

    def drop(self, subscriber: S) -> int:
        """Remove all subscriptions of `subscriber`. Returns their number."""
        ended = 0
        for pattern in iterate(self._held.pop(subscriber, None)):
            self._remove(subscriber, pattern)
            ended += 1
        return ended

    def patterns(self, subscriber: S) -> tuple[Pattern, ...]:
        """The patterns of `subscriber`, the oldest first."""
        return tuple(iterate(self._held.get(subscriber)))

    def match(self, name: bytes) -> tuple[S, ...]:
        """Every subscriber with a pattern that matches, each once, in no promised order."""
        found = self._cache.get(name)
        return self._match(name) if found is None else found

    def forget_matches(self) -> None:
        """Empty the cache, when no more matches are needed."""
        if self._books.held_bytes:
            self._books.cleared()
            self._cache = {}

    @property
    def visits(self) -> int:
        """The nodes and entries that all matches so far have visited, as a measure of work."""
        return self._patterns.visits

    @property
    def subscribers(self) -> int:
        """The number of subscribers that have a subscription."""
        return len(self._held)

    def _match(self, name: bytes) -> tuple[S, ...]:
        sets = self._patterns.walk(name)
        if self._every is not None:
            sets.append(self._every)
        found = _union(sets)
        size = _ENTRY_BYTES + len(name) + 8 * len(found)
        if size <= self._cache_bytes_max:
            if self._books.held_bytes + size > self._cache_bytes_max or not self._books.fits(size):
                self.forget_matches()
            self._books.add(size)
            self._cache[name] = found
        return found

    def _remove(self, subscriber: S, pattern: Pattern) -> None:
        self._subscriptions -= 1
        if isinstance(pattern, EveryName):
            self._every = remove(self._every, subscriber)
        else:
            self._patterns.remove(pattern, subscriber)
        self._forget_matches(pattern)

    def _forget_matches(self, pattern: Pattern) -> None:
        if isinstance(pattern, EveryName) or self._patterns.may_be_wild(pattern):
            self.forget_matches()
        else:
            self._cache.pop(pattern, None)


def _union(sets: list[CompactSet[S]]) -> tuple[S, ...]:
    if len(sets) == 1:
        return tuple(iterate(sets[0]))
    union: dict[S, None] = {}
    for members in sets:
        if isinstance(members, dict):
            union.update(members)
        else:
            union[members] = None
    return tuple(union)
